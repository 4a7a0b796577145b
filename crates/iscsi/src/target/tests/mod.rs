//! The target's side against a scripted initiator, with a hand-turned clock: bytes in, bytes out.

mod commands;
mod functions;
mod login;
mod logout;
mod order;
mod peer;
mod random;
mod recovery;
mod requests;
mod silence;
mod split;
