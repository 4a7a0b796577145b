//! Pings in both directions: whether the other end still answers.

use std::time::Duration;

use base::clock::Instant;
use base::serial::Serial32;

use super::super::outgoing::Outgoing;
use super::error::ConnectionError;
use super::timing::Timing;
use crate::framing::DataSegment;
use crate::pdu::{InitiatorTaskTag, NopIn, NopOut, TargetTransferTag};

/// The signs of life of a connection's target.
pub(super) struct Keepalive {
    /// Silence after which the target is pinged. Zero never pings.
    interval: Duration,
    /// Silence after a ping that means the target is gone.
    timeout: Duration,
    last_received: Instant,
    ping: Option<Ping>,
}

/// A ping under way.
struct Ping {
    tag: InitiatorTaskTag,
    deadline: Instant,
}

impl Keepalive {
    pub(super) fn new(now: Instant, timing: &Timing) -> Self {
        let (interval, timeout) = (timing.keepalive_interval, timing.keepalive_timeout);
        Self { interval, timeout, last_received: now, ping: None }
    }

    /// When anything was received last, or the connection began.
    pub(super) fn last_received(&self) -> Instant {
        self.last_received
    }

    /// Anything received counts as a sign of life.
    pub(super) fn note_received(&mut self, now: Instant) {
        self.last_received = now;
    }

    /// Takes over what another half of a pair has received.
    pub(super) fn join(&mut self, half: &Self) {
        self.last_received = self.last_received.max(half.last_received);
    }

    /// Notes the answer to a ping.
    pub(super) fn note_answer(&mut self, nop: &NopIn) {
        if self.ping.as_ref().is_some_and(|ping| Some(ping.tag) == nop.initiator_task_tag) {
            self.ping = None;
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.ping {
            Some(ping) => Some(ping.deadline),
            None if self.interval.is_zero() => None,
            None => Some(self.last_received + self.interval),
        }
    }

    /// Silence is answered with a ping, and silence after that ends the connection. The ping carries `cmd_sn`, the
    /// number of the next command.
    ///
    /// # Errors
    /// [`ConnectionError::Silent`].
    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        cmd_sn: Serial32,
        out: &mut Outgoing,
    ) -> Result<(), ConnectionError> {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return Ok(());
        }
        match &mut self.ping {
            Some(ping) => {
                let silent_until = self.last_received + self.timeout;
                if silent_until <= now {
                    return Err(ConnectionError::Silent);
                }
                ping.deadline = silent_until;
            }
            None => {
                let tag = out.next_control_tag();
                send_nop(Some(tag), None, 0, cmd_sn, out);
                self.ping = Some(Ping { tag, deadline: now + self.timeout });
            }
        }
        Ok(())
    }
}

/// Answers a NOP-In with a target transfer tag, which asks for a NOP-Out.
///
/// # Errors
/// When too many answers wait.
pub(super) fn answer_ping(nop: &NopIn, cmd_sn: Serial32, out: &mut Outgoing) -> Result<(), ConnectionError> {
    if let Some(target_transfer_tag) = nop.target_transfer_tag {
        out.note_reply()?;
        send_nop(None, Some(target_transfer_tag), nop.lun, cmd_sn, out);
    }
    Ok(())
}

fn send_nop(
    tag: Option<InitiatorTaskTag>,
    target_transfer_tag: Option<TargetTransferTag>,
    lun: u64,
    cmd_sn: Serial32,
    out: &mut Outgoing,
) {
    let nop = NopOut {
        is_immediate: true,
        lun,
        initiator_task_tag: tag,
        target_transfer_tag,
        cmd_sn,
        exp_stat_sn: out.exp_stat_sn,
    };
    out.push(&nop, DataSegment::Empty);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::{Digests, TransmitQueue};

    #[test]
    fn silence_is_answered_with_a_ping_and_then_with_the_end() {
        let second = Duration::from_secs(1);
        let timing = Timing {
            login_timeout: second,
            keepalive_interval: second * 5,
            keepalive_timeout: second * 3,
            task_management_timeout: second,
        };
        let mut out = Outgoing::new(TransmitQueue::new(Digests::default()), 8192);
        let mut keepalive = Keepalive::new(Instant::START, &timing);
        let at = |seconds: u32| Instant::START + second * seconds;
        assert_eq!(keepalive.handle_timeout(at(4), Serial32(1), &mut out), Ok(()));
        assert!(out.queue.is_empty(), "it is not silent for long enough");
        assert_eq!(keepalive.handle_timeout(at(5), Serial32(1), &mut out), Ok(()));
        assert_eq!((out.queue.pdu_count(), keepalive.deadline()), (1, Some(at(8))));
        keepalive.note_received(at(7));
        assert_eq!(keepalive.handle_timeout(at(8), Serial32(1), &mut out), Ok(()), "something came");
        assert_eq!(keepalive.handle_timeout(at(10), Serial32(1), &mut out), Err(ConnectionError::Silent));
    }
}
