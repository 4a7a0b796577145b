//! INQUIRY with its VPD pages, and REQUEST SENSE (SPC-4 6.6, 6.39).

use block::{Buffer, Geometry, Hints};
use scsi::Sense;
use scsi::inquiry::{Peripheral, StandardInquiry, VERSION_DESCRIPTORS};
use scsi::vpd::{self, BlockDeviceCharacteristics, BlockLimits, ExtendedInquiry, LogicalBlockProvisioning, page};

use crate::data_in::{cut, sense_bytes};
use crate::failure::Failure;
use crate::identity;
use crate::limits::{
    COMPARE_AND_WRITE_BLOCKS_MAX, COPY_LIMITS, TRANSFER_BYTES_OPTIMAL, UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX,
    WRITE_SAME_BLOCKS_MAX,
};
use crate::nexus::NexusId;
use crate::unit::LogicalUnit;

/// The function that emits a page.
type Emit = fn(&LogicalUnit, &Geometry, &NexusId) -> Vec<u8>;

/// The supported VPD pages, ascending by their codes.
const PAGES: &[(u8, Emit)] = &[
    (page::SUPPORTED_PAGES, supported_pages),
    (page::UNIT_SERIAL_NUMBER, unit_serial_number),
    (page::DEVICE_IDENTIFICATION, device_identification),
    (page::EXTENDED_INQUIRY, extended_inquiry),
    (page::MODE_PAGE_POLICY, |_, _, _| vpd::emit_mode_page_policy()),
    (page::THIRD_PARTY_COPY, |_, _, _| COPY_LIMITS.emit_page()),
    (page::BLOCK_LIMITS, block_limits),
    (page::BLOCK_DEVICE_CHARACTERISTICS, block_device_characteristics),
    (page::LOGICAL_BLOCK_PROVISIONING, logical_block_provisioning),
    (page::CHANGE_MARKS, change_marks),
    (page::SHARING, |unit, _, _| unit.access.sharing().map_or_else(Vec::new, |sharing| sharing.support().emit())),
];

pub(super) fn inquiry(
    unit: &LogicalUnit,
    nexus: &NexusId,
    is_vpd: bool,
    page: u8,
    allocation_length: u16,
) -> Result<Buffer, Failure> {
    let bytes = if is_vpd {
        let emit = PAGES.iter().find(|(code, _)| *code == page).map(|(_, emit)| emit);
        let emit = emit.filter(|_| has_own_page(unit, page));
        emit.ok_or(Sense::INVALID_FIELD_IN_CDB.at_byte(2))?(unit, &unit.geometry(), nexus)
    } else if page != 0 {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_byte(2).into());
    } else {
        standard(unit).emit().to_vec()
    };
    Ok(cut(&bytes, u32::from(allocation_length)))
}

/// Whether a page of our own exists; only for such pages.
fn has_own_page(unit: &LogicalUnit, code: u8) -> bool {
    match code {
        page::CHANGE_MARKS => unit.change_marks.is_some(),
        page::SHARING => unit.access.sharing().is_some(),
        _ => true,
    }
}

fn standard(unit: &LogicalUnit) -> StandardInquiry {
    StandardInquiry {
        peripheral: Peripheral::Disk,
        is_removable: unit.options.is_removable,
        version: 6,
        vendor: unit.options.vendor.clone(),
        product: unit.options.product.clone(),
        revision: unit.options.revision.clone(),
        is_multi_port: false,
        has_target_port_groups: true,
        has_third_party_copy: true,
        version_descriptors: VERSION_DESCRIPTORS,
    }
}

/// Standard INQUIRY data of a LUN without a unit.
pub(crate) fn absent() -> [u8; StandardInquiry::BYTES] {
    StandardInquiry {
        peripheral: Peripheral::Absent,
        is_removable: false,
        version: 6,
        vendor: "FOREBAY".into(),
        product: String::new(),
        revision: String::new(),
        is_multi_port: false,
        has_target_port_groups: false,
        has_third_party_copy: false,
        version_descriptors: VERSION_DESCRIPTORS,
    }
    .emit()
}

fn supported_pages(unit: &LogicalUnit, geometry: &Geometry, _: &NexusId) -> Vec<u8> {
    let is_there = |code: u8| match code {
        page::LOGICAL_BLOCK_PROVISIONING => unit.is_thin(geometry),
        _ => has_own_page(unit, code),
    };
    let codes: Vec<u8> = PAGES.iter().map(|(code, _)| *code).filter(|&code| is_there(code)).collect();
    vpd::emit_supported_pages(&codes)
}

