//! Holds back the R2T of a write while other hosts that share the unit drop their copies: no buffer
//! is taken for the data meanwhile.
//!
//! The command itself passes the gate when its data has arrived, as it would without this; mostly
//! no host has a copy again by then. An initiator that does not send the requested data keeps no
//! other command from the blocks.

use std::future::Future;

use block::ByteRange;
use scsi::Cdb;

use crate::nexus::NexusId;
use crate::sharing::Direction;
use crate::unit::{LogicalUnit, range_in};

impl LogicalUnit {
    /// The range that a command changes with data-out; `None` for any other command.
    fn written_by(&self, cdb: &Cdb) -> Option<ByteRange> {
        let blocks = cdb.class().written?;
        range_in(&self.geometry(), blocks.lba, u64::from(blocks.count)).ok()
    }

    /// Whether the data of a command may have to wait, because the unit is shared.
    pub fn may_hold_data(&self, cdb: &Cdb) -> bool {
        self.access.sharing().is_some_and(|sharing| sharing.is_used()) && self.written_by(cdb).is_some()
    }

    /// Waits until no other host has copies of the blocks that a command writes, or until the unit goes. `None` where
    /// there is nothing to wait for.
    pub fn copies_dropped(
        &self,
        nexus: &NexusId,
        cdb: &Cdb,
    ) -> Option<impl Future<Output = ()> + Send + 'static + use<>> {
        let sharing = self.access.sharing().filter(|sharing| sharing.is_used())?;
        // A refusal here is repeated when the command is executed.
        let passage = sharing.arrive(nexus, self.written_by(cdb)?, Direction::Change).ok().flatten()?;
        Some(async move {
            let _ = passage.turn().await;
        })
    }
}
