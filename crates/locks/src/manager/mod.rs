//! The target's end of sharing one logical unit: locks, callbacks, leases, fencing, and the gate for blocks.
//!
//! What it keeps true:
//! - No two owners hold a resource in modes that conflict, and whoever has to give one up is asked, has a deadline, and
//!   is fenced after it.
//! - Fencing has two steps. [`Output::Fence`] asks for the end of all that the client has under way; nothing that it
//!   held passes on before [`LockManager::fenced`] says that this is done, and before its lease is over: it may not
//!   have heard of it, and serves copies until then.
//! - A lease counts here from when a message was *received*, at the client from when it was *sent*: the client gives up
//!   first.
//! - After a start only reclaims are granted until every lease of the start before is over, and that this time has
//!   ended is durable before anything else is granted: after another start nobody can reclaim what was given to others.
//!
//! | file | holds |
//! |---|---|
//! | `requests` | locks asked for, given back, called back; transactions |
//! | `settle` | who is next, who has to give way, who is refused |
//! | `blocks` | reads and changes at the gate; open files |
//! | `alone` | ranges of the unit that one client holds alone: what it takes to get one, and who waits for its end |
//! | `lives` | registration, leases, fencing, the time after a start |
//! | `exchange` | messages to calls |

mod alone;
mod blocks;
mod exchange;
mod lives;
mod requests;
mod settle;

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
use crate::resource::{FileId, Resource};
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
    /// It did not take its messages.
    MailboxFull,
    /// The administrator asked for it.
    Administrator,
    /// It left by itself.
    Left,
}

/// What the target has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Output {
    /// Refuse all further commands of a client, end those under way, and call [`LockManager::fenced`].
    Fence(ClientId, FenceReason),
    /// There is mail for a client that had none.
    Mail(ClientId),
    /// A command that waited at the gate may pass.
    Pass(CommandId, Passage),
    /// Nobody has a file open any more: if it is unlinked, its blocks can go.
    LastClose(FileId),
    /// Keep durably that only clients of this start can reclaim after the next, and call
    /// [`LockManager::grace_end_kept`].
    KeepGraceEnd(BootEpoch),
}

/// Where the time after a start has come to.
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
    /// Commands for blocks that another client holds alone.
    withheld: Withheld,
    /// At the gate for tickets that want ranges of the unit alone, as a change of these.
    clearing: BTreeMap<CommandId, TicketNumber>,
    /// Those of them that have passed.
    cleared: Vec<CommandId>,
    clearing_next: u64,
    /// Resources whose holders have held them for long enough then.
    looks: BTreeSet<(Instant, Resource)>,
    /// Tickets about which something has changed since the search for circles began.
    suspects: BTreeSet<TicketNumber>,
    search: Search,
    /// It is not gone on with before.
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

    /// The next thing to do. Call it after every other call until it returns none.
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

    /// Who holds what, and who waits.
    pub fn table(&self) -> &LockTable {
        &self.table
    }

    /// Who is registered, and who was fenced.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Callbacks that wait for an answer.
    pub fn callbacks(&self) -> &Callbacks {
        &self.callbacks
    }

    /// Commands that wait, and who has copies of what.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Who has which file open.
    pub fn open_files(&self) -> &OpenFiles {
        &self.open_files
    }

    /// Open transactions.
    pub fn transactions(&self) -> &Transactions {
        &self.transactions
    }

    /// What is set.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Puts a message into a mailbox; a client that lets it overflow is fenced.
    fn post(&mut self, client: ClientId, message: ToClient) {
        let had_none = self.clients.mail(client).next().is_none();
        if !self.clients.post(client, message, &self.settings.limits) {
            self.begin_fence(client, FenceReason::MailboxFull);
        } else if had_none {
            self.outputs.push_back(Output::Mail(client));
        }
    }
}
