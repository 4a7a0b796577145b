//! The sharing of one logical unit: its state behind a lock, and whether the unit is in shared use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use base::clock::{Clock, Instant};
use block::Geometry;
use block::range_lock::RangeLock;
use futures_util::task::AtomicWaker;
use locks::limits::Limits;
use locks::manager::LockManager;
use locks::resource::GroupSize;
use locks::settings::{Profile, Settings};
use scsi::sharing::Support;

use super::settings::SharingOptions;
use super::state::{Addressed, State};
use super::store::SharingStore;
use super::watch::Watch;
use super::wire::milliseconds;
use crate::failure::Failure;
use crate::limits::{GATE_COMMANDS_MAX, LOOKS_PER_LEASE, SHARED_BLOCK_BYTES, SHARED_GROUP_BYTES, SHARING_LOCKS_MAX};
use crate::nexus::NexusId;

/// The sharing of one logical unit.
pub(crate) struct Sharing {
    /// Whether commands have to pass the gate; changes only under `state`.
    is_used: AtomicBool,
    state: Mutex<State>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) store: Option<Arc<dyn SharingStore>>,
    pub(super) driver: AtomicWaker,
    /// The turn of saves.
    pub(super) turns: RangeLock,
    /// The last save failed, which was logged.
    pub(super) is_save_failing: AtomicBool,
    pub(super) block_bytes: u64,
    support: Support,
    pub(super) lease_ms: u32,
}

impl Sharing {
    pub(crate) fn new(options: &SharingOptions, geometry: &Geometry, clock: Arc<dyn Clock>) -> Arc<Self> {
        let block_bytes = u64::from(geometry.logical_block_bytes.max(SHARED_BLOCK_BYTES));
        let group = GroupSize::of_blocks((SHARED_GROUP_BYTES / block_bytes).max(1));
        let settings = Settings {
            profile: options.profile,
            lease: options.lease,
            callback_time: options.callback_time,
            callback_time_max: options.callback_time_max,
            deferral_step: options.callback_time / 2,
            hold_time_min: options.hold_time_min,
            limits: Limits { batch_max: SHARING_LOCKS_MAX, commands_max: GATE_COMMANDS_MAX, ..Limits::default() },
            ..Settings::new(geometry.size_bytes.div_ceil(block_bytes), group.expect("it has a block"))
        };
        let manager = LockManager::new(settings, options.saved.start(), clock.now());
        let support = Support {
            is_paper_profile: options.profile == Profile::Paper,
            locks_max: SHARING_LOCKS_MAX as u16,
            lease_ms: milliseconds(options.lease),
            callback_ms: milliseconds(options.callback_time),
            callback_ms_max: milliseconds(options.callback_time_max),
            hold_ms_min: milliseconds(options.hold_time_min),
            block_bytes: block_bytes as u32,
            untaken_max: u32::try_from(options.untaken_max).unwrap_or(u32::MAX),
            prefetch_registers: true,
            withholds: true,
        };
        let look_interval = options.lease / LOOKS_PER_LEASE;
        let state = State::new(manager, options, Watch::new(clock.now(), look_interval));
        Arc::new(Self {
            is_used: AtomicBool::new(state.is_used()),
            state: Mutex::new(state),
            clock,
            store: options.store.clone(),
            driver: AtomicWaker::new(),
            turns: RangeLock::new(),
            is_save_failing: AtomicBool::new(false),
            block_bytes,
            support,
            lease_ms: milliseconds(options.lease),
        })
    }

    /// Whether commands have to pass the gate. Called with the range held: a host that shares the
    /// unit and reads these blocks had them before, or gets them later.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Changes the state, settles it, and wakes the waiting tasks.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut State, Instant) -> R) -> R {
        let now = self.clock.now();
        let mut state = self.lock();
        state.note_time(now);
        let result = act(&mut state, now);
        let wakes = state.settle(now);
        self.is_used.store(state.is_used(), Ordering::Release);
        let needs_driver = state.needs_driver();
        drop(state);
        wakes.into_iter().for_each(Waker::wake);
        if needs_driver {
            self.driver.wake();
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether commands of a nexus may have an effect.
    ///
    /// # Errors
    /// The sense data for a nexus whose client has ended.
    pub(crate) fn check_life(&self, nexus: &NexusId) -> Result<(), Failure> {
        self.with(|state, now| state.client_of(now, nexus).map(|_| ()))
    }

    /// Whether a nexus belongs to a client, alive or fenced.
    pub(crate) fn has_client(&self, nexus: &NexusId) -> bool {
        self.is_used() && self.with(|state, _| state.bound.contains_key(nexus))
    }

    /// VPD page C1h.
    pub(crate) fn support(&self) -> Support {
        self.support
    }

    /// Removes a nexus. Its commands do not wait at the gate any more.
    pub(crate) fn remove_nexus(&self, nexus: &NexusId) {
        if self.is_used() {
            self.with(|state, now| {
                state.turn_away(now, nexus);
                state.lose_path(nexus);
            });
        }
    }

    /// Takes the next message for a nexus; `waker` is woken when there is one later, if the nexus
    /// belongs to a client.
    pub(crate) fn poll_message(&self, nexus: &NexusId, waker: &Waker) -> Option<Addressed> {
        if !self.is_used() {
            return None;
        }
        self.with(|state, now| state.poll_message(now, nexus, waker))
    }

    /// Sends messages again: a connection of a nexus is lost, perhaps with messages on their way.
    pub(crate) fn rewind_messages(&self, nexus: &NexusId) {
        if self.is_used() {
            self.with(|state, _| state.rewind_messages(nexus));
        }
    }
}
