//! The table of sessions (RFC 7143 6.3.1).
//!
//! | ISID | TSIH | here |
//! |---|---|---|
//! | new | zero | a new session |
//! | existing | zero | reinstatement: the old session is stopped, and the new one begins when that has ended |
//! | any | not zero, unknown | session does not exist |
//! | any | not zero, known | the connection is handed to the session, which takes or refuses it |
//!
//! A discovery session has no port that could be lost, so several with one ISID may run side by
//! side.
//!
//! A session that lost its last connection may be kept for its initiator (ErrorRecoveryLevel 2).
//! Their number is limited for each initiator and address, and the oldest is ended for a login when
//! the table is full: no login is refused because of an absent initiator.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use iscsi::pdu::{Isid, LoginStatus};
use iscsi::target::SessionRequest;
use logical_unit::LunMap;

use tokio::sync::{mpsc, oneshot};

use crate::addresses::Addresses;
use crate::connections::{Entered, host};
use crate::control::{Control, Directive, Handle};
use crate::limits::{JOINING_MAX, UNCONNECTED_MAX, UNCONNECTED_PER_ADDRESS_MAX, UNCONNECTED_PER_INITIATOR_MAX};
use crate::status::{NegotiatedStatus, SessionReport, SessionStatus};
use crate::target::Target;
use crate::transport::Transport;

/// A connection on its way to its session; only the last login response is missing.
pub(crate) struct Joining {
    pub(crate) stream: Box<dyn Transport>,
    pub(crate) addresses: Addresses,
    pub(crate) protocol: iscsi::target::Connection,
    pub(crate) control: Control,
    pub(crate) entered: Entered,
    /// Receives the reason for the connection's end.
    pub(crate) ended: oneshot::Sender<iscsi::target::CloseReason>,
}

/// The channel by which a session gets connections.
pub(crate) type Inbox = mpsc::Receiver<Box<Joining>>;

/// An initiator port at a target, in the form in which names are compared.
type Port = (String, Isid, String, u16);

struct Entry {
    request: SessionRequest,
    port: Option<Port>,
    handle: Handle,
    /// The channel to the session for further connections, once it has begun.
    inbox: Option<mpsc::Sender<Box<Joining>>>,
    /// The logical units that it sees, once it has begun.
    luns: Option<LunMap>,
    /// The host of its first connection.
    host: String,
    /// Set when it has lost its last connection: the smaller, the longer ago.
    unconnected: Option<u64>,
}

#[derive(Default)]
pub(crate) struct Sessions {
    state: Mutex<State>,
}

/// Guarded by `Sessions::state`; sections are short.
#[derive(Default)]
struct State {
    entries: BTreeMap<u16, Entry>,
    tsih_last: u16,
    /// Sessions that were removed from the table, and logins that waited for one, until they have
    /// ended with all their I/O. A login through the same port waits for them, however many logins
    /// have given up before: they all are the same nexus.
    leaving: Vec<(Port, Handle)>,
    /// Count of losses of a session's last connection.
    disconnections: u64,
}

/// The decision about a login request.
pub(crate) enum Decision {
    /// It becomes the session `tsih`, once all of `previous` have ended.
    Admit {
        tsih: u16,
        previous: Vec<Handle>,
    },
    /// It joins the session that it names.
    Join(mpsc::Sender<Box<Joining>>),
    Refuse {
        status: LoginStatus,
        detail: &'static str,
    },
}

