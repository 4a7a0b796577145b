//! Commands that move or change blocks, from CDB to medium and back.

mod common;

use std::sync::{Arc, Mutex};

use block::{Buffer, BufferPool, ErrorKind};
use common::{BLOCK_BYTES, BLOCK_COUNT, Target, memory, transfer};
use logical_unit::{CompareAndWrite, Comparing, Comparison, LogicalUnitOptions};
use proptest::prelude::*;
use scsi::cdb::{Blocks, CacheRange, CdbForm, StartStopUnit, Transfer, Verification, WriteSame};
use scsi::{Cdb, Sense, Status, lba_status, unmap};

fn pattern(blocks: usize, seed: u8) -> Vec<u8> {
    (0..blocks * BLOCK_BYTES)
        .map(|index| (index as u8).wrapping_mul(31).wrapping_add((index >> 8) as u8 ^ seed))
        .collect()
}

#[test]
fn what_is_written_is_read_in_every_form() {
    let target = Target::new();
    for (index, form) in [CdbForm::Six, CdbForm::Ten, CdbForm::Twelve, CdbForm::Sixteen].into_iter().enumerate() {
        let bytes = pattern(3, index as u8);
        let blocks = Blocks { form, lba: 10 * index as u64, count: 3 };
        target.good(Cdb::Write(transfer(blocks)), &bytes);
        assert_eq!(target.data(Cdb::Read(transfer(blocks))), bytes);
    }
}

#[test]
fn read_and_write_in_memory_are_over_at_once() {
    let target = Target::new();
    let read = Cdb::Read(transfer(Blocks::new(0, 8))).emit();
    let mut execution = target.start(read, block::Buffer::empty(), scsi::TaskAttribute::Simple, 1);
    let outcome = execution.try_take().expect("nothing is waited for");
    assert_eq!((outcome.status, outcome.data_in.len()), (Status::Good, 8 * BLOCK_BYTES));
    assert!(execution.try_take().is_none());
}

/// libiscsi Read10.BeyondEol, Read10.ZeroBlocks and their relatives; SBC-3 5.10.
#[test]
fn blocks_past_the_end_are_out_of_range() {
    let target = Target::new();
    for (lba, count) in
        [(BLOCK_COUNT, 1), (BLOCK_COUNT - 1, 2), (1 << 31, 1), (u64::from(u32::MAX), 1), (BLOCK_COUNT + 1, 0)]
    {
        let blocks = Blocks { form: CdbForm::Ten, lba, count };
        target.refuses(Cdb::Read(transfer(blocks)), &[], Sense::LBA_OUT_OF_RANGE);
        target.refuses(Cdb::Write(transfer(blocks)), &vec![0; count as usize * BLOCK_BYTES], Sense::LBA_OUT_OF_RANGE);
        let verification = Verification { blocks, is_dpo: false, byte_check: 0 };
        target.refuses(Cdb::Verify(verification), &[], Sense::LBA_OUT_OF_RANGE);
        let range = CacheRange { blocks, is_immediate: false };
        target.refuses(Cdb::SynchronizeCache(range), &[], Sense::LBA_OUT_OF_RANGE);
        target.refuses(Cdb::Prefetch(range), &[], Sense::LBA_OUT_OF_RANGE);
    }
    let huge = Blocks::sixteen(u64::MAX, 2);
    target.refuses(Cdb::Read(transfer(huge)), &[], Sense::LBA_OUT_OF_RANGE);
    target.good(Cdb::Read(transfer(Blocks::new(0, 0))), &[]);
    target.good(Cdb::Read(transfer(Blocks::new(BLOCK_COUNT - 1, 1))), &[]);
}

#[test]
fn more_than_one_transfer_is_an_invalid_field() {
    let geometry = block::Geometry { transfer_bytes_max: 8192, ..block::Geometry::plain(1 << 20) };
    let device = block::memory::MemoryDevice::with_geometry(geometry, common::identity());
    let target = Target::with(std::sync::Arc::new(device), LogicalUnitOptions::default());
    target.good(Cdb::Read(transfer(Blocks::new(0, 16))), &[]);
    target.refuses(Cdb::Read(transfer(Blocks::new(0, 17))), &[], Sense::INVALID_FIELD_IN_CDB);
    target.refuses(Cdb::Write(transfer(Blocks::new(0, 17))), &[0; 17 * BLOCK_BYTES], Sense::INVALID_FIELD_IN_CDB);
}

