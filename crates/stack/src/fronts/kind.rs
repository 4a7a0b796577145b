//! The trait of a front, and the description of each kind.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use block::SharedDevice;
use block::range_lock::RangeLock;
use futures_util::future::LocalBoxFuture;
use logical_unit::CompareAndWrite;

use super::options::FrontOptions;
use crate::error::Result;
use crate::metrics::plain::{Plain, Value};
use crate::status::fronts::FrontCounters;

/// The usual place of a kind of fronts, of those in the run-time directory, which are named by their kind; or why there
/// is none.
pub type UsualPlace = fn(&dyn Fn(&str) -> PathBuf) -> std::result::Result<String, String>;

/// A kind of fronts.
#[derive(Debug)]
pub struct FrontKind {
    /// The word before the colon in `--as`, and the name of its counters in the status.
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
    /// Families of its counters.
    pub metrics: &'static [Plain<Value<FrontCounters>>],
}

/// One front as asked for.
#[derive(Clone, Debug)]
pub struct FrontConfig {
    /// The kind.
    pub kind: &'static FrontKind,
    /// The place.
    pub place: String,
    /// The options.
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

/// Count of the applications that use a front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clients {
    /// Connected now.
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

    /// The applications that use it.
    fn clients(&self) -> Clients;

    /// Adds what it counted to what others of its kind did.
    fn count(&self, sum: &mut FrontCounters);
}
