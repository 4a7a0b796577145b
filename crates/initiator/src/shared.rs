//! The state that a [`RemoteLun`](crate::RemoteLun) and its driver share: incoming requests, and
//! the published status.
//!
//! Three mutexes, never held together: `inbox` (requests, the driver's waker), `view` (geometry, identity, status) and
//! that of the client of a shared LUN. Sections are short and never await.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use block::completion::SlotSender;
use block::{ByteRange, Copies, Error, ErrorKind, EventHub, Geometry, Identity, Request};
use tokio::sync::{oneshot, watch};

use scsi::change_mark::Support;

use crate::change_guard::ChangeGuard;
use crate::content_guard::ContentGuard;
use crate::limits::REQUESTS_MAX;
use crate::raw_command::{RawCommand, RawOutcome};
use crate::sharing::{ClientPath, SharingClient};
use crate::status::Status;
use crate::taken_marks::TakenMarks;
use crate::unit::Unit;

/// A request of a caller.
pub(crate) enum Incoming {
    /// With the number of the request by which the host held the whole device when it came.
    Request(Request, SlotSender, Option<u64>),
    Raw(RawCommand, oneshot::Sender<Result<RawOutcome, Error>>),
}

impl Incoming {
    /// Answers the request with an error.
    pub(crate) fn refuse(self, error: Error) {
        match self {
            Self::Request(request, sender, _) => sender.complete(request.fail(error)),
            // The caller may have stopped waiting.
            Self::Raw(_, sender) => drop(sender.send(Err(error))),
        }
    }
}

pub(crate) struct Shared {
    pub(crate) events: EventHub,
    pub(crate) taken: TakenMarks,
    /// Decides about changes by others, where somebody has to.
    pub(crate) guard: OnceLock<ChangeGuard>,
    /// Hears of another content, where somebody has to.
    pub(crate) content_guard: OnceLock<ContentGuard>,
    /// Connections or pairs that the user wants.
    wanted: Arc<AtomicU16>,
    /// How often the target reported that its list of LUNs has changed.
    lun_list_changes: watch::Sender<u64>,
    inbox: Mutex<Inbox>,
    view: Mutex<View>,
    /// The client of a shared LUN, by this path.
    client: Option<ClientPath>,
}

/// Guarded by `Shared::inbox`.
struct Inbox {
    incoming: VecDeque<Incoming>,
    /// Count of requests that the driver had when it last received some.
    taken: usize,
    /// The error of further requests.
    refusal: Option<Error>,
    is_closing: bool,
    is_stopped: bool,
    /// The error of acknowledged data that may be lost, because the driver ended without flushing it.
    possible_loss: Option<Error>,
    /// Whether the next attempt to reconnect is to be made at once.
    is_reconnect_requested: bool,
    driver: Option<Waker>,
    closers: Vec<Waker>,
}

