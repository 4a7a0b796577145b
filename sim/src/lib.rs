//! Simulations: several parts of forebay under one virtual clock and one seed.
//!
//! The tests of this crate assemble production code over models of disks, links and power, and run
//! it in virtual time. A run is its seed: the same seed gives the same run to the nanosecond, so a
//! failure is repeated by the command that it prints: see [`block::crash_test!`]. Runs with a
//! second thread are the exception: the order of what two threads do at one moment depends on the
//! machine (`second_thread`).
//!
//! | module | holds |
//! |---|---|
//! | [`layers`], [`made`], [`choice`] | the layers over a LUN, the parameters of stores, the options of each life |
//! | [`lun`], [`region`], [`media`] | the media below, and their faults |
//! | [`store_fault`], [`refusal`] | faults of a store's device; a device of a stack that refuses for a while |
//! | `away` | stores that are away in some lives, and the changes meanwhile |
//! | [`lun_event`], `late_loss` | events of the LUN |
//! | [`running`], [`application`], [`history`] | a stack in one life, its application, possible reads |
//! | `second_thread` | the thread of level 2 in some lives |
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
