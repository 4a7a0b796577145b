//! Commands of many pieces: other commands run between these, and an aborted one ends at its next
//! piece.

mod common;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use block::{Buffer, Device};
use common::changing::name;
use common::{BLOCK_BYTES, Target};
use logical_unit::limits::COPY_SMALL_PIECE_BYTES;
use logical_unit::{Command, LogicalUnitOptions};
use scsi::cdb::{Blocks, Transfer, WriteSame};
use scsi::extended_copy::{Segment, emit_list};
use scsi::{Cdb, TaskAttribute};

const PIECES: u32 = 8;
/// Pieces of 64 KiB, where the device answers at once.
const SMALL_PIECES: u32 = PIECES * 16;

fn target() -> (std::sync::Arc<block::memory::MemoryDevice>, Target) {
    let device = std::sync::Arc::new(block::memory::MemoryDevice::new(32 << 20, common::identity()));
    let target = Target::with(std::sync::Arc::clone(&device) as _, LogicalUnitOptions::default());
    (device, target)
}

/// WRITE SAME over eight pieces of a MiB.
fn write_same() -> Cdb {
    Cdb::WriteSame(WriteSame {
        blocks: Blocks::sixteen(0, (PIECES << 20) / BLOCK_BYTES as u32),
        is_unmap: false,
        is_anchor: false,
        has_no_data_out: false,
    })
}

fn byte_at(device: &block::memory::MemoryDevice, offset: u64) -> u8 {
    let read = block::Request::read(offset, Buffer::zeroed(BLOCK_BYTES));
    let response = device.submit(read).try_take().expect("memory answers at once");
    response.into_buffer().expect("it is there")[0]
}

/// Runs it to its end. Returns the outcome, and how often it was polled.
fn run_counting(execution: &mut logical_unit::Execution) -> (logical_unit::Outcome, u32) {
    let mut polls = 1;
    loop {
        match Pin::new(&mut *execution).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => return (outcome, polls),
            Poll::Pending => polls += 1,
        }
    }
}

#[test]
fn a_write_same_lets_others_have_their_turn_between_its_pieces() {
    let (_device, target) = target();
    let block = Buffer::copy_of(&[7; BLOCK_BYTES]);
    let mut execution = target.start(write_same().emit(), block, TaskAttribute::Simple, 1);
    assert!(execution.try_take().is_none(), "it is not over before anybody else had a turn");
    let (_, polls) = run_counting(&mut execution);
    assert!(polls >= SMALL_PIECES, "{polls} turns for {SMALL_PIECES} pieces");
}

#[test]
fn what_is_left_of_a_write_same_is_not_written_for_a_nexus_that_is_gone() {
    let (device, target) = target();
    let block = Buffer::copy_of(&[7; BLOCK_BYTES]);
    let mut execution = target.start(write_same().emit(), block, TaskAttribute::Simple, 1);
    target.map.remove_nexus(&target.nexus);
    let mut polls = 0;
    while Pin::new(&mut execution).poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        polls += 1;
    }
    assert!(polls < 2, "it goes on for {polls} turns");
    assert_eq!((byte_at(&device, 0), byte_at(&device, 1 << 20)), (7, 0));
}

/// Two WRITE SAMEs of the same blocks run one after the other; a read of some of these blocks waits
/// for neither as a whole.
#[test]
fn who_reads_blocks_that_are_repeated_waits_for_a_piece() {
    let (device, target) = target();
    let start = |byte: u8, tag| {
        target.start(write_same().emit(), Buffer::copy_of(&[byte; BLOCK_BYTES]), TaskAttribute::Simple, tag)
    };
    let mut repeats = [start(7, 1), start(8, 2), start(9, 3)];
    let mut poll =
        |index: usize| Pin::new(&mut repeats[index]).poll(&mut Context::from_waker(Waker::noop())).is_ready();
    for _ in 0..3 {
        assert!(!poll(0) && !poll(1) && !poll(2));
        assert_eq!(target.read(0, 1)[0], 7, "nobody else has begun");
        assert_eq!(target.read(u64::from(PIECES << 20) / BLOCK_BYTES as u64 - 1, 1)[0], 0, "nor is the first one over");
    }
    // Data written meanwhile lies behind the repeated block, or is overwritten by it.
    target.write(0, &[5; BLOCK_BYTES]);
    assert_eq!(byte_at(&device, 0), 5);
    let last = u64::from(PIECES << 20) - BLOCK_BYTES as u64;
    for (index, expected) in [(5, 7), (8, 8), (9, 9)].into_iter().enumerate() {
        while !poll(index) {}
        assert_eq!((byte_at(&device, 0), byte_at(&device, last)), expected);
    }
}

