//! SANITIZE (SBC-3 4.11, 5.20): all blocks are overwritten or erased, and no other command runs
//! meanwhile.
//!
//! ```text
//!          SANITIZE                       done
//!  ready ───────────► in progress ─────────────────► ready
//!    ▲                    │ the device failed
//!    │ a SANITIZE that    ▼
//!    └── succeeds, ◄── failed        (EXIT FAILURE MODE only if AUSE was set)
//! ```
//! Once it has begun, nothing stops it: not an abort, a reset, or the loss of its nexus. Until it
//! ends, every command that is not exempt is refused with SANITIZE IN PROGRESS and the progress. So
//! are commands that came before and still wait, for older tasks, a range or their next piece
//! ([`Admission`](crate::admission::Admission)). Requests that the device already has end first,
//! and are wiped.

use std::sync::Arc;

use block::{Buffer, ByteRange, Geometry, Request};
use futures_util::future::{Either, FutureExt, select};
use scsi::sanitize::{Overwrite, action};
use scsi::{Sense, cdb};

use super::read_write::{For, write_range};
use super::task::{Task, nothing, refuse};
use crate::change_marks::Held;
use crate::execution::Execution;
use crate::failure::{self, DeviceAccess, Failure};
use crate::limits::{SANITIZE_DURATION_MIN, SANITIZE_ERASE_BYTES, SANITIZE_PIECE_BYTES};
use crate::nexus::NexusId;
use crate::sharing::Direction;
use crate::unit::LogicalUnit;

/// The way to wipe the blocks.
enum Method {
    Overwrite(Overwrite),
    Erase,
}

pub(super) fn sanitize(mut task: Task<'_>, sanitize: cdb::Sanitize) -> Execution {
    let unit = Arc::clone(task.unit);
    let method = match method(&mut task, &sanitize) {
        Ok(Some(method)) => method,
        Ok(None) => return unit.sanitize.exit_failure().map_or_else(refuse, |()| nothing()),
        Err(failure) => return refuse(failure),
    };
    if let Err(failure) = unit.access.check_life(task.nexus) {
        return refuse(failure);
    }
    if let Err(sense) = unit.sanitize.begin(sanitize.is_unrestricted_exit) {
        return refuse(sense);
    }
    // Polled by the command and by the unit's workers: it goes on when the command is dropped.
    let work = carry_out(Arc::clone(&unit), task.nexus.clone(), method, task.admission.held).boxed().shared();
    let going_on = work.clone();
    unit.workers().spawn(async move {
        let _ = going_on.await;
    });
    if sanitize.is_immediate {
        return nothing();
    }
    let ticket = Arc::new(unit.enter(task.nexus, &task.command));
    let watched = Arc::clone(&ticket);
    let steps = async move {
        let aborted = std::pin::pin!(watched.aborted());
        let result = match select(work, aborted).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Ok(()),
        };
        crate::command::Outcome::from(result.map(|()| Buffer::empty()))
    };
    Execution::task(steps, ticket, unit.workers())
}

/// The method, checked before any block is wiped; `None` for EXIT FAILURE MODE.
fn method(task: &mut Task<'_>, sanitize: &cdb::Sanitize) -> Result<Option<Method>, Failure> {
    let geometry = task.unit.geometry();
    let length = usize::from(sanitize.parameter_list_length);
    let block_bytes = geometry.logical_block_bytes as usize;
    let is_length_right = match sanitize.service_action {
        action::OVERWRITE => (5..=block_bytes + 4).contains(&length),
        _ => length == 0,
    };
    if !is_length_right {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_byte(7).into());
    }
    if sanitize.service_action == action::EXIT_FAILURE_MODE {
        return Ok(None);
    }
    task.unit.check_medium()?;
    task.unit.check_writable(&geometry)?;
    if sanitize.service_action == action::BLOCK_ERASE {
        // Offered where LBPME is set; an erased block there reads as zeroes or has undefined
        // content.
        let is_offered = task.unit.is_thin(&geometry);
        return if is_offered { Ok(Some(Method::Erase)) } else { Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4).into()) };
    }
    let list = task.take_data_out(length as u64)?;
    let overwrite = Overwrite::parse(&list, block_bytes).map_err(|_| Sense::INVALID_FIELD_IN_PARAMETER_LIST)?;
    Ok(Some(Method::Overwrite(overwrite)))
}

