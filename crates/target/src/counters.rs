//! The server's counters, and the snapshot that is made of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::busy_poll::BusyPollCounts;
use base::clock::Instant;

use crate::rates::{Rates, Totals};
use crate::status::Status;
use crate::tally::Tally;

/// The server's counters.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) pdus_received: AtomicU64,
    pub(crate) pdus_sent: AtomicU64,
    pub(crate) digest_errors: AtomicU64,
    /// Totals of the sessions' busy polling.
    busy_poll: Mutex<BusyPollCounts>,
    pub(crate) connections_accepted: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    /// By status class and detail.
    logins_refused: Mutex<BTreeMap<String, u64>>,
    /// By target name and LUN. Sessions keep the entries they use.
    luns: Mutex<BTreeMap<(String, u64), Arc<Tally>>>,
    pub(crate) rates: Rates,
}

impl Counters {
    pub(crate) fn lun(&self, target_name: &str, lun: u64) -> Arc<Tally> {
        let mut luns = self.luns.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(luns.entry((target_name.to_owned(), lun)).or_default())
    }

    pub(crate) fn count_refused_login(&self, status: iscsi::pdu::LoginStatus) {
        let mut refused = self.logins_refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry(format!("{:04x}", status.0)).or_default() += 1;
    }

    /// Adds the busy polling of one session.
    pub(crate) fn count_busy_poll(&self, counts: BusyPollCounts) {
        *self.busy_poll.lock().unwrap_or_else(PoisonError::into_inner) += counts;
    }

    /// Samples the totals, for rates.
    pub(crate) fn sample(&self, now: Instant) {
        let totals: Totals = {
            let luns = self.luns.lock().unwrap_or_else(PoisonError::into_inner);
            luns.iter().map(|(key, tally)| (key.clone(), tally.totals())).collect()
        };
        self.rates.sample(now, totals);
    }

    /// A status with all that is counted here.
    pub(crate) fn status(&self, now: Instant) -> Status {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let luns = self.luns.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = self.logins_refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let of = |(key, tally): (&(String, u64), &Arc<Tally>)| {
            let mut status = tally.status(&key.0, key.1);
            status.rates = self.rates.of(now, key, tally.totals());
            status
        };
        Status {
            luns: luns.iter().map(of).collect(),
            pdus_received: value(&self.pdus_received),
            pdus_sent: value(&self.pdus_sent),
            connections_accepted: value(&self.connections_accepted),
            connections_refused: value(&self.connections_refused),
            logins_refused: refused.values().sum(),
            logins_refused_by_status: refused,
            digest_errors: value(&self.digest_errors),
            busy_poll: (*self.busy_poll.lock().unwrap_or_else(PoisonError::into_inner)).into(),
            ..Status::default()
        }
    }
}
