//! Login and text negotiation of operational parameters (RFC 7143 6.2 and 13).
