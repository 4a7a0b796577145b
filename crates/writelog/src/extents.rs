//! The extents of a range: those of the log, and for the rest those of the origin.

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::range_lock::Acquire;
use block::{Error, Extent, ExtentKind, Response};

use crate::core::Core;
use crate::limits::UNIT_BYTES;
use crate::sectors::sectors_of;

pub(crate) async fn extents(core: Arc<Core>, range: ByteRange, place: Acquire) -> Response {
    let _guard = place.await;
    match core.extents(range).await {
        Ok(extents) => Response { result: Ok(()), buffer: Buffer::empty(), extents },
        Err(error) => Response::failed(error, Buffer::empty()),
    }
}

impl Core {
    /// The first extents of a range: up to the next change between log and origin, or as many as
    /// the origin returns.
    async fn extents(&self, range: ByteRange) -> Result<Vec<Extent>, Error> {
        let (sector, sectors) = sectors_of(range);
        let first = {
            let state = self.state();
            let mut dirty = state.contents.map.pieces(sector, sectors).filter(|piece| piece.tag.is_dirty());
            dirty.next()
        };
        let Some(first) = first else { return self.origin.device().extents(range.offset, range.length).await };
        if first.sector > sector {
            let length = (first.sector - sector) * UNIT_BYTES;
            return self.origin.device().extents(range.offset, length).await;
        }
        let kind = if first.is_zero() { ExtentKind::Hole } else { ExtentKind::Data };
        let range = ByteRange { offset: first.sector.offset(), length: first.sectors * UNIT_BYTES };
        Ok(vec![Extent { range, kind }])
    }
}
