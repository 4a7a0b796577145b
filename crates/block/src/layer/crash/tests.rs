use super::*;
use crate::device::DeviceExt;
use base::executor::{Executor, block_on};
use std::collections::BTreeSet;
use std::time::Duration;

const SIZE: u64 = 1 << 20;

fn write(disk: &CrashLayer, offset: u64, fill: u8, length: usize, fua: bool) -> Result<(), ErrorKind> {
    let done = block_on(disk.write(offset, Buffer::copy_of(&vec![fill; length]), fua));
    done.map(drop).map_err(|error| error.kind())
}

fn read(disk: &CrashLayer, offset: u64, length: usize) -> Vec<u8> {
    block_on(disk.read(offset, Buffer::zeroed(length))).expect("the power is on").to_vec()
}

/// The byte of each 512-byte unit, which must be filled with it.
fn units(bytes: &[u8]) -> Vec<u8> {
    for unit in bytes.chunks(ATOMIC_UNIT_BYTES as usize) {
        assert!(unit.iter().all(|byte| *byte == unit[0]), "a unit is torn");
    }
    bytes.chunks(ATOMIC_UNIT_BYTES as usize).map(|unit| unit[0]).collect()
}

#[test]
fn flushed_and_fua_writes_survive_whatever_the_seed() {
    let test = crate::crash_test!();
    for seed in test.seeds(0, 50, 1) {
        let _printed = test.on_panic(seed, None);
        let disk = CrashLayer::new(SIZE, seed);
        write(&disk, 0, 1, 4096, false).expect("the power is on");
        block_on(disk.flush()).expect("the power is on");
        write(&disk, 4096, 2, 4096, true).expect("the power is on");
        write(&disk, 8192, 3, 4096, false).expect("the power is on");
        let after = disk.after_power_loss();
        assert_eq!(read(&after, 0, 4096), [1; 4096]);
        assert_eq!(read(&after, 4096, 4096), [2; 4096]);
        units(&read(&after, 8192, 4096));
        assert_eq!(write(&disk, 0, 9, 512, false), Err(ErrorKind::Gone));
        assert_eq!(block_on(disk.flush()).map_err(|error| error.kind()), Err(ErrorKind::Gone));
        assert!(block_on(disk.read(0, Buffer::zeroed(512))).is_err());
    }
}

/// Over many seeds, every subset of three unflushed writes lands, and torn ones are seen.
#[test]
fn unflushed_writes_land_in_every_combination() {
    let test = crate::crash_test!();
    let (mut subsets, mut torn_count) = (BTreeSet::new(), 0);
    for seed in test.seeds(0, 300, 1) {
        let _printed = test.on_panic(seed, None);
        let disk = CrashLayer::new(SIZE, seed);
        for (index, offset) in [0, 16_384, 8192].into_iter().enumerate() {
            write(&disk, offset, index as u8 + 1, 2048, false).expect("the power is on");
        }
        let after = disk.after_power_loss();
        let landed = [0, 16_384, 8192].map(|offset| units(&read(&after, offset, 2048)));
        torn_count += landed.iter().filter(|units| units.contains(&0) && units.iter().any(|unit| *unit != 0)).count();
        subsets.insert(landed.map(|units| units.iter().all(|unit| *unit != 0)));
    }
    if !test.has_own_seeds() {
        return;
    }
    assert_eq!(subsets.len(), 8);
    assert!(torn_count > 100, "{torn_count} torn writes");
}

#[test]
fn the_write_the_power_fails_at_lands_in_units() {
    let test = crate::crash_test!();
    let mut landed_counts = BTreeSet::new();
    for seed in test.seeds(0, 50, 1) {
        let _printed = test.on_panic(seed, None);
        let disk = CrashLayer::new(SIZE, seed).write_through().fail_write(2);
        write(&disk, 0, 1, 4096, false).expect("the power is on");
        write(&disk, 4096, 1, 4096, false).expect("the power is on");
        assert_eq!(write(&disk, 4096, 2, 4096, true), Err(ErrorKind::Gone));
        assert!(disk.power().is_lost());
        assert_eq!(disk.writes_seen(), 2, "the third met no medium");
        assert_eq!(disk.power().writes_seen(), 3);
        let after = disk.after_power_loss();
        assert_eq!(read(&after, 0, 4096), [1; 4096], "write-through is durable");
        let units = units(&read(&after, 4096, 4096));
        assert!(units.iter().all(|unit| [1, 2].contains(unit)));
        landed_counts.insert(units.iter().filter(|unit| **unit == 2).count());
    }
    if !test.has_own_seeds() {
        return;
    }
    assert!(landed_counts.len() > 4, "{landed_counts:?}");
}

