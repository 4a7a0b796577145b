//! iSCSI without I/O: PDUs, negotiation, CHAP and both ends' state machines (RFC 7143).
