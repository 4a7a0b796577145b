//! A layer that sets the submitter of each request.

use crate::completion::Completion;
use crate::copies::Copies;
use crate::device::{Device, SharedDevice};
use crate::event::EventReceiver;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::request::Request;
use crate::submitter::Submitter;

/// A device for one submitter: all requests through it are that submitter's.
pub struct SubmitterLayer {
    inner: SharedDevice,
    submitter: Submitter,
}

impl SubmitterLayer {
    /// `inner` for a submitter of its own.
    pub fn new(inner: SharedDevice) -> Self {
        Self::of(inner, Submitter::new())
    }

    /// `inner` for this submitter.
    pub fn of(inner: SharedDevice, submitter: Submitter) -> Self {
        Self { inner, submitter }
    }

    /// The submitter of its requests.
    pub fn submitter(&self) -> Submitter {
        self.submitter
    }
}

impl Device for SubmitterLayer {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        self.inner.submit(request.by(self.submitter))
    }

    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        self.inner.copies()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use base::buffer::Buffer;

    use super::*;
    use crate::request::Response;

    /// A device that notes submitters.
    struct Notes(Mutex<Vec<Submitter>>);

    impl Device for Notes {
        fn geometry(&self) -> Geometry {
            Geometry::plain(1 << 20)
        }

        fn identity(&self) -> Identity {
            Identity::default()
        }

        fn submit(&self, request: Request) -> Completion {
            self.0.lock().unwrap().push(request.submitter);
            Completion::ready(Response::done(Buffer::empty()))
        }
    }

    #[test]
    fn each_layer_is_another_submitter_and_always_the_same() {
        let notes = Arc::new(Notes(Mutex::default()));
        let [one, other] = [(); 2].map(|()| SubmitterLayer::new(notes.clone()));
        drop(one.submit(Request::flush()));
        drop(other.submit(Request::write(0, Buffer::zeroed(512), false)));
        drop(one.submit(Request::discard(0, 512)));
        drop(notes.submit(Request::flush()));
        let seen = notes.0.lock().unwrap().clone();
        assert_eq!((seen[0] == seen[2], seen[0] == seen[1], seen[3]), (true, false, Submitter::default()));
        assert!(seen[0] != seen[3] && seen[1] != seen[3]);
    }
}
