//! The disk as one host has it, with something that happens before one of its requests.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use block::{Completion, Device, ErrorKind, EventReceiver, Geometry, Identity, Request, SharedDevice};

use super::common::{Path, Target};

/// What happens before a request. Returns whether the request still goes on.
type Event = Box<dyn FnOnce() -> bool + Send>;

/// A disk below the path of a host.
pub(crate) struct Interruption {
    disk: SharedDevice,
    /// What is to happen, and after how many requests.
    due: Mutex<Option<(u64, Event)>>,
}

impl Interruption {
    /// Puts one below the path of each host.
    pub(crate) fn below(target: &mut Target) -> Vec<Arc<Self>> {
        let below = |path: &mut Arc<Path>| {
            let path = Arc::get_mut(path).expect("nobody else has the path yet");
            let interruption = Arc::new(Self { disk: Arc::clone(&path.disk), due: Mutex::default() });
            path.disk = Arc::clone(&interruption) as SharedDevice;
            interruption
        };
        target.paths.iter_mut().map(below).collect()
    }

    pub(crate) fn set(&self, after_requests: u64, event: impl FnOnce() -> bool + Send + 'static) {
        *self.due.lock().unwrap() = Some((after_requests, Box::new(event)));
    }

    /// The host dies: that request and all later ones have no effect.
    pub(crate) fn kill(&self, after_requests: u64, path: &Arc<Path>) {
        let path = Arc::clone(path);
        self.set(after_requests, move || {
            path.is_dead.store(true, Ordering::Relaxed);
            false
        });
    }

    /// Takes back what has not happened yet. Returns whether it had happened.
    pub(crate) fn clear(&self) -> bool {
        self.due.lock().unwrap().take().is_none()
    }

    fn take_due(&self) -> Option<Event> {
        let mut due = self.due.lock().unwrap();
        match due.as_mut()? {
            (0, _) => due.take().map(|(_, event)| event),
            (left, _) => {
                *left -= 1;
                None
            }
        }
    }
}

impl Device for Interruption {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn identity(&self) -> Identity {
        self.disk.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        match self.take_due().is_none_or(|event| event()) {
            true => self.disk.submit(request),
            false => Completion::ready(request.fail(ErrorKind::Gone)),
        }
    }

    fn subscribe(&self) -> EventReceiver {
        self.disk.subscribe()
    }
}
