//! The only way to the blocks of a unit: a command that reads or changes blocks holds their range
//! meanwhile, exclusively for a change, shared for a read.
//!
//! Where the unit is shared ([`crate::sharing`]), the gate comes first: a change waits there until no other host has a
//! copy of what it changes, which may take a minute and more. Nobody waits for the gate who has a range, or a buffer
//! that others wait for. Whether it has to be asked is looked at with the range in hand: a host that shares the unit
//! and reads these blocks had them before, and is known by then, or gets them later, and finds the new content. So a
//! unit that nobody shares costs one relaxed load.

use std::pin::pin;
use std::sync::Arc;

use block::ByteRange;
use block::range_lock::{Acquire, RangeGuard, RangeLock};
use futures_util::future::{Either, select};
use scsi::Status;

use crate::failure::Failure;
use crate::nexus::NexusId;
use crate::sharing::{Direction, Passage, Sharing};
use crate::task_set::Ticket;

/// The range locks and the gate of one unit.
pub(crate) struct Access {
    ranges: RangeLock,
    /// Commands that change a long range piece by piece; each piece takes its own range besides.
    repeats: RangeLock,
    sharing: Option<Arc<Sharing>>,
}

/// A range that a command holds, and its passage through the gate. The range is freed first: what
/// the gate lets pass finds it free.
pub(crate) struct Entry {
    _range: RangeGuard,
    _passage: Option<Passage>,
}

/// The queue in which a command took its place when it arrived.
enum Place {
    Gate(Passage),
    Ranges(Acquire),
}

impl Access {
    pub(crate) fn new(sharing: Option<Arc<Sharing>>) -> Self {
        Self { ranges: RangeLock::new(), repeats: RangeLock::new(), sharing }
    }

    /// The sharing of the unit, if it may be shared.
    pub(crate) fn sharing(&self) -> Option<&Arc<Sharing>> {
        self.sharing.as_ref()
    }

    /// The range lock without the gate, for commands that change nothing on the medium.
    pub(crate) fn ranges(&self) -> &RangeLock {
        &self.ranges
    }

    /// Waits for the turn of a command that changes this range piece by piece, among such commands:
    /// without turns pieces of two commands would mix, and another command would wait for a piece
    /// of each. It excludes no other commands, and no command waits for it while it holds a range.
    pub(crate) fn repeat(&self, range: ByteRange) -> Acquire {
        self.repeats.exclusive(range)
    }

    fn has_gate(&self) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| sharing.is_used())
    }

    /// The range for a read; `None` if the command would have to wait for it.
    pub(crate) fn try_read(&self, range: ByteRange) -> Option<RangeGuard> {
        let guard = self.ranges.try_shared(range)?;
        (!self.has_gate()).then_some(guard)
    }

    /// The range for a change; `None` if the command would have to wait for it.
    pub(crate) fn try_change(&self, range: ByteRange) -> Option<RangeGuard> {
        let guard = self.ranges.try_exclusive(range)?;
        (!self.has_gate()).then_some(guard)
    }

    /// Whether commands of a nexus may have an effect.
    ///
    /// # Errors
    /// The sense data for a nexus whose client has ended.
    pub(crate) fn check_life(&self, nexus: &NexusId) -> Result<(), Failure> {
        let used = self.sharing.as_ref().filter(|sharing| sharing.is_used());
        used.map_or(Ok(()), |sharing| sharing.check_life(nexus))
    }

    /// Waits at the gate, where there is one, and for no blocks yet: for who needs more than blocks, and holds nothing
    /// else that others wait for while it waits here.
    ///
    /// # Errors
    /// As [`Approach::take`].
    pub(crate) async fn pass(
        self: &Arc<Self>,
        nexus: &NexusId,
        (range, direction): (ByteRange, Direction),
        ticket: &Ticket,
    ) -> Result<Passed, Failure> {
        let passage = self.arrive(nexus, range, direction)?;
        if let Some(passage) = &passage {
            turn(passage, Some(ticket)).await?;
        }
        Ok(Passed { access: Arc::clone(self), range, direction, passage })
    }

    /// A command comes for blocks, and takes its place in line; [`Approach::take`] waits for them.
    pub(crate) fn enter(self: &Arc<Self>, nexus: &NexusId, range: ByteRange, direction: Direction) -> Approach {
        let place = self.place(nexus, range, direction);
        Approach { access: Arc::clone(self), nexus: nexus.clone(), range, direction, place }
    }

    fn place(&self, nexus: &NexusId, range: ByteRange, direction: Direction) -> Result<Place, Failure> {
        let passage = self.arrive(nexus, range, direction)?;
        Ok(passage.map_or_else(|| Place::Ranges(self.claim(range, direction)), Place::Gate))
    }

    fn arrive(&self, nexus: &NexusId, range: ByteRange, direction: Direction) -> Result<Option<Passage>, Failure> {
        let used = self.sharing.as_ref().filter(|sharing| sharing.is_used());
        used.map_or(Ok(None), |sharing| sharing.arrive(nexus, range, direction))
    }

    fn claim(&self, range: ByteRange, direction: Direction) -> Acquire {
        match direction {
            Direction::Read | Direction::Look => self.ranges.shared(range),
            Direction::Change => self.ranges.exclusive(range),
        }
    }
}

