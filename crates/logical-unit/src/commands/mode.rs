//! MODE SENSE and MODE SELECT (SPC-4 6.11 to 6.14).
//!
//! | changeable | where | does |
//! |---|---|---|
//! | SWP | always | refuses what would change the medium |
//! | D_SENSE | always | sense data in descriptor format |
//! | WCE | on a device with a volatile cache | cleared: the cache is flushed, and every write has force unit access |
//!
//! All I_T nexuses share them, nothing is saved, and a reset restores the defaults. MODE SELECT
//! accepts a list that equals the present values but for these bits. When it changes one, it is
//! reported to the other nexuses (2Ah/01h). A list that clears WCE changes nothing when the flush
//! fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{Buffer, ByteRange, Geometry, Request};
use scsi::Sense;
use scsi::cdb::{CdbForm, ModeSelect, ModeSense};
use scsi::mode::{self, BlockDescriptor, Caching, Control, Header, page};

use super::task::{Task, nothing, refuse};
use crate::data_in::cut;
use crate::execution::Execution;
use crate::failure::{self, DeviceAccess, Failure};
use crate::nexus::NexusId;
use crate::unit::LogicalUnit;

/// Which values of a page: current, changeable, default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Values {
    Current,
    Changeable,
    Default,
}

/// The function that emits a page.
type Emit = fn(&LogicalUnit, &Geometry, Values) -> Vec<u8>;

/// The supported pages, ascending by their codes.
const PAGES: &[(u8, Emit)] = &[
    (page::READ_WRITE_ERROR_RECOVERY, |_, _, values| fixed(mode::READ_WRITE_ERROR_RECOVERY, values)),
    (page::CACHING, caching),
    (page::CONTROL, control),
    (page::INFORMATIONAL_EXCEPTIONS, |_, _, values| fixed(mode::INFORMATIONAL_EXCEPTIONS, values)),
];

/// A page without changeable fields.
fn fixed<const N: usize>(mut page: [u8; N], values: Values) -> Vec<u8> {
    if values == Values::Changeable {
        page.iter_mut().skip(2).for_each(|byte| *byte = 0);
    }
    page.to_vec()
}

fn caching(unit: &LogicalUnit, geometry: &Geometry, values: Values) -> Vec<u8> {
    let is_volatile = geometry.is_write_cache_volatile;
    let is_write_cache_enabled = match values {
        Values::Current => is_volatile && !unit.mode.is_write_through(),
        Values::Changeable | Values::Default => is_volatile,
    };
    Caching { is_write_cache_enabled, is_read_cache_disabled: false }.emit().to_vec()
}

/// Simple tasks run in any order; a task that another nexus aborted ends with TASK ABORTED.
fn control(unit: &LogicalUnit, _: &Geometry, values: Values) -> Vec<u8> {
    let is_set = |current: bool| match values {
        Values::Current => current,
        Values::Changeable => true,
        Values::Default => false,
    };
    let page = Control {
        has_descriptor_sense: is_set(unit.mode.has_descriptor_sense()),
        is_reordering_unrestricted: values != Values::Changeable,
        is_write_protected: is_set(unit.mode.is_write_protected()),
        has_task_aborted_status: values != Values::Changeable,
    };
    let mut bytes = page.emit();
    if values == Values::Changeable {
        // BUSY TIMEOUT PERIOD
        bytes[8..10].fill(0);
    }
    bytes.to_vec()
}

/// Page control: 0 current, 1 changeable, 2 default, 3 saved.
const CHANGEABLE: u8 = 1;
const DEFAULT: u8 = 2;
const SAVED: u8 = 3;

pub(super) fn sense(unit: &LogicalUnit, nexus: &NexusId, sense: ModeSense) -> Result<Buffer, Failure> {
    unit.check_medium()?;
    if sense.page_control == SAVED {
        return Err(Sense::SAVING_NOT_SUPPORTED.into());
    }
    let geometry = unit.geometry();
    let pages = pages_asked(unit, &geometry, &sense)?;
    let is_long = sense.form == CdbForm::Ten && sense.is_long_lba_accepted;
    let descriptor = BlockDescriptor {
        block_count: geometry.size_bytes / u64::from(geometry.logical_block_bytes),
        block_bytes: geometry.logical_block_bytes,
        is_long,
    };
    let header = Header {
        is_write_protected: unit.is_read_only(&geometry)
            || unit.mode.is_write_protected()
            || unit.protection.covers(nexus),
        has_dpo_fua: true,
        block_descriptor: (!sense.is_block_descriptor_disabled).then_some(descriptor),
    };
    Ok(cut(&mode::emit(sense.form, &header, &pages), u32::from(sense.allocation_length)))
}

/// The pages, one after the other. Zero is the only subpage: FFh asks for all of them, any other
/// for one that does not exist.
fn pages_asked(unit: &LogicalUnit, geometry: &Geometry, sense: &ModeSense) -> Result<Vec<u8>, Sense> {
    if !matches!(sense.subpage, 0 | page::ALL_SUBPAGES) {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_byte(3));
    }
    let values = match sense.page_control {
        CHANGEABLE => Values::Changeable,
        DEFAULT => Values::Default,
        _ => Values::Current,
    };
    let mut bytes = Vec::new();
    for (code, emit) in PAGES {
        if sense.page == page::ALL || sense.page == *code {
            bytes.extend(emit(unit, geometry, values));
        }
    }
    if bytes.is_empty() { Err(Sense::INVALID_FIELD_IN_CDB.at_byte(2)) } else { Ok(bytes) }
}