#[test]
fn one_crash_has_one_outcome_per_seed() {
    let disk = CrashLayer::new(SIZE, 3);
    for index in 0..32 {
        write(&disk, index * 4096, 1, 4096, false).expect("the power is on");
    }
    let outcome = |loss| read(&disk.after_power_loss_as(loss, &Power::new()), 0, 32 * 4096);
    assert_eq!(outcome(Loss::Seeded(1)), outcome(Loss::Seeded(1)));
    assert_ne!(outcome(Loss::Seeded(1)), outcome(Loss::Seeded(2)));
    assert!(outcome(Loss::All).iter().all(|byte| *byte == 0));
    assert!(outcome(Loss::InFlightOnly).iter().all(|byte| *byte == 1));
}

/// An older volatile write must not come back over newer durable bytes, by a flush or by a power loss.
#[test]
fn a_durable_write_supersedes_older_volatile_ones() {
    let test = crate::crash_test!();
    for seed in test.seeds(0, 30, 1) {
        let _printed = test.on_panic(seed, None);
        let disk = CrashLayer::new(SIZE, seed);
        write(&disk, 0, 1, 4096, false).expect("the power is on");
        write(&disk, 1024, 2, 1024, true).expect("the power is on");
        assert_eq!(disk.durable_bytes(1024, 1024), [2; 1024]);
        let after = disk.after_power_loss();
        let units = units(&read(&after, 0, 4096));
        assert_eq!(units[2..4], [2, 2]);
    }
    let disk = CrashLayer::new(SIZE, 0);
    write(&disk, 0, 1, 4096, false).expect("the power is on");
    write(&disk, 1024, 2, 1024, true).expect("the power is on");
    block_on(disk.flush()).expect("the power is on");
    assert_eq!(units(&disk.durable_bytes(0, 4096)), [1, 1, 2, 2, 1, 1, 1, 1]);
}

#[test]
fn zeroes_and_discards_are_as_volatile_as_writes() {
    let disk = CrashLayer::new(SIZE, 1);
    write(&disk, 0, 1, 8192, true).expect("the power is on");
    block_on(disk.discard(0, 4096)).expect("the power is on");
    assert_eq!(read(&disk, 0, 4096), [0; 4096]);
    assert_eq!(disk.durable_bytes(0, 4096), [1; 4096]);
    block_on(disk.write_zeroes(4096, 4096, true, false)).expect("the power is on");
    assert_eq!(disk.durable_bytes(4096, 4096), [0; 4096]);
    assert_eq!(disk.writes_seen(), 3);
}

#[test]
fn errors_on_demand_change_nothing_and_pass() {
    let disk = CrashLayer::new(SIZE, 1);
    disk.fail_write_once(1, ErrorKind::Media);
    disk.fail_flush_once(0, ErrorKind::Media);
    assert_eq!(write(&disk, 0, 1, 512, false), Ok(()));
    assert_eq!(write(&disk, 0, 2, 512, false), Err(ErrorKind::Media));
    assert_eq!(read(&disk, 0, 512), [1; 512]);
    assert!(block_on(disk.flush()).is_err());
    assert_eq!(disk.durable_bytes(0, 512), [0; 512]);
    block_on(disk.flush()).expect("it failed once");
    assert_eq!(disk.durable_bytes(0, 512), [1; 512]);
    disk.fail_writes_from(2, ErrorKind::NoSpace);
    disk.fail_reads_of(ByteRange { offset: 512, length: 512 });
    for _ in 0..3 {
        assert_eq!(write(&disk, 0, 3, 512, false), Err(ErrorKind::NoSpace));
    }
    assert!(block_on(disk.read(0, Buffer::zeroed(1024))).is_err());
    disk.heal();
    assert_eq!(write(&disk, 0, 3, 512, false), Ok(()));
    assert_eq!((disk.writes_seen(), disk.flushes_seen()), (6, 2));
    disk.corrupt(0, &[9; 4]);
    assert_eq!(read(&disk, 0, 512)[..5], [9, 9, 9, 9, 3]);
    assert_eq!(disk.after_power_loss().durable_bytes(0, 4), [9; 4]);
}

