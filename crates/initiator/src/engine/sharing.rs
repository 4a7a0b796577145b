//! The engine's side of the client of a shared LUN: SHARING OUT commands go out beside the requests, and no request
//! leaves that the client has no right to.

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use base::clock::Instant;
use block::grants::Standing;
use block::{Copies, Error, ErrorKind, Grants};
use iscsi::initiator::Outcome;
use iscsi::pdu::{AsyncEvent, AsyncMessage};
use scsi::sharing::Message;
use scsi::sharing::message::{ASYNC_EVENT, ASYNC_VCODE};

use super::jobs::Jobs;
use crate::error::LinkError;
use crate::job::{Job, Kind};
use crate::link::Link;
use crate::log_limit::LogLimit;
use crate::options::InitiatorOptions;
use crate::shared::Shared;
use crate::sharing::unanswered::withheld_time;
use crate::sharing::{SharingStatus, order};
use crate::unit::Unit;

/// What a client of a shared LUN has to do beside its requests; nothing for a LUN of one host.
pub(super) struct Sharing {
    options: Arc<InitiatorOptions>,
    shared: Arc<Shared>,
    message_log: LogLimit,
}

/// The result of [`Sharing::exchange`].
#[derive(Default)]
pub(super) struct Exchanged {
    pub(super) has_progressed: bool,
    /// The error of every request since this host was fenced.
    pub(super) fenced: Option<Error>,
    /// Whether the target was found to have started again.
    pub(super) is_new_start: bool,
}

impl Sharing {
    pub(super) fn new(options: Arc<InitiatorOptions>, shared: Arc<Shared>) -> Self {
        Self { options, shared, message_log: LogLimit::default() }
    }

    /// The timeout of a command. On a shared unit a command may wait until another host has
    /// cleaned. The target bounds that wait; to give up earlier would end writes with an unknown
    /// outcome, and let reads wait anew.
    pub(super) fn command_timeout(&self, unit: &Unit) -> Duration {
        let usual = self.options.command_timeout;
        let Some(support) = unit.sharing.filter(|_| self.options.is_shared) else { return usual };
        usual.max(withheld_time(&support))
    }

    /// Notes that a session has begun.
    pub(super) fn begin_session(&self) {
        let now = self.options.clock.now();
        if let Some(client) = self.shared.client() {
            client.with(|member, path| member.begin_session(now, path));
        }
    }

    /// Notes that the session has ended.
    pub(super) fn end_session(&self) {
        let now = self.options.clock.now();
        if let Some(client) = self.shared.client() {
            client.with(|member, path| member.end_session(now, path));
        }
    }

    /// Sends and receives the messages of a client of a shared LUN. None is sent with `is_settling`: none of our
    /// commands may be under way while the unit is read.
    pub(super) fn exchange(
        &self,
        link: &mut Link,
        context: &mut Context<'_>,
        now: Instant,
        unit: &Unit,
        is_settling: bool,
    ) -> Exchanged {
        let Some(client) = self.shared.client() else { return Exchanged::default() };
        client.with(|member, path| {
            member.note_width(path, link.is_wide());
            let mut has_progressed = member.poll(context, now, path);
            let fenced = member.over().cloned();
            while !is_settling && let Some((number, order)) = member.next_order(now, path) {
                let command = order.command(number, unit.lun, self.options.command_timeout);
                match order.is_immediate() {
                    true => link.session.submit_immediate(now, command),
                    false => link.session.submit(now, command),
                }
                has_progressed = true;
            }
            Exchanged { has_progressed, fenced, is_new_start: member.take_new_start(path) }
        })
    }

    /// Whether requests may be issued now.
    pub(super) fn may_issue(&self, now: Instant) -> bool {
        self.shared.client().is_none_or(|client| client.with(|member, path| member.may_issue(now, path)))
    }

    /// Whether another path of the client has a session.
    pub(super) fn has_other_path(&self) -> bool {
        self.shared.client().is_some_and(|client| client.with(|member, path| member.has_other_path(path)))
    }

