//! The cost of marks for other hosts, by account: the time in which something is saved or cleared
//! for a mark while other commands wait.
//!
//! TAKE and CLEAR are carried out while the account has cost less than a share of the elapsed time,
//! and end with BUSY otherwise. CLEAR also costs what follows from it: changes by others are
//! recorded anew, on its account. TAKE has an account of its own, since a host that comes back
//! needs it before it can go on, however much others wrote meanwhile.
//!
//! All read-only nexuses share one account: their names may be made up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use base::clock::{Clock, Instant};
use scsi::Status;

use crate::change_marks::SavedMark;
use crate::change_marks::table::CONTENT_OWNER;
use crate::failure::Failure;
use crate::limits::{MARK_COST_CREDIT, MARK_COST_DEBT_MAX, MARK_COST_PART, MARK_COSTS_MAX};

/// The operation that is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    Take,
    Clear,
}

/// The account that is charged: an initiator name, or all read-only nexuses together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Account {
    purpose: Purpose,
    name: Option<String>,
}

impl Account {
    pub(super) fn new(purpose: Purpose, initiator: &str, is_reader: bool) -> Self {
        Self { purpose, name: (!is_reader).then(|| initiator.to_owned()) }
    }

    /// That of the content's id, which all hosts share.
    pub(super) fn of_content() -> Self {
        Self::new(Purpose::Clear, CONTENT_OWNER, false)
    }

    pub(super) fn of(purpose: Purpose, mark: &SavedMark) -> Self {
        Self::new(purpose, &mark.initiator, mark.is_of_reader)
    }
}

/// The accounts of one unit. Without a clock nothing is charged.
pub(super) struct Costs {
    clock: Option<Arc<dyn Clock>>,
    /// The time at which each account's cost will have been paid off. Paid accounts are removed
    /// soon.
    paid_at: Mutex<BTreeMap<Account, Instant>>,
}

impl Costs {
    pub(super) fn new(clock: Option<Arc<dyn Clock>>) -> Self {
        Self { clock, paid_at: Mutex::default() }
    }

    /// Whether an operation on this account may start now.
    ///
    /// # Errors
    /// BUSY, until enough of its cost is paid off.
    pub(super) fn check(&self, account: &Account) -> Result<(), Failure> {
        let Some(clock) = &self.clock else { return Ok(()) };
        let paid_at = self.paid_at.lock().unwrap_or_else(PoisonError::into_inner).get(account).copied();
        let is_owed = paid_at.is_some_and(|paid_at| paid_at.since(clock.now()) > MARK_COST_CREDIT);
        if is_owed { Err(Failure::Status(Status::Busy)) } else { Ok(()) }
    }

    /// Charges these accounts from now until the guard is dropped.
    pub(super) fn open(&self, accounts: BTreeSet<Account>) -> OpenCost<'_> {
        OpenCost { costs: self, accounts, since: self.clock.as_ref().map(|clock| clock.now()) }
    }

    fn charge(&self, accounts: BTreeSet<Account>, since: Instant, now: Instant) {
        let mut paid_at = self.paid_at.lock().unwrap_or_else(PoisonError::into_inner);
        paid_at.retain(|_, paid_at| *paid_at > now);
        for account in accounts {
            let before = paid_at.get(&account).copied().unwrap_or(now);
            let after = before + now.since(since) * MARK_COST_PART;
            paid_at.insert(account, after.min(now + MARK_COST_DEBT_MAX));
        }
        while paid_at.len() > MARK_COSTS_MAX {
            let first = paid_at.iter().min_by_key(|(_, paid_at)| **paid_at).map(|(account, _)| account.clone());
            first.map(|account| paid_at.remove(&account));
        }
    }
}

/// The guard of an operation that is being charged, however it ends.
pub(crate) struct OpenCost<'a> {
    costs: &'a Costs,
    accounts: BTreeSet<Account>,
    since: Option<Instant>,
}

impl Drop for OpenCost<'_> {
    fn drop(&mut self) {
        if let (Some(clock), Some(since)) = (&self.costs.clock, self.since) {
            self.costs.charge(std::mem::take(&mut self.accounts), since, clock.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::clock::VirtualClock;

    use super::*;

    #[test]
    fn accounts_are_paid_by_time_and_bounded_in_debt_and_number() {
        let clock = VirtualClock::new();
        let costs = Costs::new(Some(Arc::new(clock.clone())));
        let account = |name: &str| Account::new(Purpose::Clear, name, false);
        let spend = |name: &str, time| {
            let open = costs.open(BTreeSet::from([account(name)]));
            clock.advance(time);
            drop(open);
        };
        let may = |name: &str| costs.check(&account(name)).is_ok();
        spend("a", MARK_COST_CREDIT / MARK_COST_PART);
        assert!(may("a"), "within the credit");
        spend("a", Duration::from_millis(1));
        assert!(!may("a") && may("b"));
        assert!(costs.check(&Account::new(Purpose::Take, "a", false)).is_ok(), "another purpose");
        clock.advance(Duration::from_millis(20));
        assert!(may("a"));
        spend("a", MARK_COST_DEBT_MAX);
        clock.advance(MARK_COST_DEBT_MAX - MARK_COST_CREDIT - Duration::from_nanos(1));
        assert!(!may("a"));
        clock.advance(Duration::from_nanos(1));
        assert!(may("a"), "nobody waits longer");
        let many = costs.open((0..2 * MARK_COSTS_MAX).map(|index| account(&format!("n{index}"))).collect());
        clock.advance(Duration::from_secs(1));
        drop(many);
        assert_eq!(costs.paid_at.lock().unwrap().len(), MARK_COSTS_MAX);
    }

    #[test]
    fn who_may_only_read_has_one_account_whatever_the_name() {
        let readers = ["a", "b"].map(|name| Account::new(Purpose::Clear, name, true));
        assert_eq!(readers[0], readers[1]);
        assert_ne!(readers[0], Account::new(Purpose::Clear, "a", false));
    }
}
