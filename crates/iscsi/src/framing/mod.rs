//! Framing: bytes to PDUs and back.