/// On a slow device as well: the command holds only the range of the piece that is being written.
#[test]
fn who_reads_blocks_that_are_not_repeated_yet_waits_for_nothing() {
    let device = common::GatedDevice::new();
    let target = Target::with(std::sync::Arc::clone(&device) as _, LogicalUnitOptions::default());
    let blocks = Blocks::sixteen(0, common::BLOCK_COUNT as u32);
    let repeat = WriteSame { blocks, is_unmap: false, is_anchor: false, has_no_data_out: false };
    let block = Buffer::copy_of(&[7; BLOCK_BYTES]);
    let mut repeating = target.start(Cdb::WriteSame(repeat).emit(), block, TaskAttribute::Simple, 1);
    assert!(Pin::new(&mut repeating).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(device.waiting_count(), 1, "a piece is on its way");
    let read = |lba| Cdb::Read(common::transfer(Blocks::sixteen(lba, 1))).emit();
    let _first = target.start(read(0), Buffer::empty(), TaskAttribute::Simple, 2);
    assert_eq!(device.waiting_count(), 1, "who wants a block of it waits");
    let _last = target.start(read(u64::from(blocks.count) - 1), Buffer::empty(), TaskAttribute::Simple, 3);
    assert_eq!(device.waiting_count(), 2, "others do not");
}

/// The holder of a piece's range may wait for the buffer that the piece would hold.
#[test]
fn who_repeats_a_block_holds_no_buffer_while_it_waits_for_its_blocks() {
    let device = common::GatedDevice::new();
    let work_buffers = block::BufferPool::new(1);
    let options = LogicalUnitOptions { work_buffers, ..LogicalUnitOptions::default() };
    let target = Target::with(std::sync::Arc::clone(&device) as _, options);
    let blocks = Blocks::sixteen(0, 8);
    let data = Buffer::zeroed(8 * BLOCK_BYTES);
    let writing = target.start(Cdb::Write(common::transfer(blocks)).emit(), data, TaskAttribute::Simple, 1);
    let verify = Cdb::Verify(scsi::cdb::Verification { blocks, is_dpo: false, byte_check: 0 });
    let verifying = target.start(verify.emit(), Buffer::empty(), TaskAttribute::Simple, 2);
    let repeat = WriteSame { blocks, is_unmap: false, is_anchor: false, has_no_data_out: false };
    let block = Buffer::copy_of(&[7; BLOCK_BYTES]);
    let repeating = target.start(Cdb::WriteSame(repeat).emit(), block, TaskAttribute::Simple, 3);
    let mut left = vec![writing, verifying, repeating];
    for _ in 0..8 {
        if device.waiting_count() > 0 {
            device.release();
        }
        let context = &mut Context::from_waker(Waker::noop());
        left.retain_mut(|execution| Pin::new(execution).poll(context).is_pending());
    }
    assert!(left.is_empty(), "{} commands wait for each other", left.len());
}

/// Commands that need memory of their own take it from the unit's work buffers, which are 64 MiB.
#[test]
fn commands_wait_for_the_buffers_that_they_work_with_and_these_are_bounded() {
    let all = LogicalUnitOptions::default().work_buffers;
    let lent: Vec<Buffer> = std::iter::from_fn(|| all.try_acquire(1 << 20)).collect();
    assert_eq!(lent.len(), 64, "buffers of a MiB");
    drop(lent);
    let all = LogicalUnitOptions::default().copy_buffers;
    assert_eq!(std::iter::from_fn(|| all.try_acquire(1 << 20)).collect::<Vec<Buffer>>().len(), 16);

    let work_buffers = block::BufferPool::new(1);
    let copy_buffers = block::BufferPool::new(1);
    let options = LogicalUnitOptions {
        work_buffers: work_buffers.clone(),
        copy_buffers: copy_buffers.clone(),
        ..LogicalUnitOptions::default()
    };
    let device = std::sync::Arc::new(block::memory::MemoryDevice::new(32 << 20, common::identity()));
    let target = Target::with(device, options);
    let blocks = Blocks::sixteen(0, (PIECES << 20) / BLOCK_BYTES as u32);
    let verify = |byte_check, bytes: usize| {
        let cdb = Cdb::Verify(scsi::cdb::Verification { blocks, is_dpo: false, byte_check });
        target.start(cdb.emit(), Buffer::zeroed(bytes), TaskAttribute::Simple, 1)
    };
    let sanitize = || {
        let list = scsi::sanitize::Overwrite { is_inverting: false, count: 1, pattern: vec![1] }.emit();
        let cdb = scsi::cdb::Sanitize {
            service_action: scsi::sanitize::action::OVERWRITE,
            is_immediate: false,
            is_unrestricted_exit: false,
            parameter_list_length: list.len() as u16,
        };
        target.start(Cdb::Sanitize(cdb).emit(), Buffer::copy_of(&list), TaskAttribute::Simple, 1)
    };
    // The device repeats zeroes by itself.
    let repeat = || {
        let ones = Buffer::copy_of(&[1; BLOCK_BYTES]);
        target.start(write_same().emit(), ones, TaskAttribute::Simple, 1)
    };
    type Start<'a> = (&'a str, &'a block::BufferPool, &'a dyn Fn() -> logical_unit::Execution);
    let starts: [Start<'_>; 5] = [
        ("EXTENDED COPY", &copy_buffers, &|| {
            start_copy(&target, 1, ((PIECES << 20) / BLOCK_BYTES as u32) as u16, (0, 32768))
        }),
        ("VERIFY", &work_buffers, &|| verify(0, 0)),
        ("VERIFY of bytes", &work_buffers, &|| verify(1, (PIECES as usize) << 20)),
        ("WRITE SAME", &work_buffers, &repeat),
        ("SANITIZE", &work_buffers, &sanitize),
    ];
    for (name, buffers, start) in starts {
        let held = buffers.try_acquire(1).expect("nobody else has it");
        let mut execution = start();
        for _ in 0..1000 {
            let polled = Pin::new(&mut execution).poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "{name} needs no buffer");
        }
        drop(held);
        let (outcome, _) = run_counting(&mut execution);
        assert_eq!((outcome.status, outcome.sense), (scsi::Status::Good, None), "{name}");
    }
}

