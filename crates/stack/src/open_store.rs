//! Which store an open file holds, for whoever finds the file cut while it is used.
//!
//! A store that is made gets its place only when it is complete. Until then another store may be there, of which
//! this one says nothing; and who was replaced may find its file cut when the other one has its place.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

/// The store in an open file. Clones are the same. One that is made anew is beside its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenStore(Arc<Mutex<State>>);

/// Short sections, without another lock.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    standing: Standing,
    is_cut: bool,
}

/// Where the store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Not at its place yet.
    #[default]
    Beside,
    /// At its place, with this UUID; `None` where that is not known: it may be any store that was there.
    AtPlace(Option<Uuid>),
}

impl OpenStore {
    /// The one that is at its place already.
    pub(crate) fn at_place(uuid: Option<Uuid>) -> Self {
        Self(Arc::new(Mutex::new(State { standing: Standing::AtPlace(uuid), is_cut: false })))
    }

    /// Notes that it has its place from now on. Who finds it cut before finds it beside its place, and whoever asks
    /// after this knows of that.
    pub(crate) fn take_place(&self, uuid: Option<Uuid>) {
        self.lock().standing = Standing::AtPlace(uuid);
    }

    /// Notes that its file was found cut. Returns where it was by then.
    pub(crate) fn note_cut(&self) -> Standing {
        let mut state = self.lock();
        state.is_cut = true;
        state.standing
    }

    /// Whether its file was found cut so far.
    pub(crate) fn is_cut(&self) -> bool {
        self.lock().is_cut
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
