//! Several paths to one unit: sessions through different portals, as one device.
//!
//! The danger of paths is the stale write: given to a path that never answers, given to another
//! path and done there, it then still lands through the first one, over something newer. Against it
//! these hold:
//!
//! - **A request stays with its path.** A path is a session of its own that looks for its target by
//!   itself. When it is back it is the *same* session reinstated, so the target has ended the
//!   commands that the old one left behind (RFC 7143 6.3.5), and only then it issues its requests
//!   again. So no write is ever under way through two sessions. New requests go to other paths
//!   meanwhile.
//! - **A request that was certainly not carried out goes to another path**: after the errors
//!   `Gone`, `TimedOut` and `NoAccess`, and no others. A path that refuses a request for its access
//!   state is avoided until [`Multipath::set_access`] changes that; while all of them refuse it, as
//!   between two states, the request is tried again for a minute.
//! - **A request waits as long as any path may come back.** One that had no session, or lost it, is no reason to fail a
//!   request: the others have it next, also those that are away, of which each waits for its target by itself. A path
//!   that hands requests on (`NoAccess`) while it is away knows that another one has a session: where that is lost as
//!   well, all are tried again, for as long as paths wait for their target.
//! - **Overlapping requests wait for each other.** Two sessions have no order between them, so the
//!   range lock keeps it: a change waits for the answers of earlier requests that overlap it.
//! - **A change whose outcome its path does not know keeps its range in doubt** for as long as the path has not been
//!   back: it may still land. Changes of that range fail with `Busy` until then. Reads go on: they find it done or not,
//!   as after any unknown outcome.
//! - **No path keeps writes to repeat them.** Of a unit with a volatile cache an initiator keeps
//!   copies of writes until a flush, and writes them again after a power loss of the unit; that
//!   could overwrite newer data from another path. So with more than one path and such a unit,
//!   every write is sent with FUA, and discards become durable zeroes.
//! - **Paths to a unit that several hosts share are one client** ([`Copies::are_one`]): copies are called back by
//!   whichever path lives. When a path is lost, the others carry nothing out before the target refuses what still comes
//!   by that path. So no range is in doubt there.
//!
//! A flush goes to one path: it is about the unit's cache. But what one path knows to be lost, the next flush is told:
//! it goes to that path, and where that cannot tell, as one that is away, this device does.
//!
//! | path | takes new requests |
//! |---|---|
//! | online, in the best access state (ALUA: optimized before non-optimized) | by the policy |
//! | offline, or in a state without access | only when there is no other |

mod carry;
mod path;
mod paths;
mod shared;

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use base::clock::Clock;

use crate::completion::{Completion, Workers};
use crate::copies::Copies;
use crate::device::{Device, SharedDevice};
use crate::error::{Error, ErrorKind};
use crate::event::EventReceiver;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::limits::PATHS_MAX;
use crate::range_lock::RangeLock;
use crate::request::Request;

use carry::carry_out;
pub use path::{Access, Path, Policy};
use paths::Paths;
use shared::Shared;

/// The paths to one unit as one device.
pub struct Multipath {
    shared: Arc<Shared>,
    workers: Workers,
}

impl Multipath {
    /// A device over `paths`, the preferred first, of which each keeps requests waiting for `patience` while its target
    /// is away. [`Multipath::run`] must be polled for as long as it is used.
    ///
    /// # Errors
    /// `InvalidRange` for no path or more than 16; `Corrupt` when two lead to different units; `Unsupported` when the
    /// paths to a unit that several hosts share are not one client.
    pub fn new(
        paths: Vec<SharedDevice>,
        policy: Policy,
        patience: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        if !(1..=PATHS_MAX).contains(&paths.len()) {
            let words = format!("a unit has 1 to {PATHS_MAX} paths, not {}", paths.len());
            return Err(Error::new(ErrorKind::InvalidRange, words));
        }
        check_same(&paths)?;
        let copies = common_copies(&paths)?;
        let paths = Paths::new(paths, policy);
        let shared = Arc::new(Shared { paths, lock: RangeLock::new(), clock, patience, copies });
        Ok(Self { shared, workers: Workers::new() })
    }

    /// The policy.
    pub fn policy(&self) -> Policy {
        self.shared.paths.policy()
    }

    /// The paths, in order.
    pub fn paths(&self) -> Vec<Path> {
        self.shared.paths.describe()
    }

    /// Sets the access state of a path.
    pub fn set_access(&self, path: usize, access: Access) {
        self.shared.paths.set_access(path, access);
    }

    /// Passes on the paths' events, and carries on requests that are not awaited. It never ends;
    /// the device ends when it is dropped.
    pub async fn run(&self) {
        let mut workers = pin!(self.workers.run());
        poll_fn(|context| {
            let _ = workers.as_mut().poll(context);
            self.shared.paths.poll_events(context);
            Poll::<()>::Pending
        })
        .await;
    }
}

/// Refuses paths to different units: writing to both as one would destroy their data.
fn check_same(paths: &[SharedDevice]) -> Result<(), Error> {
    let names = |path: &SharedDevice| {
        let Identity { unit, serial, .. } = path.identity();
        (unit, serial)
    };
    let Some(first) = paths.first() else { return Ok(()) };
    match paths.iter().find(|path| names(path) != names(first)) {
        None => Ok(()),
        Some(other) => {
            let words =
                format!("these are two units, not two paths to one: {}; {}", first.identity(), other.identity());
            Err(Error::new(ErrorKind::Corrupt, words))
        }
    }
}

/// The copies of the one client that all paths are; `None` where the unit is this host's alone.
fn common_copies(paths: &[SharedDevice]) -> Result<Option<Copies>, Error> {
    let mut all = paths.iter().map(|path| path.copies());
    let first = all.next().flatten();
    let is_same = |copies: Option<Copies>| match (&first, copies) {
        (None, None) => true,
        (Some(first), Some(copies)) => first.are_one(&copies),
        _ => false,
    };
    if all.all(is_same) {
        return Ok(first);
    }
    let words = "the paths to this unit are clients of their own: what one is asked to drop, the others would keep";
    Err(Error::new(ErrorKind::Unsupported, words))
}

impl Device for Multipath {
    fn geometry(&self) -> Geometry {
        self.shared.paths.geometry()
    }

    /// Independent of the order of paths: where target names differ, the one that sorts first.
    fn identity(&self) -> Identity {
        self.shared.paths.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        match self.geometry().check(&request) {
            Ok(range) => Completion::task(&self.workers, carry_out(&self.shared, range, request)),
            Err(error) => Completion::ready(request.fail(error)),
        }
    }

    fn subscribe(&self) -> EventReceiver {
        self.shared.paths.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        self.shared.copies.clone()
    }
}

#[cfg(test)]
mod tests;
