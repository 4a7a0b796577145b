//! Pins: which operation may read and change which block, and for how long.
//!
//! An operation pins every block before it reads it, shared, and before it changes it, exclusive,
//! and keeps its pins to its end. So everything it reads is of one moment. Where one host has the
//! file system for itself, operations that change something take turns, and pins never wait. Where
//! several share it, a pin is a lock, and waits here for another host's.

use std::future::Future;

use block::ByteRange;
use block::range_lock::{RangeGuard, RangeLock};
use ext2::{Access, BlockNumber, Error, Object};

/// The mode of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pin {
    /// Other operations may read the block, too.
    Shared,
    /// No other operation reads or changes the block.
    Exclusive,
}

/// The pins of one host's operations.
pub trait Pins: Send + Sync + 'static {
    /// The pins of one operation; dropping it releases them.
    type Held: Send + 'static;

    /// Begins an operation without pins. Waits while no more may begin.
    fn begin(&self, access: Access) -> impl Future<Output = Result<Self::Held, Error>> + Send;

    /// Pins a block.
    ///
    /// # Errors
    /// `Conflict` where the operation has to give way to another.
    fn pin(
        &self,
        held: &mut Self::Held,
        block: BlockNumber,
        object: Object,
        pin: Pin,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// All operations have one lock.
const WHOLE: ByteRange = ByteRange { offset: 0, length: 1 };

/// The pins of a host that has all blocks for itself: operations that change something run one
/// after the other, those that only read run beside each other.
#[derive(Default)]
pub struct SingleHost {
    turns: RangeLock,
}

/// The turn of an operation.
pub struct Turn {
    may: Pin,
    _guard: RangeGuard,
}

impl Pins for SingleHost {
    type Held = Turn;

    async fn begin(&self, access: Access) -> Result<Turn, Error> {
        Ok(match access {
            Access::Read => Turn { may: Pin::Shared, _guard: self.turns.shared(WHOLE).await },
            Access::Change => Turn { may: Pin::Exclusive, _guard: self.turns.exclusive(WHOLE).await },
        })
    }

    async fn pin(&self, held: &mut Turn, block: BlockNumber, _object: Object, pin: Pin) -> Result<(), Error> {
        assert!(pin <= held.may, "an operation that only reads changes {block}");
        Ok(())
    }
}