fn unit_serial_number(unit: &LogicalUnit, _: &Geometry, _: &NexusId) -> Vec<u8> {
    vpd::emit_unit_serial_number(&identity::serial(&unit.device().identity()))
}

fn device_identification(unit: &LogicalUnit, _: &Geometry, nexus: &NexusId) -> Vec<u8> {
    vpd::emit_device_identification(&identity::designators_of(unit), &identity::ports(nexus))
}

fn extended_inquiry(_: &LogicalUnit, geometry: &Geometry, _: &NexusId) -> Vec<u8> {
    ExtendedInquiry { has_volatile_cache: geometry.is_write_cache_volatile }.emit()
}

fn block_limits(unit: &LogicalUnit, geometry: &Geometry, _: &NexusId) -> Vec<u8> {
    let block_bytes = geometry.logical_block_bytes;
    let transfer_blocks_max = unit.transfer_blocks_max(geometry);
    let is_thin = unit.is_thin(geometry);
    let if_thin = |blocks: u32| if is_thin { blocks } else { 0 };
    let hints = geometry.hints;
    let granule_blocks = (geometry.physical_block_bytes.max(hints.io_bytes_min) / block_bytes).max(1);
    let granularity_blocks = geometry.discard_granularity_bytes.map_or(0, |bytes| (bytes / block_bytes).max(1));
    let atomic = unit.atomic_limits(geometry);
    BlockLimits {
        is_write_same_zero_refused: true,
        compare_and_write_blocks_max: COMPARE_AND_WRITE_BLOCKS_MAX.min(transfer_blocks_max) as u8,
        transfer_granularity_blocks: u16::try_from(granule_blocks).unwrap_or(0),
        transfer_blocks_max,
        transfer_blocks_optimal: (transfer_bytes_optimal(&hints) / block_bytes).min(transfer_blocks_max),
        prefetch_blocks_max: 0,
        unmap_blocks_max: if_thin(UNMAP_BLOCKS_MAX),
        unmap_descriptors_max: if_thin(UNMAP_DESCRIPTORS_MAX),
        unmap_granularity_blocks: if_thin(granularity_blocks),
        unmap_alignment_blocks: is_thin.then_some(hints.discard_alignment_bytes / block_bytes),
        write_same_blocks_max: WRITE_SAME_BLOCKS_MAX,
        atomic_blocks_max: atomic.blocks_max,
        atomic_alignment_blocks: atomic.granularity_blocks,
        atomic_granularity_blocks: atomic.granularity_blocks,
    }
    .emit()
}

/// Our own optimum, in whole multiples of what the device prefers.
fn transfer_bytes_optimal(hints: &Hints) -> u32 {
    match hints.io_bytes_optimal {
        0 => TRANSFER_BYTES_OPTIMAL,
        bytes => (TRANSFER_BYTES_OPTIMAL / bytes).max(1).saturating_mul(bytes),
    }
}

fn block_device_characteristics(unit: &LogicalUnit, geometry: &Geometry, _: &NexusId) -> Vec<u8> {
    // Schedulers take 7200 revolutions for a rotating disk; the speed was not measured.
    let rotation_rate = if unit.options.is_rotational || geometry.hints.is_rotational { 7200 } else { 1 };
    BlockDeviceCharacteristics { rotation_rate, reads_after_block_erase: unit.is_thin(geometry) }.emit()
}

fn logical_block_provisioning(unit: &LogicalUnit, geometry: &Geometry, _: &NexusId) -> Vec<u8> {
    let is_thin = unit.is_thin(geometry);
    LogicalBlockProvisioning {
        has_unmap: is_thin,
        has_write_same_16: is_thin,
        has_write_same_10: is_thin,
        unmapped_reads_zeroes: is_thin && geometry.discard_reads_zeroes,
        is_thin,
    }
    .emit()
}

/// Empty without change marks: the page does not exist then.
fn change_marks(unit: &LogicalUnit, _: &Geometry, _: &NexusId) -> Vec<u8> {
    unit.change_marks.as_ref().map_or_else(Vec::new, |marks| marks.support().emit())
}

/// A pending unit attention is returned as data with GOOD, and counts as reported (SPC-4 6.39.1).
pub(super) fn request_sense(
    unit: &LogicalUnit,
    nexus: &NexusId,
    is_descriptor: bool,
    allocation_length: u8,
) -> Result<Buffer, Failure> {
    let not_ready = || unit.sanitize.check().err().or_else(|| unit.check_medium().err());
    let sense = unit.attentions.take(nexus).or_else(not_ready).unwrap_or(Sense::NO_SENSE);
    Ok(cut(&sense_bytes(&sense, is_descriptor), u32::from(allocation_length)))
}