/// In memory a read is a copy on the submitting thread.
#[test]
fn a_long_read_lets_others_have_their_turn_between_its_pieces() {
    const BYTES: usize = (PIECES as usize) << 20;
    let (device, target) = target();
    let pattern = |at: usize| (at >> 12) as u8 ^ (at >> 20) as u8;
    let bytes: Vec<u8> = (0..BYTES).map(pattern).collect();
    let written = device.submit(block::Request::write(0, Buffer::copy_of(&bytes), false)).try_take();
    written.expect("memory answers at once").into_buffer().expect("it is written");
    let transfer = Transfer { blocks: Blocks::sixteen(0, (BYTES / BLOCK_BYTES) as u32), is_dpo: false, is_fua: false };
    let command = Command {
        cdb: Ok(Cdb::Read(transfer)),
        data_out: Buffer::empty(),
        data_in_bytes_max: BYTES as u32,
        attribute: TaskAttribute::Simple,
        task_tag: 1,
    };
    let mut execution = target.map.execute(&target.nexus, 0, command);
    assert!(execution.try_take().is_none(), "it is not over before anybody else had a turn");
    let (outcome, polls) = run_counting(&mut execution);
    assert!(polls >= PIECES, "{polls} turns for {PIECES} MiB");
    assert_eq!(outcome.status, scsi::Status::Good);
    assert!(outcome.data_in[..] == bytes[..], "the pieces are put together");
}

/// The first long write shows whether the device answers at once; later ones yield between pieces.
#[test]
fn a_long_write_lets_others_have_their_turn_between_its_pieces() {
    const BYTES: usize = (PIECES as usize) << 20;
    let (device, target) = target();
    let transfer = Transfer { blocks: Blocks::sixteen(8, (BYTES / BLOCK_BYTES) as u32), is_dpo: false, is_fua: false };
    let write = |seed: u8| {
        let bytes: Vec<u8> = (0..BYTES).map(|at| seed ^ (at >> 12) as u8 ^ (at >> 20) as u8).collect();
        let data = Buffer::copy_of(&bytes);
        let mut execution = target.start(Cdb::Write(transfer).emit(), data, TaskAttribute::Simple, 1);
        let (outcome, polls) = run_counting(&mut execution);
        assert_eq!((outcome.status, outcome.sense), (scsi::Status::Good, None));
        let read = block::Request::read(8 * BLOCK_BYTES as u64, Buffer::zeroed(BYTES));
        let read = device.submit(read).try_take().expect("memory answers at once").into_buffer().expect("it is there");
        assert!(read[..] == bytes[..], "the pieces are put together");
        polls
    };
    write(1);
    let polls = write(2);
    assert!(polls >= SMALL_PIECES, "{polls} turns for {SMALL_PIECES} pieces");
}