/// A command that has passed the gate, or came to none.
pub(crate) struct Passed {
    access: Arc<Access>,
    range: ByteRange,
    direction: Direction,
    passage: Option<Passage>,
}

impl Passed {
    /// Waits for the blocks; `None` when somebody shares the unit since the command came, and it has to pass the gate
    /// first.
    ///
    /// # Errors
    /// What the initiator is told when its client does not live any more.
    pub(crate) async fn take(self) -> Result<Option<Entry>, Failure> {
        let Self { access, range, direction, passage } = self;
        let guard = access.claim(range, direction).await;
        match &passage {
            Some(passage) => passage.check()?,
            None if !range.is_empty() && access.has_gate() => return Ok(None),
            None => {}
        }
        Ok(Some(Entry { _range: guard, _passage: passage }))
    }
}

/// A command that has its place in line.
pub(crate) struct Approach {
    access: Arc<Access>,
    nexus: NexusId,
    range: ByteRange,
    direction: Direction,
    place: Result<Place, Failure>,
}

impl Approach {
    /// Waits for the range. A command that is aborted while it waits at the gate leaves it; one
    /// without a ticket cannot be aborted.
    ///
    /// # Errors
    /// The client has ended, the gate is full, or the command was aborted.
    pub(crate) async fn take(self, ticket: Option<&Ticket>) -> Result<Entry, Failure> {
        let Self { access, nexus, range, direction, place } = self;
        let mut place = place?;
        loop {
            place = match place {
                Place::Gate(passage) => {
                    turn(&passage, ticket).await?;
                    let guard = access.claim(range, direction).await;
                    passage.check()?;
                    return Ok(Entry { _range: guard, _passage: Some(passage) });
                }
                Place::Ranges(acquire) => {
                    let guard = acquire.await;
                    if range.is_empty() || !access.has_gate() {
                        return Ok(Entry { _range: guard, _passage: None });
                    }
                    // A host has begun to share the unit since the command arrived.
                    drop(guard);
                    access.place(&nexus, range, direction)?
                }
            };
        }
    }
}

async fn turn(passage: &Passage, ticket: Option<&Ticket>) -> Result<(), Failure> {
    let Some(ticket) = ticket else { return passage.turn_of_its_own().await };
    match select(passage.turn(), pin!(ticket.aborted())).await {
        Either::Left((verdict, _)) => verdict,
        // The status that is sent, if any, depends on the kind of abort.
        Either::Right(_) => Err(Failure::Status(Status::TaskAborted)),
    }
}
