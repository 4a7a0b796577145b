//! The record log against an obvious model: a list of what was appended. Laps around the region, group commit,
//! releases, and the power failing at every write.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::completion::Workers;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::Latency;
use block::{ErrorKind, SharedDevice};
use futures_util::future::join_all;
use store::limits::LOG_BYTES_MIN;
use store::{AppendRefused, LogPosition, RecordLog, Sequence, replay};
use uuid::Uuid;

const ID: Uuid = Uuid::from_bytes([3; 16]);
const REGION: ByteRange = ByteRange { offset: 4096, length: LOG_BYTES_MIN };
const START: LogPosition = LogPosition { offset: 0, epoch: 1, sequence: Sequence::FIRST, link: 0 };

/// What the program knows: what it appended, what was acknowledged, and where a replay starts.
struct Known {
    appended: Vec<Vec<u8>>,
    acknowledged_count: usize,
    /// Where the last checkpoint says to start, and how many appends came before it.
    start: LogPosition,
    released_count: usize,
}

fn payload(number: usize, random: &mut Random) -> Vec<u8> {
    let length_max = if random.chance(0.1) { 2500 } else { 300 };
    let length = 8 + random.below(length_max) as usize;
    let mut bytes = vec![number as u8; length];
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    bytes[4..8].copy_from_slice(&(number as u32).to_le_bytes());
    bytes
}

/// The appends in a record's payload.
fn split(mut payload: &[u8]) -> Vec<Vec<u8>> {
    let mut appends = Vec::new();
    while !payload.is_empty() {
        let length = u32::from_le_bytes(payload[..4].try_into().unwrap()) as usize;
        let (append, rest) = payload.split_at(length);
        appends.push(append.to_vec());
        payload = rest;
    }
    appends
}

fn replayed(executor: &mut Executor, device: &SharedDevice, from: LogPosition) -> (Vec<Vec<u8>>, LogPosition) {
    let device = Arc::clone(device);
    executor.block_on(async move {
        let mut appends = Vec::new();
        let visit = |record: store::Record<'_>| {
            appends.extend(split(record.payload));
            Ok(())
        };
        let replayed = replay(&device, REGION, ID, from, visit).await.expect("a crash never damages a log");
        (appends, replayed.end)
    })
}

fn timed(executor: &mut Executor, medium: &CrashLayer) -> SharedDevice {
    let workers = Workers::new();
    let latency = Latency::Between(Duration::ZERO, Duration::from_micros(100));
    let timed = medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
    executor.spawn(async move { workers.run().await });
    Arc::new(timed)
}

/// Appends `count` payloads, several at a time, releasing whenever the log is full. Ends early when the medium fails.
async fn append_all(log: RecordLog, known: Arc<Mutex<Known>>, mut random: Random, count: usize) {
    let first = known.lock().unwrap().appended.len();
    let mut number = first;
    let mut holds: VecDeque<(usize, store::Hold)> = VecDeque::new();
    while number < first + count {
        let mut group = Vec::new();
        for _ in 0..=random.below(5) {
            let payload = payload(number, &mut random);
            match log.try_append(&payload) {
                Ok(append) => {
                    known.lock().unwrap().appended.push(payload);
                    number += 1;
                    group.push((number, append));
                }
                Err(AppendRefused::Full) => break,
                Err(AppendRefused::TooLarge) => panic!("payloads here are small"),
                Err(AppendRefused::Failed(_)) => return,
            }
        }
        let is_full = group.is_empty();
        let waiting = group.into_iter().map(|(number, append)| async move { (number, append.durable().await) });
        for (number, hold) in join_all(waiting).await {
            let Ok(hold) = hold else { return };
            known.lock().unwrap().acknowledged_count = number;
            holds.push_back((number, hold));
        }
        if is_full || random.chance(0.2) {
            // What was announced is done, but for the last few; a checkpoint would now be written.
            let kept = random.below(4) as usize;
            while holds.len() > kept {
                holds.pop_front();
            }
            let position = log.position_needed();
            {
                let mut known = known.lock().unwrap();
                known.start = position;
                // A record holds whole appends, so those before the oldest hold may be replayed again with it.
                known.released_count = holds.front().map_or(known.appended.len(), |(number, _)| number - 1);
            }
            log.release_until(position);
        }
    }
}

