//! What a front is, and what is known of a kind of them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use block::SharedDevice;
use block::range_lock::RangeLock;
use futures_util::future::LocalBoxFuture;
use logical_unit::CompareAndWrite;
use serde_json::Value;

use super::options::FrontOptions;
use crate::error::Result;
use crate::metrics::plain::{Counted, Plain};

/// The usual place of a kind of fronts, of those in the run-time directory, which are named by their kind; or why there
/// is none.
pub type UsualPlace = fn(&dyn Fn(&str) -> PathBuf) -> std::result::Result<String, String>;

/// What is known of a kind of fronts before there is one.
#[derive(Debug)]
pub struct FrontKind {
    /// The word before the colon in `--as`, and the key of its counters in the status.
    pub name: &'static str,
    /// The places it takes, as `--as` does.
    pub places: &'static str,
    /// A place as it is kept: other commands find it from other directories.
    pub place: fn(&str) -> std::result::Result<String, String>,
    /// The place that is usual for it, of those in the run-time directory, which are named by their kind; or why it is
    /// never chosen, or cannot be had here.
    pub usual: UsualPlace,
    /// Listens there. Who comes waits until it is served.
    pub listen: fn(&FrontConfig) -> Result<Box<dyn Front>>,
    /// Families of its counters; each pointer into the status begins with its name.
    pub metrics: &'static [Plain<Counted>],
}

/// One front as asked for.
#[derive(Clone, Debug)]
pub struct FrontConfig {
    /// Of which kind.
    pub kind: &'static FrontKind,
    /// Where.
    pub place: String,
    /// With what.
    pub options: FrontOptions,
}

/// What is served, and how.
#[derive(Clone)]
pub struct Served {
    /// The device.
    pub device: SharedDevice,
    /// Whoever changes less than a block reads and writes the rest of it, too: here all fronts of a device take turns.
    pub turns: RangeLock,
    /// Who compares and writes, where others reach the blocks without this host.
    pub compares_below: Option<Arc<dyn CompareAndWrite>>,
}

/// Applications that a front has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clients {
    /// Now.
    pub open: u64,
    /// Of these, who know another size of the device than it has.
    pub outdated: u64,
}

/// A front that listens, and perhaps serves. Dropped, it leaves nothing at its place.
pub trait Front {
    /// Its kind.
    fn kind(&self) -> &'static FrontKind;

    /// Where it listens, in the form of `--as` without the kind.
    fn place(&self) -> String;

    /// Where applications reach it, as they take it.
    fn address(&self) -> String {
        self.place()
    }

    /// Hangs up on the next application that comes before it is served. Never ends where nobody can.
    fn turn_away(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::pending())
    }

    /// Shows the device to applications where only that makes the place known to them. Who comes waits until it is
    /// served.
    ///
    /// # Errors
    /// When that fails: then the front is of no use.
    fn open(&self, _: &Served) -> io::Result<()> {
        Ok(())
    }

    /// Serves until `stop`; then nobody is let in any more, and it ends when every request that was begun is answered.
    /// It is opened before, and served once.
    fn serve<'a>(&'a self, served: Served, stop: LocalBoxFuture<'a, ()>) -> LocalBoxFuture<'a, io::Result<()>>;

    /// Who uses it.
    fn clients(&self) -> Clients;

    /// What it counted: an object of numbers, or of such objects.
    fn counters(&self) -> Value;
}
