//! A part of a request as one command of the unit: as many blocks as that takes at once, and its CDB and data.

use block::{Buffer, ByteRange, Extent, ExtentKind};
use iscsi::initiator::Data;
use scsi::Cdb;
use scsi::cdb::{Blocks, CacheRange, CdbForm, Transfer, WriteSame};
use scsi::lba_status::{self, Provisioning};
use scsi::unmap;

use crate::limits::{LBA_STATUS_BYTES, ZEROES_BYTES_MAX};
use crate::unit::Unit;

/// `length` bytes from the start of `range`, as blocks in the form the unit understands.
pub(super) fn blocks(unit: &Unit, range: ByteRange, length: u64) -> Blocks {
    let (lba, count) = (range.offset / unit.block_bytes(), (length / unit.block_bytes()) as u32);
    if unit.has_sixteen { Blocks::sixteen(lba, count) } else { Blocks::new(lba, count) }
}

/// SYNCHRONIZE CACHE of a range or of everything.
pub(super) fn synchronize(unit: &Unit, range: Option<ByteRange>) -> Cdb {
    let whole = Blocks { form: if unit.has_sixteen { CdbForm::Sixteen } else { CdbForm::Ten }, lba: 0, count: 0 };
    let blocks = range.map_or(whole, |range| {
        // More blocks than a CDB can say are all of them.
        let count = range.length / unit.block_bytes();
        if count <= whole.form.count_max().into() { blocks(unit, range, range.length) } else { whole }
    });
    Cdb::SynchronizeCache(CacheRange { blocks, is_immediate: false })
}

/// Blocks of one UNMAP at the start of `rest`: cut at a granule's border, so that all but the first and the last piece
/// are whole granules (SBC-3 6.6.4).
pub(super) fn discard_blocks(unit: &Unit, rest: ByteRange) -> Option<u64> {
    let limits = unit.unmap?;
    let first = rest.offset / unit.block_bytes();
    let end = rest.end() / unit.block_bytes();
    let longest = first.saturating_add(limits.command_blocks_max());
    if longest >= end {
        return Some(end - first);
    }
    let past = longest.saturating_sub(limits.alignment_blocks) % limits.granularity_blocks;
    Some(Some(longest - past).filter(|&cut| cut > first).unwrap_or(longest) - first)
}

/// UNMAP of a part, in as many descriptors as it takes: each counts its blocks in 32 bits.
pub(super) fn discard_command(unit: &Unit, part: ByteRange) -> (Cdb, Data) {
    let first = part.offset / unit.block_bytes();
    let end = part.end() / unit.block_bytes();
    let descriptors: Vec<_> = (first..end)
        .step_by(u32::MAX as usize)
        .map(|lba| unmap::Descriptor { lba, block_count: (end - lba).min(u32::MAX.into()) as u32 })
        .collect();
    let list = unmap::emit(&descriptors);
    let length = list.len();
    let cdb = Cdb::Unmap { is_anchor: false, parameter_list_length: length as u16 };
    (cdb, Data::Write(Buffer::copy_of(&list), 0..length))
}

/// GET LBA STATUS from the start of a part. It covers what it covers: the caller asks again from there.
pub(super) fn extents_command(unit: &Unit, part: ByteRange) -> (Cdb, Data) {
    let lba = part.offset / unit.block_bytes();
    let cdb = Cdb::GetLbaStatus { lba, allocation_length: LBA_STATUS_BYTES as u32 };
    let length = cdb.parameter_data_bytes() as usize;
    (cdb, Data::Read(Buffer::zeroed(length), 0..length))
}

