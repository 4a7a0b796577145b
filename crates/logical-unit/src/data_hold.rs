//! Data of writes that is not asked for yet: while other hosts that share the unit drop their copies, nobody's buffers
//! wait for them.
//!
//! The command itself passes the gate when its data is there, as it would without this; mostly nobody has a copy again
//! by then. An initiator that is asked for data and does not send it keeps nobody from the blocks.

use std::future::Future;

use block::ByteRange;
use scsi::Cdb;

use crate::nexus::NexusId;
use crate::sharing::Direction;
use crate::unit::{LogicalUnit, range_in};

impl LogicalUnit {
    /// The blocks that a command changes with data of its own; none for what is not such a command.
    fn written_by(&self, cdb: &Cdb) -> Option<ByteRange> {
        let blocks = cdb.class().written?;
        range_in(&self.geometry(), blocks.lba, u64::from(blocks.count)).ok()
    }

    /// Whether the data of a command may have to wait: somebody shares the unit.
    pub fn may_hold_data(&self, cdb: &Cdb) -> bool {
        self.access.sharing().is_some_and(|sharing| sharing.is_used()) && self.written_by(cdb).is_some()
    }

    /// Waits until nobody else has copies of the blocks that a command writes. None where nothing is waited for.
    pub fn copies_dropped(
        &self,
        nexus: &NexusId,
        cdb: &Cdb,
    ) -> Option<impl Future<Output = ()> + Send + 'static + use<>> {
        let sharing = self.access.sharing().filter(|sharing| sharing.is_used())?;
        // What is refused here is refused when the command is executed.
        let passage = sharing.arrive(nexus, self.written_by(cdb)?, Direction::Change).ok().flatten()?;
        Some(async move {
            let _ = passage.turn().await;
        })
    }
}