#[test]
fn one_read_fails_and_the_next_one_works() {
    let disk = CrashLayer::new(SIZE, 1);
    disk.fail_read_once(1, ErrorKind::Media);
    let results: Vec<bool> = (0..3).map(|_| block_on(disk.read(0, Buffer::zeroed(512))).is_ok()).collect();
    assert_eq!((results, disk.reads_seen()), (vec![true, false, true], 3));
}

#[test]
fn what_a_smaller_medium_cut_off_is_zero_when_it_is_as_large_again() {
    let disk = CrashLayer::new(SIZE, 1);
    write(&disk, 0, 1, 1024, true).expect("the power is on");
    write(&disk, 0, 2, 1024, false).expect("the power is on");
    let smaller = disk.after_restart();
    smaller.resize(512);
    assert_eq!(smaller.geometry().size_bytes, 512);
    let larger = smaller.after_restart();
    larger.resize(SIZE);
    assert_eq!(units(&read(&larger, 0, 1024)), [2, 0]);
    block_on(larger.flush()).expect("the power is on");
    assert_eq!(units(&larger.durable_bytes(0, 1024)), [2, 0]);
}

#[test]
fn devices_on_one_power_fail_together() {
    let power = Power::new();
    let (first, second) = (CrashLayer::on(&power, SIZE, 1), CrashLayer::on(&power, SIZE, 2));
    let events = first.subscribe();
    power.fail_write(2);
    assert_eq!(write(&first, 0, 1, 512, true), Ok(()));
    assert_eq!(write(&second, 0, 1, 512, true), Ok(()));
    assert_eq!(write(&second, 0, 1, 512, true), Err(ErrorKind::Gone));
    assert_eq!(write(&first, 0, 1, 512, true), Err(ErrorKind::Gone));
    assert_eq!(events.try_receive(), Some(crate::event::Event::Offline));
    let next = Power::new();
    let restarted = [first, second].map(|disk| disk.after_power_loss_as(Loss::All, &next));
    assert!(restarted.iter().all(|disk| read(disk, 0, 512)[..] == [1; 512]));
}

/// Eight writes are in flight when the power fails at the ninth; none was acknowledged, each lands in its own way, and
/// nothing else changes.
#[test]
fn several_writes_are_in_flight_when_the_power_fails() {
    let test = crate::crash_test!();
    let mut outcomes = BTreeSet::new();
    for seed in test.seeds(0, 40, 1) {
        let _printed = test.on_panic(seed, None);
        let mut executor = Executor::new(seed);
        let workers = Workers::new();
        let latency = Latency::Between(Duration::from_micros(50), Duration::from_micros(500));
        let disk =
            CrashLayer::new(SIZE, seed).with_latency(Arc::new(executor.clock()), latency, &workers).fail_write(8);
        let (writing, running) = (disk.clone(), workers.clone());
        executor.spawn(async move { running.run().await });
        executor.block_on(async move {
            let writes: Vec<_> =
                (0..9).map(|index| writing.write(index * 4096, Buffer::copy_of(&[7; 4096]), true)).collect();
            for write in writes {
                assert_eq!(write.await.expect_err("the power failed").kind(), ErrorKind::Gone);
            }
        });
        let after = disk.after_power_loss();
        let units = units(&read(&after, 0, 9 * 4096));
        assert!(units.iter().all(|unit| [0, 7].contains(unit)));
        assert!(read(&after, 9 * 4096, 65536).iter().all(|byte| *byte == 0));
        outcomes.insert(units);
    }
    if !test.has_own_seeds() {
        return;
    }
    assert!(outcomes.len() > 30, "{} different outcomes", outcomes.len());
    for write in 0..9 {
        let landed = outcomes.iter().filter(|units| units[write * 8..(write + 1) * 8].contains(&7)).count();
        assert!((10..=40).contains(&landed), "write {write} landed {landed} times of 40");
    }
}

