//! CHAP, both roles (RFC 7143 12.1.3).
