//! The extents of a range: those of the log, and for the rest those of the origin.

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::range_lock::Acquire;
use block::{Error, Extent, ExtentKind, Response};

use crate::limits::UNIT_BYTES;
use crate::log_state::LogState;
use crate::origin::Origin;
use crate::sectors::sectors_of;

/// Answers a request for the extents of a range once it has its place among overlapping requests.
pub(crate) async fn extents(log: Arc<LogState>, origin: Arc<Origin>, range: ByteRange, place: Acquire) -> Response {
    let _guard = place.await;
    match first_extents(&log, &origin, range).await {
        Ok(extents) => Response { result: Ok(()), buffer: Buffer::empty(), extents },
        Err(error) => Response::failed(error, Buffer::empty()),
    }
}

/// The first extents of a range: up to the next change between log and origin, or as many as
/// the origin returns.
async fn first_extents(log: &LogState, origin: &Origin, range: ByteRange) -> Result<Vec<Extent>, Error> {
    let (sector, sectors) = sectors_of(range);
    let first = {
        let state = log.state();
        let mut dirty = state.contents.map.pieces(sector, sectors).filter(|piece| piece.tag.is_dirty());
        dirty.next()
    };
    let Some(first) = first else { return origin.device().extents(range.offset, range.length).await };
    if first.sector > sector {
        let length = (first.sector - sector) * UNIT_BYTES;
        return origin.device().extents(range.offset, length).await;
    }
    let kind = if first.is_zero() { ExtentKind::Hole } else { ExtentKind::Data };
    let range = ByteRange { offset: first.sector.offset(), length: first.sectors * UNIT_BYTES };
    Ok(vec![Extent { range, kind }])
}