fn run(seed: u64, fails_at: Option<u64>) -> bool {
    let power = Power::new();
    let mut medium = CrashLayer::on(&power, 64 << 10, seed);
    let known = Known { appended: Vec::new(), acknowledged_count: 0, start: START, released_count: 0 };
    let known = Arc::new(Mutex::new(known));
    if let Some(nth) = fails_at {
        power.fail_write(nth);
    }
    let mut start = START;
    for round in 0..3u64 {
        let mut executor = Executor::new(seed + round);
        let device = timed(&mut executor, &medium);
        let log = RecordLog::new(device, REGION, ID, start).unwrap();
        let random = Random::new(seed * 100 + round);
        executor.block_on(append_all(log, Arc::clone(&known), random, 120));
        let has_crashed = power.is_lost();
        drop(executor);
        if has_crashed {
            medium = medium.after_power_loss_as(Loss::Seeded(seed ^ fails_at.unwrap_or(0)), &Power::new());
        }
        let mut executor = Executor::in_order();
        let device: SharedDevice = Arc::new(medium.clone());
        let mut known = known.lock().unwrap();
        let (appends, end) = replayed(&mut executor, &device, known.start);
        // A contiguous piece of what was appended, from before the release to behind the last acknowledgement.
        let first = appends
            .first()
            .map_or(known.released_count, |append| u32::from_le_bytes(append[4..8].try_into().unwrap()) as usize);
        assert!(first <= known.released_count, "seed {seed}: replay begins with {first}");
        assert_eq!(appends, known.appended[first..first + appends.len()], "seed {seed}, {fails_at:?}");
        assert!(first + appends.len() >= known.acknowledged_count, "seed {seed}, {fails_at:?}: something is missing");
        if has_crashed {
            return true;
        }
        start = LogPosition { epoch: START.epoch + round + 1, ..end };
        known.start = start;
        known.released_count = known.appended.len();
    }
    false
}

#[test]
fn what_is_acknowledged_is_replayed_in_order_through_many_laps() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 20, 1) {
        let _printed = test.on_panic(seed, None);
        assert!(!run(seed, None));
    }
}

#[test]
fn what_is_acknowledged_survives_a_power_loss_at_every_write() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 3, 1) {
        test.crash_at_every(seed, 10_000, |nth| {
            let has_crashed = run(seed, Some(nth));
            assert!(has_crashed || nth > 100, "{nth} writes test little");
            has_crashed
        });
    }
}

fn append_one(executor: &mut Executor, device: &SharedDevice, start: LogPosition, number: usize) {
    let log = RecordLog::new(Arc::clone(device), REGION, ID, start).unwrap();
    let bytes = payload(number, &mut Random::new(number as u64));
    executor.block_on(async move {
        let append = log.append(&bytes).await.unwrap();
        drop(append.durable().await.unwrap());
    });
}

#[test]
fn records_of_an_earlier_epoch_are_never_replayed() {
    let mut executor = Executor::in_order();
    let device: SharedDevice = Arc::new(CrashLayer::new(64 << 10, 1));
    // The first epoch leaves three records; the second starts over the first of them, after a program that did not see
    // any.
    for number in 0..3 {
        let (_, end) = replayed(&mut executor, &device, START);
        append_one(&mut executor, &device, end, number);
    }
    let second = LogPosition { epoch: 2, ..START };
    append_one(&mut executor, &device, second, 9);
    let (appends, end) = replayed(&mut executor, &device, second);
    assert_eq!(appends.len(), 1);
    assert_eq!(end.sequence, Sequence(2));
}

/// A record of an earlier epoch that landed only after the next opening had replayed: it was never
/// acknowledged, and that opening has said that the log ends before it.
#[test]
fn a_record_of_an_earlier_epoch_that_follows_the_last_one_is_not_replayed() {
    let mut executor = Executor::in_order();
    let device: SharedDevice = Arc::new(CrashLayer::new(64 << 10, 1));
    let mut end = START;
    let mut ends = Vec::new();
    for number in 0..2 {
        append_one(&mut executor, &device, end, number);
        end = replayed(&mut executor, &device, START).1;
        ends.push(end);
    }
    let second = LogPosition { epoch: 2, ..ends[0] };
    assert_eq!(replayed(&mut executor, &device, second), (Vec::new(), second));
}

/// Two histories of one epoch, as of a device and an older copy of it.
#[test]
fn a_record_that_followed_another_one_is_not_replayed() {
    let mut executor = Executor::in_order();
    let media = [1, 2].map(|first| {
        let medium = CrashLayer::new(64 << 10, 1);
        let device: SharedDevice = Arc::new(medium.clone());
        for byte in [first, 9] {
            let end = replayed(&mut executor, &device, START).1;
            let log = RecordLog::new(Arc::clone(&device), REGION, ID, end).unwrap();
            let mut bytes = vec![byte; 100];
            bytes[..4].copy_from_slice(&100u32.to_le_bytes());
            executor.block_on(async move { drop(log.append(&bytes).await.unwrap().durable().await.unwrap()) });
        }
        medium
    });
    let device: SharedDevice = Arc::new(media[0].clone());
    assert_eq!(replayed(&mut executor, &device, START).0.len(), 2);
    let second_at = REGION.offset + store::record::record_bytes(100);
    media[0].corrupt(second_at, &media[1].durable_bytes(second_at, 512));
    assert_eq!(replayed(&mut executor, &device, START).0.len(), 1);
}

