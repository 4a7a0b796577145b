//! Counters, and the snapshot of them that people look at.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Sessions, by TSIH.
    pub sessions: Vec<SessionStatus>,
    /// Connections, those still logging in included, oldest first.
    pub connections: Vec<ConnectionStatus>,
    /// Logical units that were used, by target name and LUN.
    pub luns: Vec<LunStatus>,
    /// PDUs received since the start.
    pub pdus_received: u64,
    /// PDUs sent since the start.
    pub pdus_sent: u64,
    /// Logins that were refused since the start.
    pub logins_refused: u64,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionStatus {
    /// Its handle.
    pub tsih: u16,
    /// InitiatorName.
    pub initiator_name: String,
    /// TargetName; `None` for a discovery session.
    pub target_name: Option<String>,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConnectionStatus {
    /// The initiator's address.
    pub peer: String,
    /// The address it reached.
    pub local: String,
}

/// One logical unit's use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LunStatus {
    /// TargetName.
    pub target_name: String,
    /// LUN.
    pub lun: u64,
    /// READ commands completed.
    pub reads: u64,
    /// Bytes they returned.
    pub read_bytes: u64,
    /// WRITE commands completed.
    pub writes: u64,
    /// Bytes they brought.
    pub written_bytes: u64,
    /// Other commands completed.
    pub others: u64,
    /// Commands that did not end with GOOD.
    pub failures: u64,
}

/// Counters of one logical unit.
#[derive(Default)]
pub(crate) struct LunCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    others: AtomicU64,
    failures: AtomicU64,
}

/// What a command does, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write { bytes: u64 },
    Other,
}

impl Use {
    pub(crate) fn of(operation_code: u8, data_out_bytes: usize) -> Self {
        match operation_code {
            0x08 | 0x28 | 0xa8 | 0x88 => Self::Read,
            0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e => Self::Write { bytes: data_out_bytes as u64 },
            _ => Self::Other,
        }
    }
}

impl LunCounters {
    pub(crate) fn count(&self, usage: Use, is_good: bool, data_in_bytes: usize) {
        let add = |counter: &AtomicU64, value: u64| {
            counter.fetch_add(value, Ordering::Relaxed);
        };
        if !is_good {
            add(&self.failures, 1);
        }
        match usage {
            Use::Read => {
                add(&self.reads, 1);
                add(&self.read_bytes, data_in_bytes as u64);
            }
            Use::Write { bytes } => {
                add(&self.writes, 1);
                add(&self.written_bytes, bytes);
            }
            Use::Other => add(&self.others, 1),
        }
    }
}

/// The server's counters.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) pdus_received: AtomicU64,
    pub(crate) pdus_sent: AtomicU64,
    pub(crate) logins_refused: AtomicU64,
    /// By target name and LUN. Connections keep the entries they use.
    luns: Mutex<BTreeMap<(String, u64), Arc<LunCounters>>>,
}

impl Counters {
    pub(crate) fn lun(&self, target_name: &str, lun: u64) -> Arc<LunCounters> {
        let mut luns = self.luns.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(luns.entry((target_name.to_owned(), lun)).or_default())
    }

    pub(crate) fn lun_statuses(&self) -> Vec<LunStatus> {
        let luns = self.luns.lock().unwrap_or_else(PoisonError::into_inner);
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of = |((target_name, lun), counters): (&(String, u64), &Arc<LunCounters>)| LunStatus {
            target_name: target_name.clone(),
            lun: *lun,
            reads: value(&counters.reads),
            read_bytes: value(&counters.read_bytes),
            writes: value(&counters.writes),
            written_bytes: value(&counters.written_bytes),
            others: value(&counters.others),
            failures: value(&counters.failures),
        };
        luns.iter().map(of).collect()
    }
}
