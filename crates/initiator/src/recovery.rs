//! Lost connections of a session that goes on ([`iscsi::initiator::recovery`]): one at a time and all together.
//!
//! ```text
//! Asking ──► Asked by a connection ──► Waiting (Time2Wait) ──► HandingOver ──► over
//!    ▲               │ that one is lost, too
//!    └───────────────┘
//! ```
//!
//! A recovery that is not over by its deadline loses the session, which is what would happen
//! without recovery.

use std::collections::VecDeque;
use std::time::Duration;

use base::clock::Instant;
use base::serial::Serial32;
use iscsi::initiator::{CONNECTION_RECOVERY_LEVEL_MIN, Removed, Session};
use iscsi::pdu::{InitiatorTaskTag, LogoutOutcome};

use crate::error::LinkError;
use crate::limits::RECOVERY_TIMEOUT;
use crate::wire::{Role, Wire};

/// The lost connections of a session.
#[derive(Default)]
pub(crate) struct Recoveries {
    under_way: Vec<Recovery>,
    done_count: u64,
}

/// One lost connection.
struct Recovery {
    cid: u16,
    stage: Stage,
    /// When it must be over.
    deadline: Instant,
}

enum Stage {
    Asking,
    /// By the connection with this CID.
    Asked(u16),
    Waiting {
        until: Instant,
        exp_cmd_sn: Serial32,
    },
    HandingOver {
        tags: VecDeque<InitiatorTaskTag>,
        exp_cmd_sn: Serial32,
    },
}

/// Whether commands may be given to a connection.
fn serves(wire: &Wire) -> bool {
    wire.role == Role::Serving && wire.connection.is_established()
}

impl Recoveries {
    /// Whether nothing is lost at present.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Count of lost connections whose tasks other connections took over.
    pub(crate) fn done_count(&self) -> u64 {
        self.done_count
    }

    /// Whether the session survives the loss of `wires[index]`: other connections serve, and the
    /// error recovery level allows it.
    pub(crate) fn can_do_without(session: &Session, wires: &[Wire], index: usize) -> bool {
        let level = session.negotiated().error_recovery_level;
        let is_member = wires.get(index).is_some_and(|wire| !matches!(wire.role, Role::Joining { .. }));
        let others = wires.iter().enumerate().filter(|(other, wire)| *other != index && serves(wire)).count();
        is_member && others > 0 && level >= CONNECTION_RECOVERY_LEVEL_MIN
    }

    /// Begins the recovery of a lost connection.
    pub(crate) fn begin(&mut self, now: Instant, cid: u16) {
        self.under_way.push(Recovery { cid, stage: Stage::Asking, deadline: now + RECOVERY_TIMEOUT });
    }

    /// When [`Recoveries::advance`] has something to do at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let due = |recovery: &Recovery| match recovery.stage {
            Stage::Waiting { until, .. } => until.min(recovery.deadline),
            _ => recovery.deadline,
        };
        self.under_way.iter().map(due).min()
    }

    /// Takes every step that can be taken now. Returns whether there was one.
    ///
    /// # Errors
    /// The session cannot go on.
    pub(crate) fn advance(
        &mut self,
        now: Instant,
        session: &mut Session,
        wires: &mut [Wire],
    ) -> Result<bool, LinkError> {
        if self.under_way.is_empty() {
            return Ok(false);
        }
        let mut has_progressed = false;
        for wire in wires.iter_mut() {
            while let Some(removed) = wire.connection.poll_removed() {
                has_progressed = true;
                self.handle_removed(now, removed)?;
            }
        }
        for recovery in &mut self.under_way {
            has_progressed |= recovery.advance(now, session, wires)?;
        }
        let before = self.under_way.len();
        self.under_way.retain(|recovery| !recovery.is_over());
        let done = before - self.under_way.len();
        self.done_count += done as u64;
        Ok(has_progressed || done > 0)
    }

    fn handle_removed(&mut self, now: Instant, removed: Removed) -> Result<(), LinkError> {
        let asked = |recovery: &&mut Recovery| recovery.cid == removed.cid && matches!(recovery.stage, Stage::Asked(_));
        let Some(recovery) = self.under_way.iter_mut().find(asked) else { return Ok(()) };
        match removed.outcome {
            // A connection that the target does not know any more has no tasks left there.
            LogoutOutcome::Closed | LogoutOutcome::CidNotFound => {
                let until = now + Duration::from_secs(removed.wait_seconds.into());
                recovery.stage = Stage::Waiting { until, exp_cmd_sn: removed.exp_cmd_sn };
                recovery.deadline = until + RECOVERY_TIMEOUT;
                Ok(())
            }
            LogoutOutcome::RecoveryNotSupported | LogoutOutcome::CleanupFailed => {
                Err(LinkError::NotRecovered(removed.outcome.to_string()))
            }
        }
    }
}

impl Recovery {
    fn advance(&mut self, now: Instant, session: &mut Session, wires: &mut [Wire]) -> Result<bool, LinkError> {
        let is_there = |cid| wires.iter().any(|wire| serves(wire) && wire.connection.cid() == cid);
        match &mut self.stage {
            Stage::Asked(by) if !is_there(*by) => {
                self.stage = Stage::Asking;
                Ok(true)
            }
            Stage::Asking => {
                let helper = wires.iter_mut().find(|wire| serves(wire));
                let helper = helper.ok_or_else(|| LinkError::NotRecovered("no connection is left".to_owned()))?;
                helper.connection.remove(session, self.cid);
                self.stage = Stage::Asked(helper.connection.cid());
                Ok(true)
            }
            Stage::Waiting { until, exp_cmd_sn } if *until <= now => {
                let (tags, exp_cmd_sn) = (session.tasks_of(self.cid).into(), *exp_cmd_sn);
                self.stage = Stage::HandingOver { tags, exp_cmd_sn };
                Ok(true)
            }
            Stage::HandingOver { tags, exp_cmd_sn } => {
                let moved = hand_over(now, session, wires, tags, *exp_cmd_sn);
                if tags.is_empty() {
                    session.forget_connection(self.cid);
                }
                Ok(moved)
            }
            Stage::Asked(_) | Stage::Waiting { .. } if self.deadline <= now => {
                Err(LinkError::NotRecovered("the target did not answer in time".to_owned()))
            }
            Stage::Asked(_) | Stage::Waiting { .. } => Ok(false),
        }
    }

    fn is_over(&self) -> bool {
        matches!(&self.stage, Stage::HandingOver { tags, .. } if tags.is_empty())
    }
}

/// Gives tasks to connections, each to the one with the fewest bytes under way, as long as one takes them.
fn hand_over(
    now: Instant,
    session: &mut Session,
    wires: &mut [Wire],
    tags: &mut VecDeque<InitiatorTaskTag>,
    exp_cmd_sn: Serial32,
) -> bool {
    let mut has_moved = false;
    while let Some(&tag) = tags.front() {
        let able = wires.iter_mut().filter(|wire| serves(wire) && wire.connection.can_take_over());
        let Some(wire) = able.min_by_key(|wire| session.load(wire.connection.cid()).bytes) else { break };
        wire.connection.take_over(now, session, tag, exp_cmd_sn);
        tags.pop_front();
        has_moved = true;
    }
    has_moved
}