#[test]
fn damage_in_the_middle_is_an_error_and_never_a_shorter_log() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(64 << 10, 1);
    let device: SharedDevice = Arc::new(medium.clone());
    let log = RecordLog::new(Arc::clone(&device), REGION, ID, START).unwrap();
    executor.block_on(async move {
        for number in 0..4 {
            let bytes = payload(number, &mut Random::new(number as u64));
            drop(log.append(&bytes).await.unwrap().durable().await.unwrap());
        }
    });
    medium.corrupt(REGION.offset + 100, &[0xa5; 8]);
    let damaged = Arc::clone(&device);
    let error = executor.block_on(async move { replay(&damaged, REGION, ID, START, |_| Ok(())).await.unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("record 1 is missing"), "{error}");
}

/// The second record was made when the first was durable, and says so.
#[test]
fn damage_of_the_last_record_but_one_is_an_error_where_each_was_on_its_way_alone() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(64 << 10, 1);
    let device: SharedDevice = Arc::new(medium.clone());
    let log = RecordLog::new(Arc::clone(&device), REGION, ID, START).unwrap();
    executor.block_on(async move {
        for _ in 0..2 {
            drop(log.append(&payload(0, &mut Random::new(1))).await.unwrap().durable().await.unwrap());
        }
    });
    medium.corrupt(REGION.offset + 100, &[0xa5; 8]);
    let error = executor.block_on(async move { replay(&device, REGION, ID, START, |_| Ok(())).await.unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn a_failed_medium_fails_the_log_for_good() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(64 << 10, 1);
    medium.fail_write_once(1, ErrorKind::Media);
    let log = RecordLog::new(Arc::new(medium), REGION, ID, START).unwrap();
    executor.block_on(async move {
        drop(log.append(b"first").await.unwrap().durable().await.unwrap());
        let failed = log.append(b"second").await.unwrap().durable().await.map(drop);
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Media);
        assert_eq!(log.append(b"third").await.map(drop).unwrap_err().kind(), ErrorKind::Media);
        assert!(log.failure().is_some());
    });
}

#[test]
fn appends_share_a_record_while_one_is_on_its_way() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(64 << 10, 1);
    let device = timed(&mut executor, &medium);
    let log = RecordLog::new(device, REGION, ID, START).unwrap();
    let sequences = executor.block_on(async move {
        let appends: Vec<_> = (0..10u8).map(|byte| log.try_append(&[byte; 8]).unwrap()).collect();
        let sequences: Vec<Sequence> = appends.iter().map(store::Append::sequence).collect();
        for hold in join_all(appends.into_iter().map(store::Append::durable)).await {
            drop(hold.unwrap());
        }
        sequences
    });
    assert!(sequences.iter().all(|&sequence| sequence == Sequence::FIRST), "{sequences:?}");
    assert_eq!(medium.writes_seen(), 1);
}

#[test]
fn a_full_log_waits_for_a_release_and_refuses_what_never_fits() {
    let mut executor = Executor::in_order();
    let log = RecordLog::new(Arc::new(CrashLayer::new(64 << 10, 1)), REGION, ID, START).unwrap();
    let too_large = vec![0; log.payload_bytes_max() + 1];
    assert!(matches!(log.try_append(&too_large), Err(AppendRefused::TooLarge)));
    let filling = log.clone();
    executor.block_on(async move {
        while let Ok(append) = filling.try_append(&[1; 400]) {
            drop(append.durable().await.unwrap());
        }
    });
    assert_eq!(log.usage().used_bytes, log.usage().region_bytes);
    let waiting = log.clone();
    let is_done = Arc::new(Mutex::new(false));
    let done = Arc::clone(&is_done);
    executor.spawn(async move {
        drop(waiting.append(&[2; 400]).await.unwrap().durable().await.unwrap());
        *done.lock().unwrap() = true;
    });
    executor.run();
    assert!(!*is_done.lock().unwrap());
    log.release_until(log.position_needed());
    executor.run();
    assert!(*is_done.lock().unwrap());
}

/// What an append announced may be durable in its record alone: others may count on it, and a replay still needs the
/// record.
#[test]
fn a_settled_hold_lets_later_records_call_its_own_settled_and_keeps_it() {
    let mut executor = Executor::in_order();
    let device: SharedDevice = Arc::new(CrashLayer::new(64 << 10, 1));
    let log = RecordLog::new(Arc::clone(&device), REGION, ID, START).unwrap();
    let needed = executor.block_on(async move {
        let append = async |number| {
            let bytes = payload(number, &mut Random::new(number as u64));
            log.append(&bytes).await.unwrap().durable().await.unwrap()
        };
        let held = append(0).await.settle();
        let other = held.clone();
        drop(append(1).await);
        let mut needed = vec![log.position_needed().sequence];
        drop(held);
        needed.push(log.position_needed().sequence);
        drop(other);
        needed.push(log.position_needed().sequence);
        needed
    });
    assert_eq!(needed, [1, 1, 3].map(Sequence), "it is kept until nobody holds it");
    let found = executor.block_on(async move { replay(&device, REGION, ID, START, |_| Ok(())).await.unwrap() });
    assert_eq!((found.record_count, found.settled), (2, Sequence(1)));
}