/// libiscsi Read10.ReadProtect: without protection information RDPROTECT is an invalid field.
#[test]
fn protection_is_refused_and_dpo_fua_are_taken() {
    let target = Target::new();
    for protect in 1..8u8 {
        let outcome = target.run_bytes(&[0x28, protect << 5, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
        assert!(outcome.sense.is_some_and(|sense| sense.is_same_condition(&Sense::INVALID_FIELD_IN_CDB)));
    }
    let flags = Transfer { blocks: Blocks::new(0, 1), is_dpo: true, is_fua: true };
    target.good(Cdb::Read(flags), &[]);
    target.good(Cdb::Write(flags), &[1; BLOCK_BYTES]);
}

/// Data-out beyond the CDB is cut; data-out that is too short is written to the byte (libiscsi
/// Write10Residuals).
#[test]
fn data_out_of_the_wrong_length() {
    let target = Target::new();
    target.good(Cdb::Write(transfer(Blocks::new(0, 1))), &[7; 2 * BLOCK_BYTES]);
    assert_eq!(target.read(0, 2), [[7; BLOCK_BYTES], [0; BLOCK_BYTES]].as_flattened());
    let verification = Verification { blocks: Blocks::new(0, 2), is_dpo: false, byte_check: 1 };
    for cdb in [Cdb::Write(transfer(Blocks::new(0, 2))), Cdb::WriteAndVerify(verification)] {
        for came in [0, 200, BLOCK_BYTES, BLOCK_BYTES + 1] {
            target.write(0, &[b'a'; 2 * BLOCK_BYTES]);
            target.good(cdb, &vec![b'b'; came]);
            let expected = [vec![b'b'; came], vec![b'a'; 2 * BLOCK_BYTES - came]].concat();
            assert_eq!(target.read(0, 2), expected);
        }
    }
    let verify = Verification { byte_check: 1, ..verification };
    target.refuses(Cdb::Verify(verify), &[b'a'; 200], Sense::INVALID_FIELD_IN_INFORMATION_UNIT);
}

/// A command never waits for a buffer of the pool while it holds another one (found by fuzzing: `scsi_cdb`).
#[test]
fn commands_end_with_the_smallest_pool_of_buffers() {
    let (read_buffers, work_buffers) = (BufferPool::new(1), BufferPool::new(1));
    let options = LogicalUnitOptions { read_buffers, work_buffers, ..LogicalUnitOptions::default() };
    let target = Target::with(memory(), options);
    let blocks = Blocks::new(0, 32);
    target.good(Cdb::Write(transfer(blocks)), &[b'b'; 32 * BLOCK_BYTES - 1]);
    let verification = Verification { blocks, is_dpo: false, byte_check: 1 };
    for came in [32 * BLOCK_BYTES, 32 * BLOCK_BYTES - 1] {
        target.good(Cdb::WriteAndVerify(verification), &vec![b'c'; came]);
    }
    assert_eq!(target.read(31, 1), [[b'c'; BLOCK_BYTES]].as_flattened());
}

#[test]
fn verify_compares_as_bytchk_says() {
    let target = Target::new();
    let bytes = pattern(2, 3);
    target.write(4, &bytes);
    let verify = |byte_check| Cdb::Verify(Verification { blocks: Blocks::new(4, 2), is_dpo: false, byte_check });
    target.good(verify(0), &[]);
    target.good(verify(1), &bytes);
    let mut wrong = bytes.clone();
    wrong[BLOCK_BYTES + 5] ^= 1;
    let outcome = target.run(verify(1), &wrong);
    assert_eq!(outcome.sense, Some(Sense::MISCOMPARE_DURING_VERIFY.with_information(BLOCK_BYTES as u64 + 5)));
    target.refuses(verify(2), &bytes, Sense::INVALID_FIELD_IN_CDB);
    target.refuses(verify(3), &bytes[..BLOCK_BYTES], Sense::MISCOMPARE_DURING_VERIFY);
    target.write(4, &[5; 2 * BLOCK_BYTES]);
    target.good(verify(3), &[5; BLOCK_BYTES]);
}

#[test]
fn write_and_verify_writes() {
    let target = Target::new();
    for (byte_check, seed) in [(0, 1), (1, 2)] {
        let verification = Verification { blocks: Blocks::sixteen(8, 2), is_dpo: true, byte_check };
        target.good(Cdb::WriteAndVerify(verification), &pattern(2, seed));
        assert_eq!(target.read(8, 2), pattern(2, seed));
    }
    let invalid = Verification { blocks: Blocks::new(8, 2), is_dpo: false, byte_check: 3 };
    target.refuses(Cdb::WriteAndVerify(invalid), &pattern(2, 9), Sense::INVALID_FIELD_IN_CDB);
}

#[test]
fn compare_and_write_is_all_or_nothing() {
    let target = Target::new();
    target.write(0, &[b'A'; 2 * BLOCK_BYTES]);
    let cdb = |block_count| Cdb::CompareAndWrite { lba: 0, block_count, is_dpo: false, is_fua: true };
    let mut data_out = [[b'A'; 2 * BLOCK_BYTES], [b'B'; 2 * BLOCK_BYTES]].as_flattened().to_vec();
    data_out[1000] = b'C';
    let outcome = target.run(cdb(2), &data_out);
    assert_eq!(outcome.sense, Some(Sense::MISCOMPARE_DURING_VERIFY.with_information(1000)));
    assert_eq!(target.read(0, 2), [b'A'; 2 * BLOCK_BYTES]);
    data_out[1000] = b'A';
    for wrong_count in [1, 3] {
        target.refuses(cdb(wrong_count), &data_out, Sense::INVALID_FIELD_IN_CDB);
    }
    target.good(cdb(2), &data_out);
    assert_eq!(target.read(0, 2), [b'B'; 2 * BLOCK_BYTES]);
    target.good(cdb(0), &[]);
}

/// A layer below that compares and writes: it returns the result that the test set, and keeps the
/// request.
struct Below {
    answer: Mutex<Result<Comparison, ErrorKind>>,
    asked: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl CompareAndWrite for Below {
    fn compare_and_write(&self, offset: u64, data: Buffer) -> Comparing {
        self.asked.lock().unwrap().push((offset, data.to_vec()));
        let answer = self.answer.lock().unwrap().map_err(block::Error::from);
        Box::pin(async move { answer })
    }
}

#[test]
fn where_others_reach_the_blocks_who_sees_them_all_compares_and_writes() {
    let below = Arc::new(Below { answer: Mutex::new(Ok(Comparison::Written)), asked: Mutex::default() });
    let options = LogicalUnitOptions { compares_below: Some(below.clone()), ..LogicalUnitOptions::default() };
    let target = Target::with(memory(), options);
    let cdb = Cdb::CompareAndWrite { lba: 3, block_count: 1, is_dpo: false, is_fua: false };
    let data_out = [[0; BLOCK_BYTES], [b'B'; BLOCK_BYTES]].concat();
    target.good(cdb, &data_out);
    assert_eq!(*below.asked.lock().unwrap(), [(3 * BLOCK_BYTES as u64, data_out.clone())]);
    assert_eq!(target.read(3, 1), [0; BLOCK_BYTES], "the unit itself wrote nothing");
    let answers = |answer| *below.answer.lock().unwrap() = answer;
    answers(Ok(Comparison::Different { at: Some(7) }));
    target.refuses(cdb, &data_out, Sense::MISCOMPARE_DURING_VERIFY.with_information(7));
    answers(Ok(Comparison::Different { at: None }));
    target.refuses(cdb, &data_out, Sense::MISCOMPARE_DURING_VERIFY);
    answers(Err(ErrorKind::OutcomeUnknown));
    target.refuses(cdb, &data_out, Sense::INTERNAL_TARGET_FAILURE);
    assert_eq!(target.read(3, 1), [0; BLOCK_BYTES]);
    answers(Err(ErrorKind::Unsupported));
    target.good(cdb, &data_out);
    assert_eq!(target.read(3, 1), [b'B'; BLOCK_BYTES], "what cannot do it leaves it to the unit");
}

#[test]
fn write_same_repeats_its_block() {
    let target = Target::new();
    let same = |blocks, is_unmap, has_no_data_out| {
        Cdb::WriteSame(WriteSame { blocks, is_anchor: false, is_unmap, has_no_data_out })
    };
    let block = pattern(1, 7);
    target.good(same(Blocks::new(1, 3), false, false), &block);
    assert_eq!(target.read(1, 3), block.repeat(3));
    target.good(same(Blocks::new(1, 1), true, false), &[0; BLOCK_BYTES]);
    target.good(same(Blocks::sixteen(3, 1), true, true), &[]);
    assert_eq!(target.read(1, 3), [[0; BLOCK_BYTES].as_slice(), &block, &[0; BLOCK_BYTES]].concat());
    target.refuses(same(Blocks::new(0, 0), false, false), &block, Sense::INVALID_FIELD_IN_CDB);
    for wrong in [BLOCK_BYTES / 2, 2 * BLOCK_BYTES] {
        let cdb = same(Blocks::new(0, 1), false, false);
        target.refuses(cdb, &vec![0; wrong], Sense::INVALID_FIELD_IN_CDB);
    }
    let anchored = WriteSame { blocks: Blocks::new(0, 1), is_anchor: true, is_unmap: true, has_no_data_out: false };
    target.refuses(Cdb::WriteSame(anchored), &block, Sense::INVALID_FIELD_IN_CDB);
}

#[test]
fn unmap_checks_the_whole_list_first() {
    let target = Target::new();
    target.write(0, &[1; 4 * BLOCK_BYTES]);
    let unmap = |list: &[(u64, u32)]| {
        let list: Vec<_> = list.iter().map(|&(lba, block_count)| unmap::Descriptor { lba, block_count }).collect();
        let bytes = unmap::emit(&list);
        (Cdb::Unmap { is_anchor: false, parameter_list_length: bytes.len() as u16 }, bytes)
    };
    let (cdb, list) = unmap(&[(0, 1), (BLOCK_COUNT, 1)]);
    target.refuses(cdb, &list, Sense::LBA_OUT_OF_RANGE);
    assert_eq!(target.read(0, 1), [1; BLOCK_BYTES]);
    let (cdb, list) = unmap(&[(0, 1), (2, 0), (3, 1)]);
    target.good(cdb, &list);
    let expected = [[0; BLOCK_BYTES], [1; BLOCK_BYTES], [1; BLOCK_BYTES], [0; BLOCK_BYTES]];
    assert_eq!(target.read(0, 4), expected.as_flattened());
    let (cdb, list) = unmap(&[(0, 0); 257]);
    target.refuses(cdb, &list, Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    target.good(Cdb::Unmap { is_anchor: false, parameter_list_length: 0 }, &[]);
    target.refuses(
        Cdb::Unmap { is_anchor: false, parameter_list_length: 4 },
        &[0; 4],
        Sense::PARAMETER_LIST_LENGTH_ERROR,
    );
    target.refuses(Cdb::Unmap { is_anchor: true, parameter_list_length: 0 }, &[], Sense::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_thick_unit_offers_no_unmap() {
    let target = Target::with(memory(), LogicalUnitOptions { is_thin: false, ..LogicalUnitOptions::default() });
    target.refuses(Cdb::Unmap { is_anchor: false, parameter_list_length: 0 }, &[], Sense::INVALID_OPERATION_CODE);
}

#[test]
fn lba_status_tells_holes() {
    let target = Target::new();
    target.write(600, &[1; BLOCK_BYTES]);
    let runs = lba_status::parse(&target.data(Cdb::GetLbaStatus { lba: 100, allocation_length: 4096 })).unwrap();
    let kinds: Vec<_> = runs.iter().map(|run| (run.lba, run.block_count, run.provisioning)).collect();
    use lba_status::Provisioning::{Deallocated, Mapped};
    assert_eq!(kinds, [(100, 412, Deallocated), (512, 512, Mapped), (1024, 1024, Deallocated)]);
    target.refuses(Cdb::GetLbaStatus { lba: BLOCK_COUNT, allocation_length: 24 }, &[], Sense::LBA_OUT_OF_RANGE);
}

#[test]
fn a_read_only_unit_refuses_every_change() {
    let target = Target::with(memory(), LogicalUnitOptions { is_read_only: true, ..LogicalUnitOptions::default() });
    let blocks = Blocks::new(0, 1);
    let list = unmap::emit(&[unmap::Descriptor { lba: 0, block_count: 1 }]);
    let same = WriteSame { blocks, is_anchor: false, is_unmap: true, has_no_data_out: false };
    for (cdb, data_out) in [
        (Cdb::Write(transfer(blocks)), vec![1; BLOCK_BYTES]),
        (Cdb::WriteAndVerify(Verification { blocks, is_dpo: false, byte_check: 0 }), vec![1; BLOCK_BYTES]),
        (Cdb::WriteSame(same), vec![0; BLOCK_BYTES]),
        (Cdb::CompareAndWrite { lba: 0, block_count: 1, is_dpo: false, is_fua: false }, vec![0; 2 * BLOCK_BYTES]),
        (Cdb::Unmap { is_anchor: false, parameter_list_length: list.len() as u16 }, list),
    ] {
        target.refuses(cdb, &data_out, Sense::WRITE_PROTECTED);
    }
    assert_eq!(target.read(0, 1), [0; BLOCK_BYTES]);
}

/// libiscsi StartStopUnit.Simple and PreventAllow.Eject.
#[test]
fn an_ejected_medium_is_not_there_until_it_is_loaded() {
    let target = Target::with(memory(), LogicalUnitOptions { is_removable: true, ..LogicalUnitOptions::default() });
    let start_stop = |is_start| {
        Cdb::StartStopUnit(StartStopUnit {
            is_immediate: true,
            power_condition: 0,
            is_no_flush: false,
            is_load_eject: true,
            is_start,
        })
    };
    target.good(Cdb::PreventAllowMediumRemoval { prevent: 1 }, &[]);
    target.refuses(start_stop(false), &[], Sense::MEDIUM_REMOVAL_PREVENTED);
    target.good(Cdb::PreventAllowMediumRemoval { prevent: 0 }, &[]);
    target.good(start_stop(false), &[]);
    target.good(Cdb::PreventAllowMediumRemoval { prevent: 1 }, &[]);
    target.refuses(start_stop(true), &[], Sense::MEDIUM_REMOVAL_PREVENTED);
    target.good(Cdb::PreventAllowMediumRemoval { prevent: 0 }, &[]);
    for cdb in [Cdb::TestUnitReady, Cdb::ReadCapacity10, Cdb::Read(transfer(Blocks::new(0, 1)))] {
        target.refuses(cdb, &[], Sense::MEDIUM_NOT_PRESENT);
    }
    target.good(start_stop(true), &[]);
    target.good(Cdb::TestUnitReady, &[]);
    let fixed = Target::new();
    fixed.refuses(start_stop(false), &[], Sense::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_pool_that_lends_one_buffer_serves_reads_one_by_one() {
    let options = LogicalUnitOptions { read_buffers: BufferPool::new(4096), ..LogicalUnitOptions::default() };
    let target = Target::with(memory(), options);
    let held = target.run(Cdb::Read(transfer(Blocks::new(0, 8))), &[]);
    let read = Cdb::Read(transfer(Blocks::new(8, 8))).emit();
    let mut waiting = target.start(read, block::Buffer::empty(), scsi::TaskAttribute::Simple, 2);
    assert!(waiting.try_take().is_none());
    drop(held);
    assert_eq!(base::executor::block_on(waiting).data_in.len(), 4096);
}

proptest! {
    /// Any sequence of writes, against a vector of bytes.
    #[test]
    fn the_disk_is_a_vector(
        operations in proptest::collection::vec((0u64..64, 1usize..8, any::<u8>(), 0..4u8), 1..40),
    ) {
        let target = Target::new();
        let mut model = vec![0u8; 80 * BLOCK_BYTES];
        for (lba, count, seed, kind) in operations {
            let at = lba as usize * BLOCK_BYTES;
            let (blocks, place) = (Blocks::new(lba, count as u32), at..at + count * BLOCK_BYTES);
            match kind {
                0 => {
                    target.write(lba, &pattern(count, seed));
                    model[place].copy_from_slice(&pattern(count, seed));
                }
                1 => {
                    let same = WriteSame { blocks, is_anchor: false, is_unmap: seed % 2 == 0, has_no_data_out: false };
                    target.good(Cdb::WriteSame(same), &[seed; BLOCK_BYTES]);
                    model[place].fill(seed);
                }
                2 => {
                    let list = unmap::emit(&[unmap::Descriptor { lba, block_count: count as u32 }]);
                    target.good(Cdb::Unmap { is_anchor: false, parameter_list_length: list.len() as u16 }, &list);
                    model[place].fill(0);
                }
                _ => {
                    let data_out = [&model[place.clone()], &pattern(count, seed)].concat();
                    let cdb = Cdb::CompareAndWrite { lba, block_count: count as u8, is_dpo: false, is_fua: false };
                    target.good(cdb, &data_out);
                    model[place].copy_from_slice(&pattern(count, seed));
                }
            }
        }
        prop_assert_eq!(target.read(0, 80), model);
    }

    /// No CDB and no data-out panics.
    #[test]
    fn foreign_commands_never_panic(
        cdb in proptest::collection::vec(any::<u8>(), 0..20),
        data_out in proptest::collection::vec(any::<u8>(), 0..1100),
    ) {
        let target = Target::new();
        let _ = target.run_bytes(&cdb, &data_out);
    }

    /// The same with existing operation codes, most of whose bits are allowed.
    #[test]
    fn likely_commands_never_panic(
        row in 0..scsi::cdb::table::ROWS.len(),
        noise in any::<[u8; 16]>(),
        data_out in proptest::collection::vec(any::<u8>(), 0..1100),
    ) {
        let row = &scsi::cdb::table::ROWS[row];
        let mut cdb: Vec<u8> = noise.iter().zip(row.usage()).map(|(noise, usage)| noise & usage).collect();
        cdb[0] = row.operation_code;
        cdb[1] |= row.service_action.unwrap_or(0);
        let target = Target::new();
        let _ = target.run_bytes(&cdb, &data_out);
    }
}
