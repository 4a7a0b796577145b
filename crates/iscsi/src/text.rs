//! Text parameters: `key=value` pairs (RFC 7143 6.1).