/// The extents of `range` from its start, up to the first gap between descriptors.
pub(super) fn extents_of(descriptors: &[lba_status::Descriptor], block_bytes: u64, range: ByteRange) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut front = range.offset;
    for descriptor in descriptors {
        let start = descriptor.lba.saturating_mul(block_bytes);
        let end = start.saturating_add(u64::from(descriptor.block_count) * block_bytes).min(range.end());
        if start > front || end <= front {
            break;
        }
        // Anchored blocks take space, and are rare: called data, they are read where they need not be, never missed.
        let kind = match descriptor.provisioning {
            Provisioning::Deallocated => ExtentKind::Hole,
            Provisioning::Mapped | Provisioning::Anchored => ExtentKind::Data,
        };
        match extents.last_mut().filter(|last| last.kind == kind) {
            Some(last) => last.range.length += end - front,
            None => extents.push(Extent { range: ByteRange { offset: front, length: end - front }, kind }),
        }
        front = end;
    }
    extents
}

/// Blocks that one command makes zeroes, at the start of `rest`.
pub(super) fn zeroes_blocks(unit: &Unit, rest: ByteRange) -> u64 {
    let longest = match unit.write_same_blocks_max {
        Some(blocks_max) => blocks_max.min(u32::MAX.into()),
        None => u64::from(unit.command_bytes_max.min(ZEROES_BYTES_MAX)) / unit.block_bytes(),
    };
    longest.min(rest.length / unit.block_bytes())
}

/// WRITE SAME(16) of one block of zeroes, or plain zeroes where the unit does not do that.
pub(super) fn zeroes_command(unit: &Unit, part: ByteRange, may_discard: bool) -> (Cdb, Data) {
    let blocks = blocks(unit, part, part.length);
    let (cdb, length) = if unit.write_same_blocks_max.is_some() {
        let is_unmap = may_discard && unit.write_same_unmaps;
        let write_same = WriteSame { blocks, is_anchor: false, is_unmap, has_no_data_out: false };
        (Cdb::WriteSame(write_same), unit.block_bytes() as usize)
    } else {
        (Cdb::Write(Transfer { blocks, is_dpo: false, is_fua: false }), part.length as usize)
    };
    (cdb, Data::Write(Buffer::zeroed(length), 0..length))
}

#[cfg(test)]
mod tests {
    use scsi::lba_status::Descriptor;

    use super::*;

    /// The extents found in bytes 4096 to 16384, reported in blocks of 512, as (offset, length, is
    /// a hole).
    fn found(descriptors: &[(u64, u32, Provisioning)]) -> Vec<(u64, u64, bool)> {
        let descriptor = |&(lba, block_count, provisioning)| Descriptor { lba, block_count, provisioning };
        let descriptors: Vec<_> = descriptors.iter().map(descriptor).collect();
        let extents = extents_of(&descriptors, 512, ByteRange { offset: 4096, length: 12288 });
        let triple = |extent: &Extent| (extent.range.offset, extent.range.length, extent.kind == ExtentKind::Hole);
        extents.iter().map(triple).collect()
    }

    #[test]
    fn runs_become_extents_of_the_range_asked_for() {
        use Provisioning::{Anchored, Deallocated, Mapped};
        assert_eq!(found(&[(8, 8, Mapped), (16, 100, Deallocated)]), [(4096, 4096, false), (8192, 8192, true)]);
        assert_eq!(found(&[(0, u32::MAX, Deallocated)]), [(4096, 12288, true)], "it may begin before and end after");
        assert_eq!(found(&[(8, 1, Mapped), (9, 1, Anchored), (10, 1, Mapped)]), [(4096, 1536, false)]);
    }

    #[test]
    fn what_makes_no_sense_is_not_believed() {
        use Provisioning::{Deallocated, Mapped};
        assert_eq!(found(&[]), []);
        assert_eq!(found(&[(9, 8, Deallocated)]), [], "nobody said what is in block 8");
        assert_eq!(found(&[(8, 0, Deallocated)]), []);
        assert_eq!(found(&[(u64::MAX, u32::MAX, Deallocated)]), []);
        assert_eq!(found(&[(8, 1, Mapped), (10, 1, Deallocated)]), [(4096, 512, false)], "up to the gap");
        assert_eq!(found(&[(8, 2, Mapped), (8, 2, Deallocated)]), [(4096, 1024, false)], "nothing goes back");
    }
}
