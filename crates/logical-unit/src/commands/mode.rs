//! MODE SENSE and MODE SELECT (SPC-4 6.11 to 6.14).
//!
//! Nothing can be changed here: whether writes are cached is the device's own business, and a mode page that says otherwise
//! would lie. So the changeable values are all zero, defaults equal current values, nothing is saved, and MODE SELECT accepts a list
//! that says what is already so.

use block::{Buffer, Geometry};
use scsi::Sense;
use scsi::cdb::{CdbForm, ModeSelect, ModeSense};
use scsi::mode::{self, BlockDescriptor, Caching, Control, Header, page};

use crate::failure::Failure;
use crate::lun_map::cut;
use crate::unit::LogicalUnit;

/// What emits a page's current values.
type Emit = fn(&LogicalUnit, &Geometry) -> Vec<u8>;

/// The pages there are, ascending by their codes.
const PAGES: &[(u8, Emit)] = &[
    (page::READ_WRITE_ERROR_RECOVERY, |_, _| mode::READ_WRITE_ERROR_RECOVERY.to_vec()),
    (page::CACHING, caching),
    (page::CONTROL, control),
    (page::INFORMATIONAL_EXCEPTIONS, |_, _| mode::INFORMATIONAL_EXCEPTIONS.to_vec()),
];

fn caching(_: &LogicalUnit, geometry: &Geometry) -> Vec<u8> {
    let is_write_cache_enabled = geometry.is_write_cache_volatile;
    Caching { is_write_cache_enabled, is_read_cache_disabled: false }.emit().to_vec()
}

/// Simple tasks run in any order; what other nexuses aborted ends with TASK ABORTED.
fn control(_: &LogicalUnit, _: &Geometry) -> Vec<u8> {
    let page = Control {
        has_descriptor_sense: false,
        is_reordering_unrestricted: true,
        is_write_protected: false,
        has_task_aborted_status: true,
    };
    page.emit().to_vec()
}

const CHANGEABLE: u8 = 1;
const SAVED: u8 = 3;

pub(super) fn sense(unit: &LogicalUnit, sense: ModeSense) -> Result<Buffer, Failure> {
    unit.check_medium()?;
    if sense.page_control == SAVED {
        return Err(Sense::SAVING_NOT_SUPPORTED.into());
    }
    let geometry = unit.device().geometry();
    let pages = pages_asked(unit, &geometry, &sense)?;
    let is_long = sense.form == CdbForm::Ten && sense.is_long_lba_accepted;
    let descriptor = BlockDescriptor {
        block_count: geometry.size_bytes / u64::from(geometry.logical_block_bytes),
        block_bytes: geometry.logical_block_bytes,
        is_long,
    };
    let header = Header {
        is_write_protected: unit.is_read_only(&geometry),
        has_dpo_fua: true,
        block_descriptor: (!sense.is_block_descriptor_disabled).then_some(descriptor),
    };
    Ok(cut(&mode::emit(sense.form, &header, &pages), u32::from(sense.allocation_length)))
}

/// The pages one after the other. There are no subpages but zero: FFh asks for all of them, anything else for one that is not there.
fn pages_asked(unit: &LogicalUnit, geometry: &Geometry, sense: &ModeSense) -> Result<Vec<u8>, Sense> {
    if !matches!(sense.subpage, 0 | page::ALL_SUBPAGES) {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_byte(3));
    }
    let mut bytes = Vec::new();
    for (code, emit) in PAGES {
        if sense.page == page::ALL || sense.page == *code {
            let mut page = emit(unit, geometry);
            if sense.page_control == CHANGEABLE {
                page.iter_mut().skip(2).for_each(|byte| *byte = 0);
            }
            bytes.extend(page);
        }
    }
    if bytes.is_empty() { Err(Sense::INVALID_FIELD_IN_CDB.at_byte(2)) } else { Ok(bytes) }
}

pub(super) fn select(unit: &LogicalUnit, select: ModeSelect, data_out: &[u8]) -> Result<Buffer, Failure> {
    unit.check_medium()?;
    if !select.is_page_format {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4).into());
    }
    if select.is_save {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 0).into());
    }
    if select.parameter_list_length == 0 {
        return Ok(Buffer::empty());
    }
    let list = data_out.get(..usize::from(select.parameter_list_length));
    let list = list.ok_or(Sense::INVALID_FIELD_IN_INFORMATION_UNIT)?;
    let (header, pages) = parse_list(select.form, list)?;
    let geometry = unit.device().geometry();
    check_descriptor(&geometry, header.block_descriptor)?;
    for page in mode::pages(pages) {
        let page = page.map_err(|_| Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let known = PAGES.iter().find(|(code, _)| *code == page.code && page.subpage == 0);
        let current = known.map(|(_, emit)| emit(unit, &geometry)).ok_or(Sense::INVALID_FIELD_IN_PARAMETER_LIST)?;
        // PS, bit 7 of byte 0, is reserved here; the page code was matched already.
        if page.bytes.get(1..) != current.get(1..) {
            return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST.into());
        }
    }
    Ok(Buffer::empty())
}

/// The mode data length is reserved in MODE SELECT (SPC-4 6.13): it is not looked at, all of the list counts.
fn parse_list(form: CdbForm, list: &[u8]) -> Result<(Header, &[u8]), Sense> {
    mode::parse_list(form, list).map_err(|_| Sense::PARAMETER_LIST_LENGTH_ERROR)
}

/// A block descriptor may only say what is so; a block count of zero or all ones says nothing (SBC-3 6.5.2.2).
fn check_descriptor(geometry: &Geometry, descriptor: Option<BlockDescriptor>) -> Result<(), Sense> {
    let Some(descriptor) = descriptor else { return Ok(()) };
    let block_count = geometry.size_bytes / u64::from(geometry.logical_block_bytes);
    let is_count_same = [0, block_count, u64::from(u32::MAX), u64::MAX].contains(&descriptor.block_count);
    if descriptor.block_bytes != geometry.logical_block_bytes || !is_count_same {
        return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    Ok(())
}
