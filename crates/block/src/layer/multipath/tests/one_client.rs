//! Paths to a unit that several hosts share: one client, or none.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::device::SharedDevice;
use crate::event::EventReceiver;

/// A path of a client. When it is lost its changes end with an unknown outcome.
struct ClientPath {
    unit: Arc<MemoryDevice>,
    copies: Option<Copies>,
    hub: EventHub,
    is_lost: AtomicBool,
}

impl ClientPath {
    fn new(unit: &Arc<MemoryDevice>, copies: Option<&Copies>) -> Arc<Self> {
        let (unit, copies) = (Arc::clone(unit), copies.cloned());
        Arc::new(Self { unit, copies, hub: EventHub::new(), is_lost: AtomicBool::new(false) })
    }
}

impl Device for ClientPath {
    fn geometry(&self) -> Geometry {
        self.unit.geometry()
    }

    fn identity(&self) -> Identity {
        self.unit.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if !self.is_lost.load(Ordering::Relaxed) {
            return self.unit.submit(request);
        }
        self.hub.publish(&Event::Offline);
        Completion::ready(request.fail(Error::new(ErrorKind::OutcomeUnknown, "the session was lost")))
    }

    fn subscribe(&self) -> EventReceiver {
        self.hub.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        self.copies.clone()
    }
}

fn over(paths: [&Arc<ClientPath>; 2]) -> Result<Multipath, Error> {
    let paths = paths.into_iter().map(|path| Arc::clone(path) as SharedDevice).collect();
    Multipath::new(paths, Policy::Failover, PATIENCE, Arc::new(VirtualClock::new()))
}

#[test]
fn paths_that_are_clients_of_their_own_are_refused() {
    let (unit, clock) = (unit(false), VirtualClock::new());
    let copies = || Copies::new(Arc::new(clock.clone()));
    let (one, other) = (copies(), copies());
    let path = |copies| ClientPath::new(&unit, copies);
    for pair in [[Some(&one), Some(&other)], [Some(&one), None], [None, Some(&one)]] {
        let refused = over([&path(pair[0]), &path(pair[1])]).err().expect("they are two");
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
    }
    let device = over([&path(Some(&one)), &path(Some(&one))]).expect("it is one client");
    assert!(device.copies().expect("it is shared").are_one(&one));
    assert!(over([&path(None), &path(None)]).expect("it is this host's alone").copies().is_none());
}

/// What may still come by the lost path the target refuses, or has before all that follows.
#[test]
fn no_range_is_in_doubt_where_a_path_of_a_client_is_lost() {
    for is_shared in [true, false] {
        let unit = unit(false);
        let copies = is_shared.then(|| Copies::new(Arc::new(VirtualClock::new())));
        let (first, second) = (ClientPath::new(&unit, copies.as_ref()), ClientPath::new(&unit, copies.as_ref()));
        let device = over([&first, &second]).expect("they lead to one unit");
        first.is_lost.store(true, Ordering::Relaxed);
        let write = || {
            let write = device.write(0, Buffer::zeroed(512), false);
            futures_util::FutureExt::now_or_never(write).expect("nothing waits")
        };
        assert_eq!(write().unwrap_err().kind(), ErrorKind::OutcomeUnknown);
        assert_eq!(
            write().map(drop).map_err(|error| error.kind()),
            match is_shared {
                true => Ok(()),
                false => Err(ErrorKind::Busy),
            }
        );
    }
}
