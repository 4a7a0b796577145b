//! The commands that a job makes for a unit.

use scsi::unmap;

use super::*;
use crate::limits::ZEROES_BYTES_MAX;
use crate::unit::UnmapLimits;

fn unit(unmap: UnmapLimits) -> Unit {
    Unit {
        lun: 0,
        vendor: String::new(),
        identity: block::Identity::default(),
        geometry: block::Geometry::plain(1 << 50),
        has_fua: true,
        may_get_cache: false,
        has_sixteen: true,
        command_bytes_max: 1 << 20,
        write_same_blocks_max: Some(1 << 20),
        has_lba_status: false,
        write_same_unmaps: false,
        unmap: Some(unmap),
        change_marks: None,
        sharing: None,
    }
}

/// The descriptors of each UNMAP that discards `blocks` from block 8 on.
fn unmapped(unmap: UnmapLimits, blocks: u64) -> Vec<Vec<(u64, u32)>> {
    let unit = unit(unmap);
    let range = ByteRange { offset: 8 * 512, length: blocks * 512 };
    let mut job = Job::new(Kind::Discard { range }, Reply::Nobody, Instant::START);
    let mut lists = Vec::new();
    while let Some(command) = job.next_command(&unit, 3, Duration::ZERO) {
        assert_eq!(Job::order_of(command.token), 3);
        let Data::Write(list, _) = command.data else { panic!("UNMAP has a list") };
        let list = unmap::parse(&list).unwrap();
        lists.push(list.map(|descriptor| (descriptor.lba, descriptor.block_count)).collect());
        job.take_step(command.token, &mut Buffer::empty());
    }
    assert!(job.is_idle() && !job.has_next(&unit));
    lists
}

#[test]
fn a_large_discard_takes_as_many_descriptors_and_commands_as_the_unit_allows() {
    const MOST: u32 = u32::MAX;
    let limits = |blocks_max, descriptors_max, granularity_blocks| UnmapLimits {
        blocks_max,
        descriptors_max,
        granularity_blocks,
        alignment_blocks: 0,
    };
    let next = 8 + u64::from(MOST);
    let two = u64::from(MOST) + 5;
    assert_eq!(unmapped(limits(u64::MAX, 2, 1), two), [[(8, MOST), (next, 5)]], "one command");
    assert_eq!(unmapped(limits(u64::MAX, 1, 1), two), [[(8, MOST)], [(next, 5)]], "one descriptor each");
    assert_eq!(unmapped(limits(100, 9, 8), 150), [[(8, 96)], [(104, 54)]], "cut at a granule");
    assert_eq!(unmapped(limits(3, 1, 8), 4), [[(8, 3)], [(11, 1)]], "where no granule fits, anywhere");
}

#[test]
fn what_the_unit_does_not_take_any_more_is_cut_again() {
    let mut unit = unit(UnmapLimits { blocks_max: 1, descriptors_max: 1, granularity_blocks: 1, alignment_blocks: 0 });
    let range = ByteRange { offset: 0, length: 4 << 20 };
    let mut job = Job::new(Kind::Zeroes { range, fua: false, may_discard: false }, Reply::Nobody, Instant::START);
    let whole = job.next_command(&unit, 0, Duration::ZERO).unwrap();
    let step = job.take_step(whole.token, &mut Buffer::empty()).unwrap();
    job.reissue(step);
    unit.write_same_blocks_max = None;
    let mut zeroes = 0;
    while let Some(command) = job.next_command(&unit, 0, Duration::ZERO) {
        assert!(command.data.length() <= ZEROES_BYTES_MAX as usize);
        zeroes += command.data.length();
        job.take_step(command.token, &mut Buffer::empty());
    }
    assert_eq!(zeroes, 4 << 20);
}