/// With random latencies, overlapping writes still end in the order of their submission, and a read
/// sees all writes before it.
#[test]
fn overlapping_requests_keep_their_order() {
    let test = crate::crash_test!();
    for seed in test.seeds(0, 30, 1) {
        let _printed = test.on_panic(seed, None);
        let mut executor = Executor::new(seed);
        let workers = Workers::new();
        let latency = Latency::Between(Duration::ZERO, Duration::from_micros(100));
        let disk = CrashLayer::new(SIZE, seed).with_latency(Arc::new(executor.clock()), latency, &workers);
        let running = workers.clone();
        executor.spawn(async move { running.run().await });
        let device = disk.clone();
        executor.block_on(async move {
            // Dropped completions: the requests finish on the workers, in their order all the same.
            for fill in 1..=5 {
                drop(device.write(0, Buffer::copy_of(&[fill; 1024]), false));
            }
            let early = device.read(0, Buffer::zeroed(1024));
            drop(device.write(512, Buffer::copy_of(&[6; 1024]), false));
            let late = device.read(0, Buffer::zeroed(2048));
            // The later one is awaited first: the earlier one, for which it waits, goes on by
            // itself.
            let (late, early) = (late.await.expect("the power is on"), early.await.expect("the power is on"));
            assert_eq!(units(&early), [5, 5]);
            assert_eq!(units(&late), [5, 6, 6, 0]);
        });
        workers.stop();
    }
}

/// A flush covers the writes completed before it was submitted, and not one that completes while it
/// runs.
#[test]
fn a_flush_covers_what_was_completed_before_it() {
    let mut executor = Executor::in_order();
    let clock = Arc::new(executor.clock());
    let latency = Latency::Fixed(Duration::from_micros(100));
    let workers = Workers::new();
    let disk = CrashLayer::new(SIZE, 1).with_latency(clock, latency, &workers);
    let device = disk.clone();
    executor.spawn(async move { workers.run().await });
    executor.block_on(async move {
        device.write(0, Buffer::copy_of(&[1; 512]), false).await.expect("the power is on");
        let write = device.write(512, Buffer::copy_of(&[2; 512]), false);
        let flush = device.flush();
        write.await.expect("the power is on");
        flush.await.expect("the power is on");
    });
    assert_eq!(units(&disk.durable_bytes(0, 1024)), [1, 0]);
}

/// A host restarts, and the LUN keeps its power: what was volatile is neither lost nor durable.
#[test]
fn a_restart_of_the_other_side_loses_nothing_and_makes_nothing_durable() {
    let test = crate::crash_test!();
    for seed in test.seeds(0, 20, 1) {
        let _printed = test.on_panic(seed, None);
        let disk = CrashLayer::new(SIZE, seed);
        write(&disk, 0, 1, 4096, true).expect("the power is on");
        write(&disk, 0, 2, 4096, false).expect("the power is on");
        let power = Power::new();
        let restarted = disk.after_restart_as(Loss::Seeded(seed), &power);
        assert_eq!(write(&disk, 8192, 9, 512, false), Err(ErrorKind::Gone), "its program is gone");
        assert_eq!(read(&restarted, 0, 4096), [2; 4096]);
        assert_eq!(restarted.durable_bytes(0, 4096), [1; 4096]);
        write(&restarted, 4096, 3, 4096, false).expect("the power is on");
        let again = restarted.after_restart();
        assert_eq!(units(&read(&again, 0, 8192)), [[2; 8], [3; 8]].concat());
        assert_eq!(
            units(&read(&again.after_power_loss_as(Loss::All, &Power::new()), 0, 8192)),
            [[1; 8], [0; 8]].concat()
        );
        let flushed = again.after_restart();
        block_on(flushed.flush()).expect("the power is on");
        assert_eq!(units(&flushed.durable_bytes(0, 8192)), [[2; 8], [3; 8]].concat());
    }
}

