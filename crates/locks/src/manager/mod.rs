//! The target's end of sharing one logical unit: locks, callbacks, leases, fencing, and the gate for blocks.
//!
//! What it keeps true:
//! - No two owners hold a resource in modes that conflict. A holder that has to give a lock up gets
//!   a callback with a deadline, and is fenced after it.
//! - Fencing has two steps. [`Output::Fence`] asks for the end of the client's commands. Its locks
//!   do not pass on before [`LockManager::fenced`] reports that this is done, and before its lease
//!   is over: it may not know of the fence, and uses copies until then.
//! - A lease counts here from when a message was *received*, at the client from when it was *sent*:
//!   the client gives up first.
//! - After a start only reclaims are granted until every lease of earlier starts is over. The end
//!   of this time is made durable before anything else is granted: after another start no client
//!   can reclaim what was granted to others.
//!
//! A file calls only what is below it in this table:
//!
//! | file | holds |
//! |---|---|
//! | `exchange` | dispatches messages to calls |
//! | `requests` | locks requested, given back, called back; transactions |
//! | `blocks` | reads and changes at the gate; open files |
//! | `lives` | registration, leases, fencing, the time after a start |
//! | `settle` | decides what is granted, called back and refused |
//! | `alone` | ranges of the unit that one client holds alone: their grants, and the commands that wait |
//! | `steps` | commands that pass the gate, and copies in their way |
//! | `calling_back` | holders that have to give up what others wait for |
//! | `mailboxes` | messages for clients; a client that takes none is fenced |

mod alone;
mod blocks;
mod calling_back;
mod exchange;
mod lives;
mod mailboxes;
mod requests;
mod settle;
mod steps;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::clock::Instant;

use crate::callbacks::Callbacks;
use crate::clients::Clients;
use crate::deadlock::Search;
use crate::gate::{Gate, Passage};
use crate::identity::{BootEpoch, ClientId, CommandId};
use crate::lock_table::LockTable;
use crate::message::ToClient;
use crate::open_files::OpenFiles;
use crate::queue::TicketNumber;
use crate::resource::Resource;
use crate::settings::{Settings, Start};
use crate::transactions::Transactions;
use crate::withheld::Withheld;

/// Why a client is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FenceReason {
    /// It was silent for longer than its lease.
    LeaseOver,
    /// It did not answer a callback in time.
    CallbackUnanswered,
    /// It left too many messages untaken.
    MailboxFull,
    /// The administrator asked for it.
    Administrator,
    /// It left by itself.
    Left,
}

/// An action that the target has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Output {
    /// Refuse all further commands of a client, end those under way, and call [`LockManager::fenced`].
    Fence(ClientId, FenceReason),
    /// There is mail for a client that had none.
    Mail(ClientId),
    /// A command that waited at the gate may pass.
    Pass(CommandId, Passage),
    /// A client was fenced that had files open which no client has open any more: who keeps unlinked files looks again.
    LastClose,
    /// Make durable that only clients of this start can reclaim after the next, and call
    /// [`LockManager::grace_end_kept`].
    KeepGraceEnd(BootEpoch),
}

/// The state of the grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Grace {
    /// Reclaims are granted until then.
    Until(Instant),
    /// Its end is being kept durably.
    Ending,
    Over,
}

/// The lock manager of one logical unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockManager {
    settings: Settings,
    start: Start,
    grace: Grace,
    clients: Clients,
    transactions: Transactions,
    open_files: OpenFiles,
    table: LockTable,
    callbacks: Callbacks,
    gate: Gate,
    /// Commands that wait because another client holds their blocks alone.
    withheld: Withheld,
    /// The changes at the gate that clear a range for a ticket which wants it alone.
    clearing: BTreeMap<CommandId, TicketNumber>,
    /// Those of them that have passed.
    cleared: Vec<CommandId>,
    clearing_next: u64,
    /// Resources, with the time at which their holders have held them for long enough.
    looks: BTreeSet<(Instant, Resource)>,
    /// Tickets that changed since the search for circles began.
    suspects: BTreeSet<TicketNumber>,
    search: Search,
    /// The time before which that search is not continued.
    search_again: Instant,
    birth_next: u64,
    outputs: VecDeque<Output>,
}

impl LockManager {
    /// The manager of a logical unit whose target starts at `now`.
    pub fn new(settings: Settings, start: Start, now: Instant) -> Self {
        let grace = start.longest_lease.map_or(Grace::Over, |lease| Grace::Until(now + lease));
        Self {
            grace,
            clients: Clients::new(start.boot_epoch),
            transactions: Transactions::default(),
            open_files: OpenFiles::default(),
            table: LockTable::default(),
            callbacks: Callbacks::default(),
            gate: Gate::new(start.boot_epoch, grace != Grace::Over),
            withheld: Withheld::default(),
            clearing: BTreeMap::new(),
            cleared: Vec::new(),
            clearing_next: 0,
            looks: BTreeSet::new(),
            suspects: BTreeSet::new(),
            search: Search::default(),
            search_again: Instant::START,
            birth_next: 0,
            outputs: VecDeque::new(),
            settings,
            start,
        }
    }

    /// The next action. Call it after every other call until it returns `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The next message for a client, in order.
    pub fn poll_message(&mut self, client: ClientId) -> Option<ToClient> {
        self.clients.take_mail(client)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        let grace = match self.grace {
            Grace::Until(end) => Some(end),
            Grace::Ending | Grace::Over => None,
        };
        let look = self.looks.first().map(|(at, _)| *at);
        let is_to_search = !(self.suspects.is_empty() && self.search.is_over());
        let search = is_to_search.then_some(self.search_again);
        let unseen = self.table.is_touched().then_some(Instant::START);
        [grace, look, search, unseen, self.clients.next_deadline(), self.callbacks.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Granted locks and waiting requests.
    pub fn table(&self) -> &LockTable {
        &self.table
    }

    /// Registered and recently fenced clients.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Callbacks that wait for an answer.
    pub fn callbacks(&self) -> &Callbacks {
        &self.callbacks
    }

    /// Commands at the gate, and registered copies.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The open files of all clients.
    pub fn open_files(&self) -> &OpenFiles {
        &self.open_files
    }

    /// Count of the locks that a client holds or waits for, and of the times that it has files open.
    pub fn holdings(&self, client: ClientId) -> usize {
        self.table.lock_count(client) + self.open_files.count_of(client)
    }

    /// The same of all clients.
    pub fn holdings_of_all(&self) -> usize {
        self.table.lock_count_of_all() + self.open_files.count()
    }

    /// Open transactions.
    pub fn transactions(&self) -> &Transactions {
        &self.transactions
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether the grace period lasts, in which only reclaims are granted.
    pub fn is_in_grace(&self) -> bool {
        self.grace != Grace::Over
    }
}
