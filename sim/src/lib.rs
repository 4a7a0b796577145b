//! Several parts of forebay under one virtual clock and one seed.
//!
//! The tests of this crate assemble production code over models of disks, links and power, and run it in virtual time.
//! A run is its seed: the same seed gives the same run to the nanosecond, so a failure is replayed by the command that
//! it prints: see [`block::crash_test!`]. Those runs of which a part has a thread of its own are the exception: what
//! two threads do in one moment is as the machine has it (`second_thread`).
//!
//! | module | holds |
//! |---|---|
//! | [`layers`], [`made`], [`choice`] | which layers stand on a LUN, what they are made with, what differs from life to life |
//! | [`lun`], [`region`], [`media`] | what they stand on, and what that does wrong |
//! | [`store_fault`], [`refusal`] | what the device of a store does wrong; one of a stack that refuses for a while |
//! | `away` | which stores are not there for some lives, and what changes meanwhile |
//! | [`lun_event`], `late_loss` | what happens to the LUN and is told |
//! | [`running`], [`application`], [`history`] | a stack in one life, who uses it, and what may be read |
//! | `second_thread` | where level 2 is at work in some lives |
//! | [`link`] | a connection |

#![forbid(unsafe_code)]

pub mod application;
mod away;
pub mod choice;
pub mod history;
mod late_loss;
pub mod layers;
pub mod link;
pub mod lun;
pub mod lun_event;
pub mod made;
pub mod media;
pub mod refusal;
pub mod region;
pub mod running;
mod second_thread;
pub mod store_fault;
