//! What initiators read about the medium below: blocks, alignments, preferred sizes, kind of
//! medium.

mod common;

use std::sync::Arc;

use block::memory::MemoryDevice;
use block::{Geometry, Hints};
use common::{Target, identity};
use logical_unit::LogicalUnitOptions;
use scsi::Cdb;
use scsi::capacity::Capacity;
use scsi::vpd::{self, BlockDeviceCharacteristics, BlockLimits};

const SIZE: u64 = 64 << 20;

fn target(geometry: Geometry, options: LogicalUnitOptions) -> Target {
    Target::with(Arc::new(MemoryDevice::with_geometry(geometry, identity())), options)
}

fn vital(target: &Target, page: u8) -> Vec<u8> {
    target.data(Cdb::Inquiry { is_vpd: true, page, allocation_length: 1024 })
}

fn capacity(target: &Target) -> Capacity {
    Capacity::parse_16(&target.data(Cdb::ReadCapacity16 { allocation_length: 32 })).expect("it is whole")
}

/// Logical block of the device, logical and physical block that are configured; and the resulting
/// logical block and exponent.
#[test]
fn logical_and_physical_blocks_in_every_combination() {
    for (device, logical, physical, expected) in [
        (512, None, None, (512, 0)),
        (512, Some(512), Some(512), (512, 0)),
        (512, Some(512), Some(4096), (512, 3)),
        (512, Some(4096), None, (4096, 0)),
        (512, Some(4096), Some(512), (4096, 0)),
        (512, Some(4096), Some(4096), (4096, 0)),
        (4096, None, None, (4096, 0)),
        (4096, Some(512), Some(4096), (4096, 0)),
        (4096, Some(4096), Some(16384), (4096, 2)),
    ] {
        let geometry = Geometry { logical_block_bytes: device, ..Geometry::plain(SIZE) };
        let options = LogicalUnitOptions {
            logical_block_bytes: logical,
            physical_block_bytes: physical,
            ..LogicalUnitOptions::default()
        };
        let told = capacity(&target(geometry, options));
        let row = format!("device {device}, logical {logical:?}, physical {physical:?}");
        assert_eq!((told.block_bytes, told.physical_block_exponent), expected, "{row}");
        assert_eq!(told.size_bytes(), SIZE, "{row}");
    }
}

#[test]
fn what_the_device_likes_is_told() {
    let hints = Hints {
        io_bytes_min: 64 << 10,
        io_bytes_optimal: 384 << 10,
        physical_alignment_bytes: 3584,
        discard_alignment_bytes: 32 << 10,
        is_rotational: true,
    };
    let geometry = Geometry { hints, discard_granularity_bytes: Some(64 << 10), ..Geometry::plain(SIZE) };
    let target =
        target(geometry, LogicalUnitOptions { physical_block_bytes: Some(4096), ..LogicalUnitOptions::default() });
    let limits = BlockLimits::parse(&vital(&target, vpd::page::BLOCK_LIMITS)).unwrap();
    assert_eq!(limits.transfer_granularity_blocks, 128);
    assert_eq!(limits.transfer_blocks_optimal, 1536, "two of those it likes, which is the most below 1 MiB");
    assert_eq!((limits.unmap_granularity_blocks, limits.unmap_alignment_blocks), (128, Some(64)));
    assert_eq!(capacity(&target).lowest_aligned_lba, 7);
    let medium = BlockDeviceCharacteristics::parse(&vital(&target, vpd::page::BLOCK_DEVICE_CHARACTERISTICS)).unwrap();
    assert!(medium.rotation_rate > 1);
}

/// Alignments that are no whole number of larger blocks are not reported.
#[test]
fn alignments_inside_a_block_are_left_out() {
    let hints = Hints { physical_alignment_bytes: 3584, discard_alignment_bytes: 8192, ..Hints::default() };
    let geometry = Geometry { hints, ..Geometry::plain(SIZE) };
    let options = LogicalUnitOptions { logical_block_bytes: Some(4096), ..LogicalUnitOptions::default() };
    let target = target(geometry, options);
    assert_eq!(capacity(&target).lowest_aligned_lba, 0);
    let limits = BlockLimits::parse(&vital(&target, vpd::page::BLOCK_LIMITS)).unwrap();
    assert_eq!(limits.unmap_alignment_blocks, Some(2));
}

/// A device whose discards promise nothing: LBPRZ is 0 in both places (SBC-3 5.16.2, 6.6.4).
#[test]
fn discards_that_promise_nothing_are_not_told_as_zeroes() {
    let geometry = Geometry { discard_reads_zeroes: false, ..Geometry::plain(SIZE) };
    let target = target(geometry, LogicalUnitOptions::default());
    let told = capacity(&target);
    assert!(told.is_thin && !told.unmapped_reads_zeroes);
    let provisioning =
        vpd::LogicalBlockProvisioning::parse(&vital(&target, vpd::page::LOGICAL_BLOCK_PROVISIONING)).unwrap();
    assert!(provisioning.has_unmap && !provisioning.unmapped_reads_zeroes);
}
