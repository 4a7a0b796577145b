//! A command's way through the gate: it arrives, waits for its turn, and ends what it began when it is dropped.

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

/// What a command does with blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// It gives them to its initiator, who may keep them.
    Read,
    /// It looks at them itself.
    Look,
    /// It changes them.
    Change,
}

/// A command at the gate, and past it. Dropped, it has never come, or has ended.
pub(crate) struct Passage {
    sharing: Arc<Sharing>,
    command: CommandId,
    client: Option<ClientId>,
    at: At,
}

/// Where a command was at once when it came. Most pass: whoever decides about locks meanwhile holds them up once, and
/// not again each time they look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It waits at the gate.
    Gate,
    /// It changes blocks, and the gate has to hear of its end.
    Change,
    /// It reads, and the gate knows nothing of it any more.
    Read,
}

impl Sharing {
    /// A command of a nexus arrives at the gate; its place among others is taken at once.
    ///
    /// # Errors
    /// What its initiator is told when its client does not live any more, or the gate is full.
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
                state.arrived.insert(command, Arrived { client, waker: None, verdict });
            }
            Ok(Some(Passage { sharing: Arc::clone(self), command, client, at }))
        })
    }
}

impl Passage {
    /// Waits until the command may pass.
    ///
    /// # Errors
    /// What its initiator is told when it must not.
    pub(crate) fn turn(&self) -> Turn<'_> {
        Turn(self)
    }

    /// Whether the client of the command still lives. Asked by whoever has the range: a fence waits for all ranges.
    ///
    /// # Errors
    /// What its initiator is told when it does not.
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
            // Whichever of both it still is at the gate: a change under way, something that waits, or nothing any more.
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
    use block::memory::MemoryDevice;
    use block::{Device, Identity};

    fn sharing() -> Arc<Sharing> {
        let geometry = MemoryDevice::new(1 << 20, Identity::default()).geometry();
        Sharing::new(&SharingOptions::default(), &geometry, Arc::new(VirtualClock::default()))
    }

    /// Whoever looks there waits for everybody who decides about locks.
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
}