impl Sessions {
    /// Decides on a login and, when it is admitted, enters it.
    pub(crate) fn admit(
        &self,
        request: &SessionRequest,
        (handle, peer): (Handle, &str),
        sessions_max: usize,
    ) -> Decision {
        let mut state = self.lock();
        if request.tsih != 0 {
            let entry = state.entries.get(&request.tsih);
            return match entry.filter(|entry| is_for(entry, request)).and_then(|entry| entry.inbox.clone()) {
                Some(inbox) => Decision::Join(inbox),
                None => refuse(LoginStatus::SESSION_DOES_NOT_EXIST, "no session of this initiator has this TSIH"),
            };
        }
        let port = port_of(request);
        let is_same = |entry: &Entry| port.is_some() && entry.port == port;
        let replaced = state.entries.iter().find(|(_, entry)| is_same(entry)).map(|(&tsih, _)| tsih);
        if let Some(entry) = replaced.and_then(|tsih| state.entries.remove(&tsih)) {
            state.stop(entry);
        }
        if state.entries.len() >= sessions_max && !state.end_oldest_unconnected(|_| true) {
            return refuse(LoginStatus::OUT_OF_RESOURCES, "the server has as many sessions as it takes");
        }
        let previous = state.leaving_of(port.as_ref());
        let tsih = state.free_tsih();
        let entry = Entry {
            request: request.clone(),
            port,
            handle,
            inbox: None,
            luns: None,
            host: host(peer),
            unconnected: None,
        };
        state.entries.insert(tsih, entry);
        Decision::Admit { tsih, previous }
    }

    /// Notes that an admitted session has begun: connections may join it, and `luns` get the units
    /// that it sees, now and after each change of the targets. The target is looked up under the
    /// lock, so that no change is missed.
    pub(crate) fn begin(
        &self,
        tsih: u16,
        handle: &Handle,
        luns: LunMap,
        find: impl Fn(&str) -> Option<Target>,
    ) -> Inbox {
        let (sender, inbox) = mpsc::channel(JOINING_MAX);
        if let Some(entry) = self.lock().entries.get_mut(&tsih).filter(|entry| entry.handle.is_same(handle)) {
            entry.inbox = Some(sender);
            entry.luns = Some(luns);
            entry.review(find);
        }
        inbox
    }

    /// Applies changed targets: every session sees its new LUNs, or is asked to end. Returns the
    /// count of the latter.
    pub(crate) fn review(&self, find: impl Fn(&str) -> Option<Target>) -> usize {
        self.lock().entries.values().filter(|entry| !entry.review(&find)).count()
    }

    /// Notes that a session has lost its last connection, or has one again. The number of those
    /// without is limited for each initiator, each address and in all.
    pub(crate) fn set_unconnected(&self, tsih: u16, handle: &Handle, is_unconnected: bool) {
        let mut state = self.lock();
        state.disconnections += 1;
        let number = state.disconnections;
        let Some(entry) = state.entries.get_mut(&tsih).filter(|entry| entry.handle.is_same(handle)) else { return };
        entry.unconnected = is_unconnected.then_some(number);
        if !is_unconnected {
            return;
        }
        let (name, host) = (entry.request.initiator_name.clone(), entry.host.clone());
        let is_of_initiator = |entry: &Entry| entry.request.initiator_name.eq_ignore_ascii_case(&name);
        state.bound_unconnected(UNCONNECTED_PER_INITIATOR_MAX, is_of_initiator);
        state.bound_unconnected(UNCONNECTED_PER_ADDRESS_MAX, |entry| entry.host == host);
        state.bound_unconnected(UNCONNECTED_MAX, |_| true);
    }

    /// Removes a session that has ended.
    pub(crate) fn remove(&self, tsih: u16, handle: &Handle) {
        let mut state = self.lock();
        if state.entries.get(&tsih).is_some_and(|entry| entry.handle.is_same(handle)) {
            state.entries.remove(&tsih);
        }
    }

    /// Asks every session of a target to end.
    pub(crate) fn ask_target(&self, target_name: &str, directive: Directive) {
        let state = self.lock();
        let is_of = |entry: &&Entry| {
            entry.request.target_name.as_deref().is_some_and(|name| name.eq_ignore_ascii_case(target_name))
        };
        state.entries.values().filter(is_of).for_each(|entry| entry.handle.ask(directive));
    }

    /// The status of all sessions from this table, each with an inquiry to the session itself.
    pub(crate) fn inquire(&self) -> Vec<(SessionStatus, oneshot::Receiver<SessionReport>)> {
        let of = |(&tsih, entry): (&u16, &Entry)| (entry.status(tsih), entry.handle.inquire());
        self.lock().entries.iter().map(of).collect()
    }

