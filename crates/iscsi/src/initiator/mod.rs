//! The initiator side state machine.