/// With WCE cleared, cached data is durable before any nexus learns that there is no cache, and no
/// write is under way at the switch.
pub(super) fn select(task: Task<'_>, select: ModeSelect) -> Execution {
    let pages = match check_list(task.unit, &select, &task.command.data_out) {
        Ok(pages) => pages,
        Err(failure) => return refuse(failure),
    };
    if !switches_cache_off(task.unit, pages) {
        apply(task.unit, task.nexus, pages);
        return nothing();
    }
    let (unit, nexus, pages) = (Arc::clone(task.unit), task.nexus.clone(), pages.to_vec());
    task.run_alone(ByteRange { offset: 0, length: u64::MAX }, |_| async move {
        // Not counted as a flush of this nexus: a failed flush that is due to it is still reported
        // by its own flush.
        let flushed = unit.device().submit(Request::flush()).await.result;
        flushed.map_err(|error| failure::of_block_error(&error, DeviceAccess::Writing, None))?;
        apply(&unit, &nexus, &pages);
        Ok(Buffer::empty())
    })
}

/// The pages of a list that may be applied.
fn check_list<'a>(unit: &LogicalUnit, select: &ModeSelect, data_out: &'a [u8]) -> Result<&'a [u8], Failure> {
    unit.check_medium()?;
    if !select.is_page_format {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4).into());
    }
    if select.is_save {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 0).into());
    }
    if select.parameter_list_length == 0 {
        return Ok(&[]);
    }
    let list = data_out.get(..usize::from(select.parameter_list_length));
    let list = list.ok_or(Sense::INVALID_FIELD_IN_INFORMATION_UNIT)?;
    let (header, pages) = parse_list(select.form, list)?;
    let geometry = unit.geometry();
    check_descriptor(&geometry, header.block_descriptor)?;
    // The whole list is checked before the first bit is changed.
    for page in mode::pages(pages) {
        check_page(unit, &geometry, &page.map_err(|_| Sense::PARAMETER_LIST_LENGTH_ERROR)?)?;
    }
    Ok(pages)
}

/// Whether checked pages clear WCE.
fn switches_cache_off(unit: &LogicalUnit, pages: &[u8]) -> bool {
    let is_enabled = unit.geometry().is_write_cache_volatile && !unit.mode.is_write_through();
    let clears = |page: mode::Page<'_>| {
        page.code == page::CACHING && Caching::parse(page.bytes).is_ok_and(|caching| !caching.is_write_cache_enabled)
    };
    is_enabled && mode::pages(pages).flatten().any(clears)
}

/// Applies checked pages, and reports a change to the other nexuses.
fn apply(unit: &LogicalUnit, nexus: &NexusId, pages: &[u8]) {
    let geometry = unit.geometry();
    let changes = mode::pages(pages).flatten().filter(|page| change(unit, &geometry, page)).count();
    if changes > 0 {
        unit.attentions.establish(Sense::MODE_PARAMETERS_CHANGED, Some(nexus));
        unit.mode.settle();
    }
}

/// Whether a page equals the present values but for the changeable bits. PS, bit 7 of byte 0, is
/// reserved here; the page code was matched already.
fn check_page(unit: &LogicalUnit, geometry: &Geometry, page: &mode::Page<'_>) -> Result<(), Sense> {
    let known = PAGES.iter().find(|(code, _)| *code == page.code && page.subpage == 0);
    let (_, emit) = known.ok_or(Sense::INVALID_FIELD_IN_PARAMETER_LIST)?;
    let (current, changeable) = (emit(unit, geometry, Values::Current), emit(unit, geometry, Values::Changeable));
    let is_so = page.bytes.len() == current.len()
        && page.bytes.get(1) == current.get(1)
        && page.bytes.iter().zip(&current).zip(&changeable).skip(2).all(|((new, old), may)| (new ^ old) & !may == 0);
    if is_so { Ok(()) } else { Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST) }
}

/// Applies a checked page. Returns whether that changed anything.
fn change(unit: &LogicalUnit, geometry: &Geometry, page: &mode::Page<'_>) -> bool {
    let set = |flag: &AtomicBool, value: bool| flag.swap(value, Ordering::AcqRel) != value;
    match page.code {
        page::CONTROL => Control::parse(page.bytes).is_ok_and(|control| {
            let is_protection_new = set(&unit.mode.is_write_protected, control.is_write_protected);
            set(&unit.mode.has_descriptor_sense, control.has_descriptor_sense) || is_protection_new
        }),
        page::CACHING if geometry.is_write_cache_volatile => Caching::parse(page.bytes)
            .is_ok_and(|caching| set(&unit.mode.is_write_through, !caching.is_write_cache_enabled)),
        _ => false,
    }
}

/// The mode data length is reserved in MODE SELECT (SPC-4 6.13): it is ignored, and the whole list
/// counts.
fn parse_list(form: CdbForm, list: &[u8]) -> Result<(Header, &[u8]), Sense> {
    mode::parse_list(form, list).map_err(|_| Sense::PARAMETER_LIST_LENGTH_ERROR)
}

/// A block descriptor may only repeat the present values; a block count of zero or all ones is
/// ignored (SBC-3 6.5.2.2).
fn check_descriptor(geometry: &Geometry, descriptor: Option<BlockDescriptor>) -> Result<(), Sense> {
    let Some(descriptor) = descriptor else { return Ok(()) };
    let block_count = geometry.size_bytes / u64::from(geometry.logical_block_bytes);
    let is_count_same = [0, block_count, u64::from(u32::MAX), u64::MAX].contains(&descriptor.block_count);
    if descriptor.block_bytes != geometry.logical_block_bytes || !is_count_same {
        return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    Ok(())
}