    /// The status of all sessions from this table.
    pub(crate) fn statuses(&self) -> Vec<SessionStatus> {
        self.lock().entries.iter().map(|(&tsih, entry)| entry.status(tsih)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Its status without its own report.
    fn status(&self, tsih: u16) -> SessionStatus {
        let request = &self.request;
        SessionStatus {
            tsih,
            isid: request.isid.to_string(),
            initiator_name: request.initiator_name.clone(),
            authenticated_name: request.authenticated_name.clone(),
            target_name: request.target_name.clone(),
            session_type: request.session_type.as_str().into(),
            error_recovery_level: request.negotiated.error_recovery_level,
            negotiated: NegotiatedStatus(request.negotiated),
            activity: None,
        }
    }

    /// Updates the units that it sees. Returns whether it may go on.
    fn review(&self, find: impl Fn(&str) -> Option<Target>) -> bool {
        let Some(name) = &self.request.target_name else { return true };
        let Some(view) = find(name).and_then(|target| target.view(&self.request)) else {
            self.handle.ask(Directive::Drain);
            return false;
        };
        if let Some(luns) = &self.luns {
            luns.replace(&view);
        }
        true
    }
}

impl State {
    /// Ends the oldest sessions of a kind without a connection until at most `count_max` are left.
    fn bound_unconnected(&mut self, count_max: usize, is_of_kind: impl Fn(&Entry) -> bool) {
        let is_counted = |entry: &&Entry| entry.unconnected.is_some() && is_of_kind(entry);
        while self.entries.values().filter(is_counted).count() > count_max {
            self.end_oldest_unconnected(&is_of_kind);
        }
    }

    /// Ends the session of a kind that has been without a connection for longest. Returns whether
    /// there was one.
    fn end_oldest_unconnected(&mut self, is_of_kind: impl Fn(&Entry) -> bool) -> bool {
        let of_kind = self.entries.iter().filter(|(_, entry)| is_of_kind(entry));
        let oldest = of_kind.filter_map(|(&tsih, entry)| Some((entry.unconnected?, tsih))).min();
        let Some(entry) = oldest.and_then(|(_, tsih)| self.entries.remove(&tsih)) else { return false };
        self.stop(entry);
        true
    }

    /// Asks a session that was removed from the table to end.
    fn stop(&mut self, entry: Entry) {
        entry.handle.ask(Directive::Stop);
        self.leaving.extend(entry.port.map(|port| (port, entry.handle)));
    }

    /// The sessions of a port that have not ended yet.
    fn leaving_of(&mut self, port: Option<&Port>) -> Vec<Handle> {
        self.leaving.retain(|(_, handle)| !handle.has_ended());
        self.leaving.iter().filter(|(of, _)| Some(of) == port).map(|(_, handle)| handle.clone()).collect()
    }

    /// The next unused TSIH. There always is one: sessions are fewer than TSIHs.
    fn free_tsih(&mut self) -> u16 {
        loop {
            self.tsih_last = self.tsih_last.wrapping_add(1).max(1);
            if !self.entries.contains_key(&self.tsih_last) {
                return self.tsih_last;
            }
        }
    }
}

/// Whether a login may be for the session of an entry: only its own initiator port may join it. The
/// session itself checks the portal group.
fn is_for(entry: &Entry, request: &SessionRequest) -> bool {
    let in_its_group = SessionRequest { portal_group_tag: entry.request.portal_group_tag, ..request.clone() };
    entry.port.is_some() && entry.port == port_of(&in_its_group)
}

fn port_of(request: &SessionRequest) -> Option<Port> {
    let target = request.target_name.as_ref()?;
    let (initiator, target) = (request.initiator_name.to_ascii_lowercase(), target.to_ascii_lowercase());
    Some((initiator, request.isid, target, request.portal_group_tag))
}

fn refuse(status: LoginStatus, detail: &'static str) -> Decision {
    Decision::Refuse { status, detail }
}