/// Writes that the host had sent without an answer may be carried out, in part or not, and are
/// volatile.
#[test]
fn writes_in_flight_at_a_restart_may_be_carried_out() {
    let test = crate::crash_test!();
    let mut outcomes = BTreeSet::new();
    for seed in test.seeds(0, 60, 1) {
        let _printed = test.on_panic(seed, None);
        let mut executor = Executor::new(seed);
        let workers = Workers::new();
        let disk = CrashLayer::new(SIZE, seed);
        let latency = Latency::Fixed(Duration::from_micros(100));
        let device = disk.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
        drop(device.write(0, Buffer::copy_of(&[5; 2048]), true));
        executor.spawn(async move { workers.run().await });
        executor.run_until_stalled();
        let after = disk.after_restart();
        let seen = units(&read(&after, 0, 2048));
        assert_eq!(after.durable_bytes(0, 2048), [0; 2048], "nobody acknowledged it");
        assert_eq!(read(&disk.after_restart_as(Loss::All, &Power::new()), 0, 2048), [0; 2048]);
        outcomes.insert(seen);
    }
    if !test.has_own_seeds() {
        return;
    }
    assert!(outcomes.contains(&vec![0; 4]) && outcomes.contains(&vec![5; 4]) && outcomes.len() > 4, "{outcomes:?}");
}

#[test]
fn a_flush_that_fails_may_drop_what_it_was_to_make_durable() {
    let test = crate::crash_test!();
    for (effect, reported) in [
        (FlushEffect::Drops, Reported::Once),
        (FlushEffect::DropsUnseen, Reported::Once),
        (FlushEffect::DropsUnseen, Reported::ForGood),
    ] {
        let mut lost_count = 0;
        for seed in test.seeds(0, 40, 1) {
            let _printed = test.on_panic(seed, None);
            let disk = CrashLayer::new(SIZE, seed);
            write(&disk, 0, 1, 2048, true).expect("the power is on");
            write(&disk, 0, 2, 2048, false).expect("the power is on");
            disk.fail_flush_as(0, ErrorKind::Media, effect, reported);
            assert!(block_on(disk.flush()).is_err());
            assert_eq!(block_on(disk.flush()).is_err(), reported == Reported::ForGood, "{effect:?}");
            let durable = units(&disk.durable_bytes(0, 2048));
            lost_count += u32::from(durable.contains(&1));
            let seen = units(&read(&disk, 0, 2048));
            assert_eq!(seen, if effect == FlushEffect::Drops { durable.clone() } else { vec![2; 4] });
            // Later writes are flushed as usual.
            write(&disk, 4096, 3, 512, false).expect("the power is on");
            disk.heal();
            block_on(disk.flush()).expect("it is healed");
            assert_eq!(units(&disk.durable_bytes(0, 2048)), durable, "no later flush brings it back");
            assert_eq!(disk.after_power_loss().durable_bytes(4096, 512), [3; 512]);
        }
        assert!(!test.has_own_seeds() || (10..40).contains(&lost_count), "{effect:?}: lost {lost_count} times of 40");
    }
}

#[test]
fn a_write_that_fails_may_land_whole_in_part_or_not_at_all() {
    let test = crate::crash_test!();
    let mut outcomes = BTreeSet::new();
    for seed in test.seeds(0, 60, 1) {
        let _printed = test.on_panic(seed, None);
        for (effect, reported) in [
            (WriteEffect::Whole, Reported::Once),
            (WriteEffect::Torn, Reported::Once),
            (WriteEffect::ByChance, Reported::Once),
            (WriteEffect::Whole, Reported::ForGood),
        ] {
            let disk = CrashLayer::new(SIZE, seed);
            disk.fail_write_as(0, ErrorKind::Media, effect, reported);
            let is_fua = seed % 2 == 0;
            assert_eq!(write(&disk, 0, 7, 2048, is_fua), Err(ErrorKind::Media));
            let seen = units(&read(&disk, 0, 2048));
            assert_eq!(units(&disk.durable_bytes(0, 2048)), if is_fua { seen.clone() } else { vec![0; 4] });
            if effect == WriteEffect::Whole {
                assert_eq!(seen, [7; 4]);
            }
            let next = write(&disk, 8192, 8, 512, false);
            assert_eq!(next.is_err(), reported == Reported::ForGood);
            block_on(disk.flush()).expect("flushes work");
            assert_eq!(units(&disk.durable_bytes(0, 2048)), seen);
            outcomes.insert((effect == WriteEffect::ByChance, seen));
        }
    }
    if !test.has_own_seeds() {
        return;
    }
    let by_chance = outcomes.iter().filter(|(is_by_chance, _)| *is_by_chance).count();
    assert!(by_chance > 5 && outcomes.contains(&(true, vec![0; 4])) && outcomes.contains(&(true, vec![7; 4])));
    assert!(outcomes.len() - by_chance > 5, "{outcomes:?}");
}
