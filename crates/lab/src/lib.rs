//! The papers' experiments, each named after its figure: the paper's number, our number, and the
//! ratio.
//!
//! | module | holds |
//! |---|---|
//! | [`registry`] | every experiment: name, source, the paper's result |
//! | [`outcome`] | the results of a run: rows, as a table and as JSON |
//! | `figure`, [`page`] | the drawing of an outcome, and the page of several |
//! | `icache`, [`icache_model`] | those of paper 000, *A Caching Strategy to Improve iSCSI Performance*, over models |
//! | `icache_postmark`, `packet_sizes` | those of the same paper that take this machine: PostMark, and packets on the wire |
//! | `iscsi_design` | the experiments of paper 001, *An iSCSI Design and Implementation* |
//! | `sharing`, `sharing_model` | those of paper 003, *An Efficient Data Sharing Scheme for iSCSI-Based File Systems*, over models |
//! | `model` | `--clock virtual`: the real initiator and target over modelled links and processors |
//! | `stage`, `namespaces`, `wan` | `--clock real`: target and `forebay bench` as processes, on loopback or in network namespaces, with delay and loss |
//!
//! In virtual time a run is repeatable to the digit. Its models have few parameters. Each states
//! which of the paper's numbers it was set by, so that only numbers that were *not* put in are
//! compared. In real time the numbers are this machine's, and only ratios inside one run mean
//! something.

#![forbid(unsafe_code)]

mod error;
mod figure;
mod icache;
pub mod icache_model;
mod icache_postmark;
mod iscsi_design;
pub mod limits;
mod model;
mod namespaces;
pub mod outcome;
mod packet_sizes;
pub mod page;
pub mod registry;
mod sharing;
mod sharing_model;
mod stage;
mod wan;

pub use error::LabError;
pub use outcome::{Clock, Outcome, Row, Span};
pub use registry::{Experiment, REGISTRY, find};
pub use stage::Scale;
