//! Who may read and change which block, and for how long.
//!
//! An operation pins every block before it reads it, shared, and before it changes it, exclusive, and keeps its pins to
//! its end. So what it reads is of one moment. Where one host has the file system for itself, operations that change
//! something take turns, and no pin has anything to wait for. Where several share it, a pin is a lock, and one that
//! another host has is waited for here.

use std::future::Future;

use block::ByteRange;
use block::range_lock::{RangeGuard, RangeLock};
use ext2::{Access, BlockNumber, Error, Object};

/// How a block is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pin {
    /// Others may read it, too.
    Shared,
    /// Nobody else reads or changes it.
    Exclusive,
}

/// The pins of one host's operations.
pub trait Pins: Send + Sync + 'static {
    /// What one operation holds. Dropped, it is given back.
    type Held: Send + 'static;

    /// An operation begins, and holds nothing yet. It waits where no more may begin.
    fn begin(&self, access: Access) -> impl Future<Output = Result<Self::Held, Error>> + Send;

    /// Holds a block from now on.
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

/// One host has all blocks: operations that change something run one after the other, those that read beside each
/// other.
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
