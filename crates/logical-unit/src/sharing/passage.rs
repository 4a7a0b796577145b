//! A command's passage through the gate: it arrives, waits for its turn, and reports its end to the
//! gate when dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use block::ByteRange;
use locks::gate::{self, Change};
use locks::identity::{ClientId, CommandId};

use super::site::Sharing;
use super::state::Arrived;
use super::wire;
use crate::failure::Failure;
use crate::nexus::NexusId;

/// The use that a command makes of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// It returns them to its initiator, which may keep a copy.
    Read,
    /// It reads them for itself.
    Look,
    /// It changes them.
    Change,
}

/// A command at the gate, or past it. Dropping it withdraws the command, or reports its end.
pub(crate) struct Passage {
    sharing: Arc<Sharing>,
    command: CommandId,
    client: Option<ClientId>,
    at: At,
}

/// The state of a command right after it arrived. Most pass at once: these take the lock of the
/// sharing state once, and not again at each poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It waits at the gate.
    Gate,
    /// It changes blocks; its end must be reported to the gate.
    Change,
    /// It reads, and has left the gate.
    Read,
}

impl Sharing {
    /// A command of a nexus arrives at the gate; its place among others is taken at once.
    ///
    /// # Errors
    /// The sense data for a client that has ended, or for a full gate.
    pub(crate) fn arrive(
        self: &Arc<Self>,
        nexus: &NexusId,
        range: ByteRange,
        direction: Direction,
    ) -> Result<Option<Passage>, Failure> {
        self.with(|state, now| {
            let client = state.client_of(now, nexus)?;
            let Some(range) = wire::blocks(range, self.block_bytes) else { return Ok(None) };
            let command = CommandId(state.command_next);
            state.command_next += 1;
            let keeps = |client: &ClientId| state.members.get(client).is_some_and(|member| member.registers_reads);
            let passed = match direction {
                Direction::Read if client.as_ref().is_some_and(keeps) => {
                    state.manager.read(now, command, range, client)
                }
                Direction::Read | Direction::Look => state.manager.look(now, command, range, client),
                Direction::Change => {
                    let change = Change { range, by: client, is_under_grant: false };
                    state.manager.begin_change(now, command, change)
                }
            };
            let passed = passed.map_err(|error| wire::failure(&error, 0))?;
            let at = match passed {
                None => At::Gate,
                Some(gate::Passage::Change) => At::Change,
                Some(gate::Passage::Read(_)) => At::Read,
            };
            if at != At::Read {
                let verdict = (at == At::Change).then_some(Ok(()));
                let nexus = Some(nexus.clone());
                state.arrived.insert(command, Arrived { nexus, client, waker: None, verdict });
            }
            if state.is_over {
                state.close_gate(now);
            }
            Ok(Some(Passage { sharing: Arc::clone(self), command, client, at }))
        })
    }
}

impl Passage {
    /// Waits until the command may pass.
    ///
    /// # Errors
    /// The reason why it must not.
    pub(crate) fn turn(&self) -> Turn<'_> {
        Turn(self)
    }

    /// The same for a command that goes on when its nexus is gone.
    ///
    /// # Errors
    /// The reason why it must not.
    pub(crate) fn turn_of_its_own(&self) -> Turn<'_> {
        if self.at == At::Gate {
            self.sharing.with(|state, _| {
                if let Some(arrived) = state.arrived.get_mut(&self.command) {
                    arrived.nexus = None;
                }
            });
        }
        self.turn()
    }

    /// Whether the client of the command still lives. Checked with the range held: a fence waits
    /// for all ranges.
    ///
    /// # Errors
    /// The sense data for a client that has ended.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Some(client) = self.client else { return Ok(()) };
        let life = self.sharing.with(|state, now| state.manager.check_life(now, client));
        life.map_err(|error| wire::failure(&error, 0))
    }
}

/// The future of [`Passage::turn`].
pub(crate) struct Turn<'a>(&'a Passage);

impl Future for Turn<'_> {
    type Output = Result<(), Failure>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let command = self.0.command;
        if self.0.at != At::Gate {
            return Poll::Ready(Ok(()));
        }
        self.0.sharing.with(|state, _| match state.arrived.get_mut(&command) {
            Some(Arrived { verdict: Some(verdict), .. }) => Poll::Ready(*verdict),
            Some(arrived) => {
                arrived.waker = Some(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(Ok(())),
        })
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        if self.at == At::Read {
            return;
        }
        self.sharing.with(|state, now| {
            state.arrived.remove(&self.command);
            // At the gate it is still one of these: a change under way, a command that waits, or
            // nothing.
            if state.manager.end_change(now, self.command, false).is_err() {
                let _ = state.manager.cancel_command(now, self.command);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::SharingOptions;
    use base::clock::VirtualClock;
    use block::completion::Workers;
    use block::memory::MemoryDevice;
    use block::range_lock::RangeLock;
    use block::{Device, Identity};
    use futures_util::FutureExt;
    use scsi::Sense;

    fn device() -> MemoryDevice {
        MemoryDevice::new(1 << 20, Identity::default())
    }

    fn sharing() -> Arc<Sharing> {
        Sharing::new(&SharingOptions::default(), &device().geometry(), Arc::new(VirtualClock::default()))
    }

    /// Polling the gate would wait for the lock of the sharing state.
    #[test]
    fn a_read_that_passes_at_once_has_nothing_to_do_at_the_gate_any_more() {
        let sharing = sharing();
        let nexus = NexusId::new("a stock initiator");
        let arrive = |direction| {
            let range = ByteRange { offset: 0, length: 4096 };
            sharing.arrive(&nexus, range, direction).expect("nobody is fenced").expect("there are blocks")
        };
        let counts = || sharing.with(|state, _| (state.arrived.len(), state.manager.gate().command_count()));
        let read = arrive(Direction::Read);
        assert_eq!((counts(), read.at), ((0, 0), At::Read));
        let change = arrive(Direction::Change);
        assert_eq!((counts(), change.at), ((1, 1), At::Change));
        let later = arrive(Direction::Look);
        assert_eq!((counts(), later.at), ((2, 2), At::Gate));
        drop(read);
        drop(change);
        assert_eq!(counts(), (1, 0), "who waited has passed");
        drop(later);
        assert_eq!(counts(), (0, 0));
    }

    /// It was on its way while the unit was taken from its map.
    #[test]
    fn nobody_waits_at_the_gate_of_a_unit_that_has_ended() {
        let sharing = sharing();
        let nexus = NexusId::new("a stock initiator");
        let arrive = |direction| {
            let range = ByteRange { offset: 0, length: 4096 };
            sharing.arrive(&nexus, range, direction).expect("nobody is fenced").expect("there are blocks")
        };
        let first = arrive(Direction::Change);
        let waiting = arrive(Direction::Look);
        assert_eq!((first.turn().now_or_never(), waiting.turn().now_or_never()), (Some(Ok(())), None));
        let run = Arc::clone(&sharing).run(RangeLock::new(), Workers::new(), Arc::new(device()));
        assert!(run.now_or_never().is_none(), "it runs until it is dropped");
        let gone = Some(Err(Failure::Sense(Sense::LOGICAL_UNIT_NOT_SUPPORTED)));
        let late = arrive(Direction::Look);
        assert_eq!((waiting.turn().now_or_never(), late.turn().now_or_never()), (gone, gone));
        assert_eq!(first.turn().now_or_never(), Some(Ok(())), "who has passed finishes");
        drop((first, waiting, late));
        assert_eq!(sharing.with(|state, _| (state.arrived.len(), state.manager.gate().command_count())), (0, 0));
    }
}
