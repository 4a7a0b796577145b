//! The one way to the blocks of a unit: whoever reads or changes some has them for so long, alone or with others who
//! read.
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

/// Everybody's way to the blocks of one unit.
pub(crate) struct Access {
    ranges: RangeLock,
    /// Commands that change a long range piece by piece, each piece with its blocks alone.
    repeats: RangeLock,
    sharing: Option<Arc<Sharing>>,
}

/// Blocks that a command has. They are given back before the gate hears of it: what waits there finds them free.
pub(crate) struct Entry {
    _range: RangeGuard,
    _passage: Option<Passage>,
}

/// What a command took its place in when it came.
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

    /// The ranges alone, for who changes nothing that is on the medium.
    pub(crate) fn ranges(&self) -> &RangeLock {
        &self.ranges
    }

    /// The turn of a command that will change this range piece by piece, among those that do so: without it pieces of
    /// two would mix, and who wants a few of the blocks would wait for a piece of each. It is of no use to others, and
    /// nobody who has blocks waits for it.
    pub(crate) fn repeat(&self, range: ByteRange) -> Acquire {
        self.repeats.exclusive(range)
    }

    fn has_gate(&self) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| sharing.is_used())
    }

    /// Blocks to be read, or none when that would take waiting.
    pub(crate) fn try_read(&self, range: ByteRange) -> Option<RangeGuard> {
        let guard = self.ranges.try_shared(range)?;
        (!self.has_gate()).then_some(guard)
    }

    /// Blocks to be changed, or none when that would take waiting.
    pub(crate) fn try_change(&self, range: ByteRange) -> Option<RangeGuard> {
        let guard = self.ranges.try_exclusive(range)?;
        (!self.has_gate()).then_some(guard)
    }

    /// Whether what a nexus sends may have an effect.
    ///
    /// # Errors
    /// What it is told when its client does not live any more.
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
    /// Waits for the blocks. A command that is aborted while it waits at the gate leaves it; who has no ticket cannot
    /// be.
    ///
    /// # Errors
    /// What the initiator is told when its client does not live any more, the gate is full, or the command was aborted.
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
                    // Somebody shares the unit since the command came.
                    drop(guard);
                    access.place(&nexus, range, direction)?
                }
            };
        }
    }
}

async fn turn(passage: &Passage, ticket: Option<&Ticket>) -> Result<(), Failure> {
    let Some(ticket) = ticket else { return passage.turn().await };
    match select(passage.turn(), pin!(ticket.aborted())).await {
        Either::Left((verdict, _)) => verdict,
        // What the initiator is told, if anything, is the abort's to say.
        Either::Right(_) => Err(Failure::Status(Status::TaskAborted)),
    }
}
