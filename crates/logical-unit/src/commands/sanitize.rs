//! SANITIZE (SBC-3 4.11, 5.20): everything is overwritten or erased, and nothing else runs meanwhile.
//!
//! ```text
//!          SANITIZE                       done
//!  ready ───────────► in progress ─────────────────► ready
//!    ▲                    │ the device failed
//!    │ a SANITIZE that    ▼
//!    └── succeeds, ◄── failed        (EXIT FAILURE MODE only if AUSE was set)
//! ```
//! Once it has begun, nothing stops it: not an abort, a reset, or the loss of its nexus. While it goes on, every command that is not
//! exempt is answered that a sanitize is in progress, with how far it is. So are those that came before it and still wait, for older tasks, a range or
//! their next piece ([`Admission`](crate::admission::Admission)); what the device has taken from them already ends first, and is wiped.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use block::{Buffer, ByteRange, Geometry, Request};
use futures_util::future::{Either, FutureExt, select};
use scsi::sanitize::{Overwrite, action};
use scsi::{Cdb, Sense, cdb};

use super::read_write::write_range;
use super::{Task, nothing, refuse};
use crate::change_marks::Held;
use crate::execution::Execution;
use crate::failure::{self, Doing, Failure};
use crate::limits::{SANITIZE_DURATION_MIN, SANITIZE_ERASE_BYTES, SANITIZE_PIECE_BYTES};
use crate::unit::LogicalUnit;

/// Where a sanitize is.
#[derive(Default)]
pub(crate) struct SanitizeState {
    /// Zero when ready, else one more than its progress in 65536ths, or `FAILED`; so that a command costs one load.
    state: AtomicU32,
    /// How many have begun; it grows after `state` is no longer ready.
    begun: AtomicU32,
    /// AUSE of the one that failed.
    may_exit: Mutex<bool>,
}

/// How many sanitizes of a unit had begun at some moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SanitizesBegun(u32);

const READY: u32 = 0;
const FAILED: u32 = u32::MAX;

impl SanitizeState {
    /// Whether other commands may run.
    pub(crate) fn check(&self) -> Result<(), Sense> {
        match self.state.load(Ordering::Acquire) {
            READY => Ok(()),
            FAILED => Err(Sense::SANITIZE_FAILED),
            progress => Err(Sense::SANITIZE_IN_PROGRESS.with_progress(u16::try_from(progress - 1).unwrap_or(u16::MAX))),
        }
    }

    /// To be asked before [`check`](Self::check), so that none begins between the two unseen.
    pub(crate) fn begun(&self) -> SanitizesBegun {
        SanitizesBegun(self.begun.load(Ordering::Acquire))
    }

    /// Whether a command may go on that came when `known` had begun.
    ///
    /// # Errors
    /// SANITIZE IN PROGRESS, as at its beginning, even if it has ended by now.
    pub(crate) fn check_none_since(&self, known: SanitizesBegun) -> Result<(), Sense> {
        if self.begun() == known { Ok(()) } else { Err(Sense::SANITIZE_IN_PROGRESS.with_progress(0)) }
    }

    /// Begins, unless one is under way.
    fn begin(&self, may_exit: bool) -> Result<(), Sense> {
        let mut own = self.may_exit.lock().unwrap_or_else(PoisonError::into_inner);
        match self.state.load(Ordering::Acquire) {
            READY | FAILED => {
                *own = may_exit;
                self.state.store(1, Ordering::Release);
                self.begun.fetch_add(1, Ordering::Release);
                Ok(())
            }
            _ => self.check(),
        }
    }

    fn note_progress(&self, done: u64, total: u64) {
        let progress = u128::from(done) * 0xffff / u128::from(total.max(1));
        self.state.store(1 + u32::try_from(progress).unwrap_or(0xffff), Ordering::Release);
    }

    fn end(&self, is_done: bool) {
        self.state.store(if is_done { READY } else { FAILED }, Ordering::Release);
    }

    /// EXIT FAILURE MODE.
    fn exit_failure(&self) -> Result<(), Sense> {
        let may_exit = self.may_exit.lock().unwrap_or_else(PoisonError::into_inner);
        match (self.state.load(Ordering::Acquire), *may_exit) {
            (FAILED, true) => self.state.store(READY, Ordering::Release),
            (FAILED, false) => return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4)),
            (_, _) => {}
        }
        Ok(())
    }
}