#[test]
fn a_long_verify_lets_others_have_their_turn_between_its_pieces() {
    const BYTES: usize = (PIECES as usize) << 20;
    let (device, target) = target();
    let mut bytes: Vec<u8> = (0..BYTES).map(|at| (at >> 12) as u8 ^ (at >> 20) as u8).collect();
    let written = device.submit(block::Request::write(0, Buffer::copy_of(&bytes), false)).try_take();
    written.expect("memory answers at once").into_buffer().expect("it is written");
    let blocks = Blocks::sixteen(0, (BYTES / BLOCK_BYTES) as u32);
    let verify = |byte_check, data: &[u8]| {
        let cdb = Cdb::Verify(scsi::cdb::Verification { blocks, is_dpo: false, byte_check });
        let mut execution = target.start(cdb.emit(), Buffer::copy_of(data), TaskAttribute::Simple, 1);
        assert!(execution.try_take().is_none(), "it is not over before anybody else had a turn");
        run_counting(&mut execution)
    };
    for (byte_check, data) in [(0, &[][..]), (1, &bytes)] {
        let (outcome, polls) = verify(byte_check, data);
        assert_eq!(outcome.status, scsi::Status::Good);
        assert!(polls >= SMALL_PIECES - 1, "{polls} turns for {SMALL_PIECES} pieces");
    }
    bytes[BYTES - 3] ^= 1;
    let expected = scsi::Sense::MISCOMPARE_DURING_VERIFY.with_information(BYTES as u64 - 3);
    assert_eq!(verify(1, &bytes).0.sense, Some(expected), "of the data, not of its piece");
}

/// Has `target` copy blocks of its only logical unit from one LBA to another.
fn start_copy(target: &Target, identifier: u8, blocks: u16, places: (u64, u64)) -> logical_unit::Execution {
    start_copies(target, identifier, &[(blocks, places)])
}

/// The same of several ranges, one after the other.
fn start_copies(target: &Target, identifier: u8, segments: &[(u16, (u64, u64))]) -> logical_unit::Execution {
    let segment = |&(block_count, (source_lba, destination_lba)): &_| Segment {
        source: 0,
        destination: 0,
        block_count,
        source_lba,
        destination_lba,
    };
    let segments: Vec<Segment> = segments.iter().map(segment).collect();
    let list = emit_list(Some(identifier), &[(name(target), BLOCK_BYTES as u32)], &segments);
    let cdb = Cdb::ExtendedCopy { parameter_list_length: list.len() as u32 };
    target.start(cdb.emit(), Buffer::copy_of(&list), TaskAttribute::Simple, 1)
}

#[test]
fn a_copy_lets_others_have_their_turn_between_its_pieces() {
    let (_device, target) = target();
    let mut execution = start_copy(&target, 1, ((PIECES << 20) / BLOCK_BYTES as u32) as u16, (0, 32768));
    let (outcome, polls) = run_counting(&mut execution);
    assert_eq!((outcome.status, outcome.sense), (scsi::Status::Good, None));
    // Each piece is read and written.
    assert!(polls >= 2 * SMALL_PIECES, "{polls} turns for {SMALL_PIECES} pieces, each moved twice");
}

/// The holder of a copy buffer may wait for blocks that another copy reads.
#[test]
fn copies_in_both_directions_end_with_the_smallest_pool_of_buffers() {
    let device = common::GatedDevice::new();
    let (work_buffers, copy_buffers) = (block::BufferPool::new(1), block::BufferPool::new(1));
    let options = LogicalUnitOptions { work_buffers, copy_buffers, ..LogicalUnitOptions::default() };
    let target = Target::with(std::sync::Arc::clone(&device) as _, options);
    let mut left = vec![start_copy(&target, 1, 8, (0, 16)), start_copy(&target, 2, 8, (16, 0))];
    for _ in 0..12 {
        let context = &mut Context::from_waker(Waker::noop());
        left.retain_mut(|execution| Pin::new(execution).poll(context).is_pending());
        if device.waiting_count() > 0 {
            device.release();
        }
    }
    assert!(left.is_empty(), "{} copies wait for each other", left.len());
}