    /// Why the session is to be dropped, if it is.
    pub(super) fn breach(&self) -> Option<LinkError> {
        self.shared.client()?.with(|member, path| match (member.is_flooded(path), member.is_stranger(path)) {
            (true, _) => Some(LinkError::Flooded),
            (_, true) => Some(LinkError::Stranger),
            (false, false) => member.lease_refusal(path).map(LinkError::Unit),
        })
    }

    /// The next job to issue. Where this client holds ranges alone, half of the queue depth is kept
    /// for writes to them and for flushes: a callback waits for these, and what fills the other
    /// half may wait for ranges that other hosts hold.
    pub(super) fn next_ready(&self, jobs: &Jobs, under_way: usize) -> Option<u64> {
        let grants = self.shared.copies().and_then(Copies::grants);
        let is_scarce = |grants: &&Grants| {
            under_way >= self.options.queue_depth / 2 && !grants.all(&[Standing::Held, Standing::Leaving]).is_empty()
        };
        let Some(grants) = grants.filter(is_scarce) else {
            return jobs.ready().next();
        };
        let goes_first = |order: &u64| {
            let job = jobs.get(*order);
            job.is_some_and(|job| matches!(job.kind, Kind::Flush) || job.is_mutation() && grants.is_held(job.range()))
        };
        jobs.ready().find(goes_first)
    }

    /// Why a mutation must wait: its range was held alone, and may be another host's by now. It waits until the range
    /// is reclaimed, and fails if it is lost, or if that was so since it came.
    pub(super) fn obstacle(&self, job: &Job) -> Option<Standing> {
        let grants = self.shared.copies().and_then(Copies::grants).filter(|_| job.is_mutation())?;
        match job.tenure {
            Some(_) if grants.whole_tenure() != job.tenure => Some(Standing::Lost),
            _ => grants.obstacle(job.range()),
        }
    }

    /// Unregisters from a shared LUN. Returns whether that is complete.
    pub(super) fn leave(&self, now: Instant) -> bool {
        self.shared.client().is_none_or(|client| client.with(|member, path| member.leave(now, path)))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.shared.client().is_none_or(|client| client.with(|member, path| member.is_idle(path)))
    }

    /// When the client has something to do next. It sends nothing with `is_settling`.
    pub(super) fn next_deadline(&self, is_settling: bool) -> Option<Instant> {
        self.shared.client()?.with(|member, path| member.next_deadline(path, !is_settling))
    }

    pub(super) fn status(&self) -> Option<SharingStatus> {
        let now = self.options.clock.now();
        self.shared.client().map(|client| client.with(|member, _| member.status(now)))
    }

    /// Handles a message of the target to a client of a shared LUN.
    pub(super) fn take_message(&mut self, header: &AsyncMessage, data: &[u8], unit: &Unit, now: Instant) {
        let AsyncEvent::Vendor { event: ASYNC_EVENT, code: ASYNC_VCODE, .. } = header.event else { return };
        let Some(client) = self.shared.client() else { return };
        // SenseLength comes first, and is zero.
        match data.get(2..).map(Message::parse) {
            Some(Ok(message)) if message.lun == unit.lun => {
                client.with(|member, path| member.handle_message(now, path, &message));
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => {
                if let Some(left_out) = self.message_log.admit(ErrorKind::Corrupt, now) {
                    tracing::warn!(place = self.options.place(), left_out, "a message that makes no sense");
                }
            }
        }
    }

    /// A command of the client has ended.
    pub(super) fn take_answer(&self, now: Instant, number: u64, outcome: &Outcome) {
        if let Some(client) = self.shared.client() {
            client.with(|member, path| member.handle_answer(now, path, number, order::answer(outcome)));
        }
    }

    /// The target does not know the session any more.
    pub(super) fn note_unknown(&self, now: Instant) {
        if let Some(client) = self.shared.client() {
            client.with(|member, path| member.note_unknown(now, path));
        }
    }

    pub(super) fn note_fenced(&self, now: Instant) {
        if let Some(client) = self.shared.client() {
            client.with(|member, _| member.note_fenced(now));
        }
    }
}