/// Guarded by `Shared::view`.
pub(crate) struct View {
    pub(crate) geometry: Geometry,
    pub(crate) identity: Identity,
    /// T10 vendor identification.
    pub(crate) vendor: String,
    pub(crate) status: Status,
    /// How the target reports changes by others; `None` where it does not.
    pub(crate) change_marks: Option<Support>,
    /// The times and bounds for hosts that share the LUN; `None` where they may not.
    pub(crate) sharing: Option<scsi::sharing::Support>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(unit: &Unit, status: Status, wanted: Arc<AtomicU16>, client: Option<SharingClient>) -> Self {
        let inbox = Inbox {
            incoming: VecDeque::new(),
            taken: 0,
            refusal: None,
            is_closing: false,
            is_stopped: false,
            possible_loss: None,
            is_reconnect_requested: false,
            driver: None,
            closers: Vec::new(),
        };
        Self {
            events: EventHub::new(),
            taken: TakenMarks::default(),
            guard: OnceLock::new(),
            content_guard: OnceLock::new(),
            wanted,
            lun_list_changes: watch::Sender::new(0),
            inbox: Mutex::new(inbox),
            view: Mutex::new(View {
                geometry: unit.geometry,
                identity: unit.identity.clone(),
                vendor: unit.vendor.clone(),
                status,
                change_marks: unit.change_marks,
                sharing: unit.sharing,
            }),
            client: client.map(SharingClient::add_path),
        }
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, View> {
        lock(&self.view)
    }

    pub(crate) fn client(&self) -> Option<&ClientPath> {
        self.client.as_ref()
    }

    /// The error of changes by this host, if they are refused.
    pub(crate) fn change_refusal(&self) -> Option<&Error> {
        self.guard.get().and_then(ChangeGuard::refusal)
    }

    /// What others changed while there was no session, and this host must not write again.
    pub(crate) fn changed_by_others(&self) -> Vec<ByteRange> {
        self.guard.get().map(ChangeGuard::by_others).unwrap_or_default()
    }

    pub(crate) fn copies(&self) -> Option<&Copies> {
        self.client().map(ClientPath::copies)
    }

    /// Hands a request to the driver, or refuses it.
    pub(crate) fn send(&self, incoming: Incoming) {
        let mut inbox = lock(&self.inbox);
        let refusal = match &inbox.refusal {
            Some(refusal) => Some(refusal.clone()),
            None if inbox.incoming.len() + inbox.taken >= REQUESTS_MAX => {
                Some(Error::new(ErrorKind::Busy, format!("{REQUESTS_MAX} requests wait already")))
            }
            None => None,
        };
        if let Some(refusal) = refusal {
            drop(inbox);
            incoming.refuse(refusal);
            return;
        }
        inbox.incoming.push_back(incoming);
        let waker = inbox.driver.take();
        drop(inbox);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Moves what has come in to `into`. The driver, which has `under_way` other requests, is woken
    /// by the next one.
    pub(crate) fn receive(&self, context: &Context<'_>, under_way: usize, into: &mut VecDeque<Incoming>) {
        let mut inbox = lock(&self.inbox);
        into.append(&mut inbox.incoming);
        inbox.taken = under_way + into.len();
        if !inbox.driver.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            inbox.driver = Some(context.waker().clone());
        }
    }

    /// Counts that the target's list of LUNs has changed.
    pub(crate) fn note_lun_list_change(&self) {
        self.lun_list_changes.send_modify(|count| *count += 1);
    }

    pub(crate) fn lun_list_changes(&self) -> watch::Receiver<u64> {
        self.lun_list_changes.subscribe()
    }

    /// Changes how many connections or pairs the session is to have.
    pub(crate) fn want_connections(&self, count: u16) {
        self.wanted.store(count.max(1), Ordering::Relaxed);
        let waker = lock(&self.inbox).driver.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Asks for an attempt to reconnect now.
    pub(crate) fn request_reconnect(&self) {
        let mut inbox = lock(&self.inbox);
        inbox.is_reconnect_requested = true;
        if let Some(waker) = inbox.driver.take() {
            drop(inbox);
            waker.wake();
        }
    }

    /// Whether a reconnect was requested since the last call.
    pub(crate) fn take_reconnect_request(&self) -> bool {
        std::mem::take(&mut lock(&self.inbox).is_reconnect_requested)
    }

    pub(crate) fn is_closing(&self) -> bool {
        lock(&self.inbox).is_closing
    }

    /// Sets the error of all further requests; `None` accepts them again, unless the device is
    /// closed.
    pub(crate) fn set_refusal(&self, refusal: Option<Error>) {
        let mut inbox = lock(&self.inbox);
        if !inbox.is_closing && !inbox.is_stopped {
            inbox.refusal = refusal;
        }
    }

    /// Asks the driver to end.
    pub(crate) fn close(&self, place: &str) {
        let mut inbox = lock(&self.inbox);
        inbox.is_closing = true;
        inbox.refusal.get_or_insert_with(|| Error::new(ErrorKind::Gone, format!("{place} is closed")));
        if let Some(waker) = inbox.driver.take() {
            drop(inbox);
            waker.wake();
        }
    }

    /// Notes that the driver leaves acknowledged data behind that may be lost.
    pub(crate) fn note_possible_loss(&self, error: Error) {
        lock(&self.inbox).possible_loss = Some(error);
    }

    /// Ready when the driver has ended, with the error of acknowledged data that may be lost.
    pub(crate) fn poll_stopped(&self, context: &Context<'_>) -> Poll<Result<(), Error>> {
        let mut inbox = lock(&self.inbox);
        if inbox.is_stopped {
            return Poll::Ready(inbox.possible_loss.clone().map_or(Ok(()), Err));
        }
        inbox.closers.push(context.waker().clone());
        Poll::Pending
    }

    /// Notes that the driver has ended: no request is answered any more.
    pub(crate) fn stop(&self, place: &str) {
        let mut inbox = lock(&self.inbox);
        inbox.is_stopped = true;
        let error = Error::new(ErrorKind::Gone, format!("{place} is closed: its driver has ended"));
        let refusal = inbox.refusal.get_or_insert(error).clone();
        let left = std::mem::take(&mut inbox.incoming);
        let closers = std::mem::take(&mut inbox.closers);
        drop(inbox);
        left.into_iter().for_each(|incoming| incoming.refuse(refusal.clone()));
        closers.into_iter().for_each(Waker::wake);
    }
}
