//! The trait of a front, and the description of each kind.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use front::Exported;
use futures_util::future::LocalBoxFuture;
use logical_unit::CompareAndWrite;

use super::options::FrontOptions;
use crate::error::Result;
use crate::metrics::plain::{Plain, Value};
use crate::status::fronts::FrontCounters;

/// Finds the usual place of a kind: the argument gives the place in the run-time directory for a
/// name. Or returns why there is none.
pub type UsualPlace = fn(&dyn Fn(&str) -> PathBuf) -> std::result::Result<String, String>;

/// A kind of fronts.
#[derive(Debug)]
pub struct FrontKind {
    /// The word before the colon in `--as`, and the name of its counters in the status.
    pub name: &'static str,
    /// The places it takes, in the form of `--as`.
    pub places: &'static str,
    /// Makes a place absolute: other commands use it from other directories.
    pub place: fn(&str) -> std::result::Result<String, String>,
    /// Finds its usual place; or returns why it is never chosen, or is not available here.
    pub usual: UsualPlace,
    /// Listens there. Clients wait until it is served.
    pub listen: fn(&FrontConfig) -> Result<Box<dyn Front>>,
    /// Who used a front of it at this place, and how many, in words; for whoever took it away.
    pub users: fn(&str, u64) -> String,
    /// Metric families of its counters.
    pub metrics: &'static [Plain<Value<FrontCounters>>],
}

/// One front, as configured.
#[derive(Clone, Debug)]
pub struct FrontConfig {
    /// The kind.
    pub kind: &'static FrontKind,
    /// The place.
    pub place: String,
    /// The options.
    pub options: FrontOptions,
}

/// A device to serve, and how.
#[derive(Clone)]
pub struct Served {
    /// The device, with what all its fronts share.
    pub exported: Exported,
    /// The layer that compares and writes, where other hosts reach the blocks as well.
    pub compares_below: Option<Arc<dyn CompareAndWrite>>,
}

/// Count of the applications that use a front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clients {
    /// Connected now.
    pub open: u64,
    /// Of these, clients that have an outdated size of the device.
    pub outdated: u64,
}

/// Clients that used a front, where its kind has no better words.
pub(super) fn clients_in_words(kind: &str, place: &str, count: u64) -> String {
    match count {
        1 => format!("1 client of {kind}:{place}"),
        _ => format!("{count} clients of {kind}:{place}"),
    }
}

/// A front that listens, and perhaps serves. Dropping it removes its place.
pub trait Front {
    /// Its kind.
    fn kind(&self) -> &'static FrontKind;

    /// Where it listens, in the form of `--as` without the kind.
    fn place(&self) -> String;

    /// Its address, in the form that applications take.
    fn address(&self) -> String {
        self.place()
    }

    /// Disconnects the next application that comes before it is served. Never ends for a front
    /// where none can come.
    fn turn_away(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::pending())
    }

    /// Shows the device where applications find it only by that. Clients wait until it is served.
    ///
    /// # Errors
    /// When that fails: the front is of no use then.
    fn open(&self, _: &Served) -> io::Result<()> {
        Ok(())
    }

    /// Serves until `stop`; after that it accepts no more clients, and ends when every request that
    /// was begun is answered. It is opened before, and served once.
    fn serve<'a>(&'a self, served: Served, stop: LocalBoxFuture<'a, ()>) -> LocalBoxFuture<'a, io::Result<()>>;

    /// The applications that use it.
    fn clients(&self) -> Clients;

    /// How many users an end takes it away from.
    fn users(&self) -> u64 {
        self.clients().open
    }

    /// Adds its counters to those of its kind.
    fn count(&self, sum: &mut FrontCounters);
}