/// Wipes the blocks, makes that durable, and records the result.
async fn carry_out(unit: Arc<LogicalUnit>, nexus: NexusId, method: Method, held: Held) -> Result<(), Failure> {
    let shortest = unit.options.clock.as_ref().map(|clock| clock.sleep(SANITIZE_DURATION_MIN));
    let mut result = wipe(&unit, &nexus, &method, held).await;
    if result.is_ok() {
        let response = unit.device().submit(Request::flush()).await;
        result = response.result.map_err(|error| failure::of_block_error(&error, DeviceAccess::Writing, None));
    }
    if let Some(shortest) = shortest {
        shortest.await;
    }
    unit.sanitize.end(result.is_ok());
    result.map_err(|_| Sense::SANITIZE_FAILED.into())
}

async fn wipe(unit: &LogicalUnit, nexus: &NexusId, method: &Method, held: Held) -> Result<(), Failure> {
    let geometry = unit.geometry();
    // Requests under way on the medium end first.
    let all = ByteRange { offset: 0, length: geometry.size_bytes };
    let _all = unit.access.enter(nexus, all, Direction::Change).take(None).await?;
    unit.record_change(held, ByteRange { offset: 0, length: u64::MAX }).await?;
    match method {
        Method::Erase => erase(unit, &geometry).await,
        Method::Overwrite(overwrite) => self::overwrite((unit, nexus.submitter()), &geometry, overwrite).await,
    }
}

async fn erase(unit: &LogicalUnit, geometry: &Geometry) -> Result<(), Failure> {
    let mut done = 0;
    while done < geometry.size_bytes {
        let length = SANITIZE_ERASE_BYTES.min(geometry.size_bytes - done);
        // Zeroes, for which a thin device frees the space; a discard alone promises nothing where
        // LBPRZ is clear.
        let response = unit.device().submit(Request::write_zeroes(done, length, false, true)).await;
        response.result.map_err(|error| failure::of_block_error(&error, DeviceAccess::Writing, None))?;
        done += length;
        unit.sanitize.note_progress(done, geometry.size_bytes);
    }
    Ok(())
}

async fn overwrite(whose: For<'_>, geometry: &Geometry, overwrite: &Overwrite) -> Result<(), Failure> {
    let unit = whose.0;
    let block_bytes = geometry.logical_block_bytes as usize;
    let piece_max = SANITIZE_PIECE_BYTES.min(geometry.transfer_bytes_max as usize) / block_bytes * block_bytes;
    let total = geometry.size_bytes.saturating_mul(u64::from(overwrite.count));
    let mut done_in_all = 0;
    for pass in 0..overwrite.count {
        let mask = if overwrite.is_inverting && pass % 2 == 1 { 0xff } else { 0 };
        let block: Vec<u8> = overwrite.pattern.iter().cycle().take(block_bytes).map(|byte| byte ^ mask).collect();
        let mut done = 0;
        while done < geometry.size_bytes {
            let length = (geometry.size_bytes - done).min(piece_max as u64);
            let mut buffer = unit.options.work_buffers.acquire(length as usize).await;
            buffer.chunks_exact_mut(block_bytes).for_each(|place| place.copy_from_slice(&block));
            write_range(whose, done, buffer, false, done / block_bytes as u64).await?;
            done += length;
            done_in_all += length;
            unit.sanitize.note_progress(done_in_all, total);
        }
    }
    Ok(())
}
