//! The NBD protocol without I/O, both ends.