/// Whether a command runs although a sanitize is in progress or has failed (SBC-3 4.11.3, 4.11.4); SANITIZE looks for itself.
pub(crate) fn is_exempt(cdb: &Cdb) -> bool {
    matches!(
        cdb,
        Cdb::Inquiry { .. }
            | Cdb::ReportLuns { .. }
            | Cdb::RequestSense { .. }
            | Cdb::LogSense(_)
            | Cdb::Sanitize(_)
            | Cdb::PersistentReserveIn { .. }
            | Cdb::ReportTargetPortGroups { .. }
            | Cdb::ReportSupportedOperationCodes { .. }
            | Cdb::ReportSupportedTaskManagementFunctions { .. }
    )
}

/// What is to be done with every block.
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
    if let Err(sense) = unit.sanitize.begin(sanitize.is_unrestricted_exit) {
        return refuse(sense);
    }
    // Polled by whoever waits for it and by the unit's workers: it goes on when nobody waits any more.
    let work = carry_out(Arc::clone(&unit), method, task.admission.held).boxed().shared();
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

/// What is checked before anything is wiped; `None` for EXIT FAILURE MODE.
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
        // Offered where LBPME is set; there an erased block reads as zeroes or as nothing in particular.
        let is_offered = task.unit.is_thin(&geometry);
        return if is_offered { Ok(Some(Method::Erase)) } else { Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4).into()) };
    }
    let list = task.take_data_out(length as u64)?;
    let overwrite = Overwrite::parse(&list, block_bytes).map_err(|_| Sense::INVALID_FIELD_IN_PARAMETER_LIST)?;
    Ok(Some(Method::Overwrite(overwrite)))
}

/// Wipes, makes it durable, and says how it went.
async fn carry_out(unit: Arc<LogicalUnit>, method: Method, held: Held) -> Result<(), Failure> {
    let shortest = unit.options.clock.as_ref().map(|clock| clock.sleep(SANITIZE_DURATION_MIN));
    let mut result = wipe(&unit, &method, held).await;
    if result.is_ok() {
        let response = unit.device().submit(Request::flush()).await;
        result = response.result.map_err(|error| failure::of_block_error(&error, Doing::Writing, None));
    }
    if let Some(shortest) = shortest {
        shortest.await;
    }
    unit.sanitize.end(result.is_ok());
    result.map_err(|_| Sense::SANITIZE_FAILED.into())
}

async fn wipe(unit: &LogicalUnit, method: &Method, held: Held) -> Result<(), Failure> {
    let geometry = unit.geometry();
    // What is under way on the medium ends first.
    let _all = unit.ranges.exclusive(ByteRange { offset: 0, length: geometry.size_bytes }).await;
    unit.record_change(held, ByteRange { offset: 0, length: u64::MAX }).await?;
    match method {
        Method::Erase => erase(unit, &geometry).await,
        Method::Overwrite(overwrite) => self::overwrite(unit, &geometry, overwrite).await,
    }
}

async fn erase(unit: &LogicalUnit, geometry: &Geometry) -> Result<(), Failure> {
    let mut done = 0;
    while done < geometry.size_bytes {
        let length = SANITIZE_ERASE_BYTES.min(geometry.size_bytes - done);
        // Zeroes, which a device that can give space back gives back; a discard alone promises nothing where LBPRZ is clear.
        let response = unit.device().submit(Request::write_zeroes(done, length, false, true)).await;
        response.result.map_err(|error| failure::of_block_error(&error, Doing::Writing, None))?;
        done += length;
        unit.sanitize.note_progress(done, geometry.size_bytes);
    }
    Ok(())
}

async fn overwrite(unit: &LogicalUnit, geometry: &Geometry, overwrite: &Overwrite) -> Result<(), Failure> {
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
            write_range(unit, done, buffer, false, done / block_bytes as u64).await?;
            done += length;
            done_in_all += length;
            unit.sanitize.note_progress(done_in_all, total);
        }
    }
    Ok(())
}
