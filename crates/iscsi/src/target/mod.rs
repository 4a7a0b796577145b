//! The target side state machine.