/// On a slow device the copies' requests delay those of others.
#[test]
fn beside_others_all_copies_have_one_small_piece_in_the_device() {
    let half = common::BLOCK_COUNT / 2;
    beside_others(&[(half as u16, (0, half))]);
}

/// However short the ranges are that a list has: each of one piece.
#[test]
fn beside_others_all_copies_of_short_ranges_have_one_piece_in_the_device() {
    let blocks = COPY_SMALL_PIECE_BYTES / BLOCK_BYTES as u64;
    let ranges: Vec<_> = (0..16).map(|number| (blocks as u16, (number * blocks, (16 + number) * blocks))).collect();
    beside_others(&ranges);
}

fn beside_others(segments: &[(u16, (u64, u64))]) {
    let device = common::GatedDevice::new();
    let target = Target::with(std::sync::Arc::clone(&device) as _, LogicalUnitOptions::default());
    let mut copies: Vec<_> = (0..3).map(|number| start_copies(&target, number, segments)).collect();
    let mut pieces = 0;
    for round in 0..20 {
        let read = Cdb::Read(common::transfer(Blocks::sixteen(0, 1))).emit();
        let _reading = target.start(read, Buffer::empty(), TaskAttribute::Simple, 9);
        let context = &mut Context::from_waker(Waker::noop());
        copies.iter_mut().for_each(|copy| assert!(Pin::new(copy).poll(context).is_pending()));
        let of_copies: Vec<u64> = device.waiting_bytes().into_iter().filter(|&bytes| bytes != 512).collect();
        // Earlier rounds contain requests from before the other command arrived.
        if round >= 4 {
            assert!(of_copies.is_empty() || of_copies == [COPY_SMALL_PIECE_BYTES], "{of_copies:?} bytes of copies");
            pieces += of_copies.len();
        }
        (0..device.waiting_count()).for_each(|_| device.release());
    }
    assert!(pieces >= 8, "{pieces} in 16 rounds");
}

/// Each range of an UNMAP may free memory, on the submitting thread.
#[test]
fn a_long_unmap_lets_others_have_their_turn_between_its_ranges() {
    const RANGES: u32 = 256;
    let (_device, target) = target();
    let mut list = vec![];
    list.extend((6 + RANGES as u16 * 16).to_be_bytes());
    list.extend((RANGES as u16 * 16).to_be_bytes());
    list.extend([0; 4]);
    for range in 0..RANGES {
        list.extend(u64::from(range * 16).to_be_bytes());
        list.extend(8_u32.to_be_bytes());
        list.extend([0; 4]);
    }
    let cdb = Cdb::Unmap { is_anchor: false, parameter_list_length: list.len() as u16 };
    let mut execution = target.start(cdb.emit(), Buffer::copy_of(&list), TaskAttribute::Simple, 1);
    let (outcome, polls) = run_counting(&mut execution);
    assert_eq!((outcome.status, outcome.sense), (scsi::Status::Good, None));
    assert!(polls >= RANGES / 16, "{polls} turns for {RANGES} ranges");
}

/// A list identifier is one byte: a single host can have the results of 256 copies.
#[test]
fn the_result_of_the_oldest_copy_gives_way() {
    let (_device, target) = target();
    let copies = logical_unit::limits::COPY_RESULTS_MAX as u8 + 1;
    for identifier in 1..=copies {
        let outcome = base::executor::block_on(start_copy(&target, identifier, 1, (0, 32768)));
        assert_eq!((outcome.status, outcome.sense), (scsi::Status::Good, None));
    }
    // RECEIVE COPY RESULTS, COPY STATUS (SPC-4 6.20.2).
    let status =
        |identifier| target.run_bytes(&[0x84, 0, identifier, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0], &[]).status;
    assert_eq!(status(1), scsi::Status::CheckCondition);
    assert_eq!((status(2), status(copies)), (scsi::Status::Good, scsi::Status::Good));
}
