//! The engine as a client of a shared LUN: SHARING OUT commands go out beside the requests, and no
//! request leaves that the client has no right to.

use std::task::Context;
use std::time::Duration;

use base::clock::Instant;
use block::grants::Standing;
use block::{Copies, Error, ErrorKind, Grants};
use iscsi::initiator::Outcome;
use iscsi::pdu::{AsyncEvent, AsyncMessage};
use scsi::sharing::Message;
use scsi::sharing::message::{ASYNC_EVENT, ASYNC_VCODE};

use super::{Engine, SHARED_STARTED_AGAIN};
use crate::job::Kind;
use crate::limits::{WITHHELD_MARGIN, WITHHELD_TIME_MAX};
use crate::link::Link;
use crate::sharing::member::Continuity;
use crate::sharing::order;
use crate::verdict::Attention;

impl Engine {
    /// The timeout of a command. On a shared unit a command may wait until another host has
    /// cleaned. The target bounds that wait; to give up earlier would end writes with an unknown
    /// outcome, and let reads wait anew.
    pub(super) fn command_timeout(&self) -> Duration {
        let usual = self.options.command_timeout;
        let Some(support) = self.unit.sharing.filter(|_| self.options.is_shared) else { return usual };
        let withheld_ms = u64::from(support.callback_ms_max) + u64::from(support.lease_ms);
        usual.max((Duration::from_millis(withheld_ms) + WITHHELD_MARGIN).min(WITHHELD_TIME_MAX))
    }

    /// Notes that a session has begun.
    pub(crate) fn begin_session(&mut self) {
        let now = self.options.clock.now();
        if let Some(mut member) = self.shared.member() {
            member.begin_session(now);
        }
    }

    /// Sends and receives the messages of a client of a shared LUN. Returns whether there was
    /// progress.
    pub(super) fn share(&mut self, link: &mut Link, context: &mut Context<'_>, now: Instant) -> bool {
        let Some(mut member) = self.shared.member() else { return false };
        let mut has_progressed = member.poll(context, now);
        self.fenced = member.over().cloned();
        // None of our commands may be under way while the unit is read.
        let is_settling = self.attention > Attention::None && self.under_way.count() == 0;
        while !is_settling && let Some((number, order)) = member.next_order(now) {
            let command = order.command(number, self.unit.lun, self.options.command_timeout);
            match order.is_immediate() {
                true => link.session.submit_immediate(now, command),
                false => link.session.submit(now, command),
            }
            has_progressed = true;
        }
        if member.take_continuity() == Some(Continuity::NewStart) {
            drop(member);
            self.lose_retained(SHARED_STARTED_AGAIN);
        }
        has_progressed
    }

    /// The next job to issue. Where this client holds ranges alone, half of the queue depth is kept
    /// for writes to them and for flushes: a callback waits for these, and what fills the other
    /// half may wait for ranges that other hosts hold.
    pub(super) fn next_ready(&self) -> Option<u64> {
        let grants = self.shared.copies().and_then(Copies::grants);
        let is_scarce = |grants: &&Grants| {
            self.under_way.count() >= self.options.queue_depth / 2
                && !grants.all(&[Standing::Held, Standing::Leaving]).is_empty()
        };
        let Some(grants) = grants.filter(is_scarce) else {
            return self.ready.first().copied();
        };
        let goes_first = |order: &u64| {
            let job = self.jobs.get(order);
            job.is_some_and(|job| matches!(job.kind, Kind::Flush) || job.is_mutation() && grants.is_held(job.range()))
        };
        self.ready.iter().copied().find(goes_first)
    }

    /// Whether a mutation must wait, because its range was held alone and may be another host's by
    /// now. It waits until the range is reclaimed, and fails if it is lost. It fails as well where
    /// this host is not to change anything any more, since others did.
    pub(super) fn holds_back(&mut self, now: Instant, order: u64) -> bool {
        if let Some(refusal) = self.shared.change_refusal()
            && let Some(job) = self.jobs.get_mut(&order).filter(|job| job.changes_for_a_caller())
        {
            job.give_up(refusal.clone());
            self.go_on(order);
            return true;
        }
        let grants = self.shared.copies().and_then(Copies::grants);
        let Some((grants, job)) = grants.zip(self.jobs.get(&order)).filter(|(_, job)| job.is_mutation()) else {
            return false;
        };
        match grants.obstacle(job.range()) {
            Some(Standing::Lost) => {
                let words = format!("{} is not done: the range may be another host's by now", job.words());
                if let Some(job) = self.jobs.get_mut(&order) {
                    job.give_up(Error::new(ErrorKind::Gone, words));
                }
                self.go_on(order);
                true
            }
            Some(_) => {
                self.delay(now, order);
                true
            }
            None => false,
        }
    }

    /// Unregisters from a shared LUN. Returns whether that is complete.
    pub(super) fn leave(&mut self, now: Instant) -> bool {
        self.shared.member().is_none_or(|mut member| member.leave(now))
    }

    pub(super) fn is_member_idle(&self) -> bool {
        self.shared.member().is_none_or(|member| member.is_idle())
    }

    /// Reports as lost what the LUN had not made durable, and what is not written again because its target did this.
    pub(super) fn lose_retained(&mut self, what: &str) {
        if self.retained.is_empty() {
            return;
        }
        self.retained.release(self.retained.mark());
        let words = format!("the target of {} {what}", self.options.place());
        self.lose_write(Error::new(ErrorKind::OutcomeUnknown, words));
    }

    /// Handles a message of the target to a client of a shared LUN.
    pub(super) fn take_message(&mut self, header: &AsyncMessage, data: &[u8], now: Instant) {
        let AsyncEvent::Vendor { event: ASYNC_EVENT, code: ASYNC_VCODE, .. } = header.event else { return };
        let Some(mut member) = self.shared.member() else { return };
        // SenseLength comes first, and is zero.
        match data.get(2..).map(Message::parse) {
            Some(Ok(message)) if message.lun == self.unit.lun => member.handle_message(now, &message),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => {
                if let Some(left_out) = self.message_log.admit(ErrorKind::Corrupt, now) {
                    tracing::warn!(place = self.options.place(), left_out, "a message that makes no sense");
                }
            }
        }
    }

    /// Whether the target asks for more than a client of a shared LUN hears.
    pub(super) fn is_flooded(&self) -> bool {
        self.shared.member().is_some_and(|member| member.is_flooded())
    }

    /// A command of the client has ended.
    pub(super) fn take_answer(&mut self, now: Instant, number: u64, outcome: &Outcome) {
        if let Some(mut member) = self.shared.member() {
            member.handle_answer(now, number, order::answer(outcome));
        }
    }

    pub(super) fn note_fenced(&self, now: Instant) {
        if let Some(mut member) = self.shared.member() {
            member.note_fenced(now);
        }
    }
}
