//! The PDUs of RFC 7143 section 11.
