//! Several records on their way at once, against a slow obvious model: the list of all appends with what became of
//! each.
//!
//! A store as the cache has one: a superblock that says where replay starts, and a log. Several tasks append, hold what
//! they appended for a while and let it go; a checkpoint moves the start now and then. The power fails at every write,
//! of log and superblock, and then again at every write of the recovery. Whatever lands of the records on their way
//! (each whole, in part or not at all, in any order), replay finds one piece of the list, without holes, with
//! everything that was acknowledged and not let go.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use base::clock::{Clock, VirtualClock};
use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::Latency;
use block::{Error, ErrorKind, SharedDevice};
use futures_util::future::join_all;
use store::limits::{LOG_BYTES_MIN, RECORDS_IN_FLIGHT_MAX};
use store::record::{Claims, emit};
use store::{AppendRefused, LogPosition, LogPositionRaw, RecordLog, Sequence, StoreKind, Superblock, replay};
use uuid::Uuid;

const ID: Uuid = Uuid::from_bytes([3; 16]);
const KIND: StoreKind = StoreKind { code: *b"test\0\0\0\0", version: 1, version_min: 1, name: "test store" };
const MEDIUM_BYTES: u64 = 64 << 10;
const REGION: ByteRange = ByteRange { offset: 4096, length: LOG_BYTES_MIN };
const START: LogPosition = LogPosition { offset: 0, epoch: 1, sequence: Sequence::FIRST, link: 0 };
/// More writes than a life makes.
const WRITES_MAX: u64 = 10_000;

/// What became of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Waiting,
    Acknowledged,
    /// Acknowledged, and its hold dropped: the record is not needed any more.
    LetGo,
    Failed,
}

/// The model: appends in the order of the calls.
#[derive(Default)]
struct Model {
    fates: Vec<Fate>,
}

impl Model {
    /// Whether replay may say that everything up to append `number` was settled.
    fn check_settled(&self, number: usize, context: &str) {
        assert_eq!(self.fates[number], Fate::LetGo, "{context}: append {number} is called settled");
    }

    /// Replay found `numbers`, which become the new start: an append that was not found never
    /// happened.
    fn check_found(&mut self, numbers: &[usize], context: &str) {
        let first = numbers.first().copied().unwrap_or(self.fates.len());
        let expected: Vec<usize> = (first..first + numbers.len()).collect();
        assert_eq!(numbers, expected, "{context}: not one piece");
        assert!(first + numbers.len() <= self.fates.len(), "{context}: {numbers:?} were never appended");
        for (number, fate) in self.fates.iter().enumerate() {
            let is_needed = *fate == Fate::Acknowledged;
            assert!(!is_needed || numbers.contains(&number), "{context}: append {number} is missing of {numbers:?}");
        }
        let is_let_go = |number: usize| self.fates[number] == Fate::LetGo;
        let end = first + numbers.len();
        assert!((0..self.fates.len()).all(|number| number < end || !is_let_go(number)), "{context}: forgotten");
        self.fates.truncate(end);
        // The program that opens the store carries out what replay found and writes a checkpoint:
        // all of it is done.
        self.fates.iter_mut().for_each(|fate| *fate = Fate::LetGo);
    }
}

fn payload(number: usize, random: &mut Random) -> Vec<u8> {
    let length_max = if random.chance(0.2) { 1500 } else { 100 };
    let mut bytes = vec![number as u8; 8 + random.below(length_max) as usize];
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..8].copy_from_slice(&(number as u32).to_le_bytes());
    bytes
}

/// The numbers of the appends in a record.
fn split(mut payload: &[u8]) -> Vec<usize> {
    let mut numbers = Vec::new();
    while !payload.is_empty() {
        let length = u32::from_le_bytes(payload[..4].try_into().unwrap()) as usize;
        let (append, rest) = payload.split_at(length);
        numbers.push(u32::from_le_bytes(append[4..8].try_into().unwrap()) as usize);
        payload = rest;
    }
    numbers
}

fn timed(executor: &mut Executor, medium: &CrashLayer) -> SharedDevice {
    let workers = Workers::new();
    let latency = Latency::Between(Duration::ZERO, Duration::from_micros(100));
    let timed = medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
    executor.spawn(async move { workers.run().await });
    Arc::new(timed)
}

/// A log with the superblock that says where it starts.
struct Store {
    device: SharedDevice,
    log: RecordLog,
    superblock: futures_util::lock::Mutex<Superblock<LogPositionRaw>>,
}

impl Store {
    /// Replays the log, checks what is found, and begins a new epoch, durably.
    async fn open(device: SharedDevice, model: &Mutex<Model>, context: &str) -> Result<Self, Error> {
        let mut superblock: Superblock<LogPositionRaw> = Superblock::read(&device, KIND).await?;
        let mut found = Vec::new();
        let visit = |record: store::Record<'_>| {
            found.push((record.sequence, split(record.payload)));
            Ok(())
        };
        let replayed = replay(&device, REGION, ID, superblock.payload.into(), visit).await.expect(context);
        let numbers: Vec<usize> = found.iter().flat_map(|(_, numbers)| numbers).copied().collect();
        {
            let model = &mut *model.lock().unwrap();
            let settled = found.iter().filter(|(sequence, _)| *sequence <= replayed.settled);
            settled.flat_map(|(_, numbers)| numbers).for_each(|&number| model.check_settled(number, context));
            model.check_found(&numbers, context);
        }
        let start = LogPosition { epoch: replayed.end.epoch + 1, ..replayed.end };
        superblock.payload = start.into();
        superblock.write(&device).await?;
        let log = RecordLog::new(Arc::clone(&device), REGION, ID, start)?;
        Ok(Self { device, log, superblock: futures_util::lock::Mutex::new(superblock) })
    }

    async fn checkpoint(&self) -> Result<(), Error> {
        let mut superblock = self.superblock.lock().await;
        let position = self.log.position_needed();
        superblock.payload = position.into();
        superblock.write(&self.device).await?;
        self.log.release_until(position);
        Ok(())
    }

    /// Appends until the log fails or `count` appends were made, holding each for a while.
    async fn append(&self, model: &Mutex<Model>, clock: &VirtualClock, mut random: Random, count: usize) {
        for _ in 0..count {
            let (appended, number) = {
                let mut model = model.lock().unwrap();
                let number = model.fates.len();
                let appended = self.log.try_append(&payload(number, &mut random));
                if appended.is_ok() {
                    model.fates.push(Fate::Waiting);
                }
                (appended, number)
            };
            let append = match appended {
                Ok(append) => append,
                Err(AppendRefused::Full) => {
                    if self.checkpoint().await.is_err() {
                        return;
                    }
                    clock.sleep(Duration::from_micros(50)).await;
                    continue;
                }
                Err(AppendRefused::Failed(_)) => return,
                Err(AppendRefused::TooLarge) => panic!("payloads here are small"),
            };
            match append.durable().await {
                Ok(hold) => {
                    model.lock().unwrap().fates[number] = Fate::Acknowledged;
                    clock.sleep(Duration::from_micros(random.below(300))).await;
                    model.lock().unwrap().fates[number] = Fate::LetGo;
                    drop(hold);
                }
                Err(_) => {
                    model.lock().unwrap().fates[number] = Fate::Failed;
                    return;
                }
            }
        }
    }
}

/// Opens a store, and lets several tasks append to it. Returns whether it could be opened.
fn live(executor: &mut Executor, device: SharedDevice, model: &Arc<Mutex<Model>>, seed: u64, context: &str) -> bool {
    let (model, clock, context) = (Arc::clone(model), executor.clock(), context.to_owned());
    executor.block_on(async move {
        let Ok(store) = Store::open(device, &model, &context).await else { return false };
        let tasks = 1 + seed % 9;
        let appending = (0..tasks).map(|task| store.append(&model, &clock, Random::new(seed * 16 + task), 12));
        join_all(appending).await;
        true
    })
}

fn new_medium(power: &Power, seed: u64) -> CrashLayer {
    let medium = CrashLayer::on(power, MEDIUM_BYTES, seed);
    let device: SharedDevice = Arc::new(medium.clone());
    Executor::in_order().block_on(async move {
        Superblock::<LogPositionRaw>::create(&device, KIND, ID, START.into()).await.expect("nothing fails yet");
    });
    medium
}

/// A life that ends at write `nth`, crashes in the recovery at each of its writes, and a second
/// life. Returns whether the power failed.
fn lose_power(seed: u64, nth: u64) -> bool {
    let context = format!("seed {seed}, power lost at write {nth}");
    let (power, model) = (Power::new(), Arc::new(Mutex::new(Model::default())));
    let mut medium = new_medium(&power, seed);
    power.fail_write(power.writes_seen() + nth);
    let mut executor = Executor::new(seed);
    let device = timed(&mut executor, &medium);
    live(&mut executor, device, &model, seed, &context);
    drop(executor);
    let was_lost = power.is_lost();
    medium = medium.after_power_loss_as(Loss::Seeded(seed ^ (nth << 8)), &Power::new());
    for recovery_nth in 0.. {
        medium.power().fail_write(recovery_nth);
        let mut executor = Executor::new(seed ^ recovery_nth);
        let device = timed(&mut executor, &medium);
        let (opening, context) = (Arc::clone(&model), context.clone());
        let is_open = executor.block_on(async move { Store::open(device, &opening, &context).await.is_ok() });
        drop(executor);
        medium = medium.after_power_loss_as(Loss::Seeded(seed ^ (recovery_nth << 16)), &Power::new());
        if is_open {
            break;
        }
    }
    let mut executor = Executor::new(seed + 1);
    let device = timed(&mut executor, &medium);
    assert!(live(&mut executor, Arc::clone(&device), &model, seed + 1, &context), "{context}: the second life");
    assert!(live(&mut executor, device, &model, seed + 2, &context), "{context}: the third life");
    was_lost
}

#[test]
fn what_is_acknowledged_survives_a_power_loss_at_every_write() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 9, 1) {
        test.crash_at_every(seed, WRITES_MAX, |nth| lose_power(seed, nth));
    }
}

#[test]
fn an_error_of_one_record_fails_all_behind_it_and_none_before() {
    const ERRORS: u64 = 40;
    let test = block::crash_test!();
    for seed in test.seeds(0, 9, 1) {
        test.crash_at_every(seed, ERRORS, |nth| {
            let context = format!("seed {seed}, write {nth} fails");
            let (power, model) = (Power::new(), Arc::new(Mutex::new(Model::default())));
            let medium = new_medium(&power, seed);
            medium.fail_write_once(medium.writes_seen() + nth, ErrorKind::Media);
            let mut executor = Executor::new(seed);
            let device = timed(&mut executor, &medium);
            live(&mut executor, device, &model, seed, &context);
            {
                let fates = &model.lock().unwrap().fates;
                let failed = fates.iter().position(|fate| *fate == Fate::Failed).unwrap_or(fates.len());
                let is_acknowledged = |fate: &Fate| matches!(fate, Fate::Acknowledged | Fate::LetGo);
                assert!(fates[..failed].iter().all(is_acknowledged), "{context}: {fates:?}");
                assert!(fates[failed..].iter().all(|fate| *fate == Fate::Failed), "{context}: {fates:?}");
            }
            // All writes have ended, so nothing lands any more.
            let log = || medium.durable_bytes(REGION.offset, REGION.length as usize);
            let told = log();
            executor.run();
            assert!(log() == told, "{context}: a record landed after its writer was told");
            drop(executor);
            let medium = medium.after_power_loss_as(Loss::InFlightOnly, &Power::new());
            let mut executor = Executor::new(seed + 1);
            let device = timed(&mut executor, &medium);
            assert!(live(&mut executor, device, &model, seed + 1, &context), "{context}");
            nth + 1 < ERRORS
        });
    }
}

/// The medium of a log with records 1 to `count`, except the `lost` ones; `in_flight` gives each
/// record's claim.
fn log_with_holes(count: u64, in_flight: impl Fn(u64) -> u64, lost: &[u64]) -> SharedDevice {
    let device: SharedDevice = Arc::new(CrashLayer::new(MEDIUM_BYTES, 1));
    let mut position = START;
    for sequence in 1..=count {
        let claims = Claims { settled: Sequence::NONE, in_flight: in_flight(sequence) };
        let (buffer, link) = emit(ID, position, claims, &sequence.to_le_bytes());
        let length = buffer.len() as u64;
        if !lost.contains(&sequence) {
            let device = Arc::clone(&device);
            let offset = REGION.offset + position.offset;
            Executor::in_order().block_on(async move { device.write(offset, buffer, true).await.map(drop).unwrap() });
        }
        position =
            LogPosition { offset: position.offset + length, sequence: Sequence(sequence).next(), link, ..position };
    }
    device
}

fn replay_count(device: SharedDevice) -> Result<u64, Error> {
    let replayed = async move { replay(&device, REGION, ID, START, |_| Ok(())).await };
    Executor::in_order().block_on(replayed).map(|replayed| replayed.record_count)
}

#[test]
fn a_hole_among_records_on_their_way_together_is_the_end() {
    for lost in [&[1][..], &[2], &[2, 3], &[3], &[1, 4], &[4]] {
        let found = replay_count(log_with_holes(4, |sequence| sequence - 1, lost)).expect("nothing was ever promised");
        assert_eq!(found, lost[0] - 1, "without {lost:?}");
    }
}

#[test]
fn a_hole_before_a_record_that_was_made_later_is_damage() {
    let in_flight = |sequence: u64| if sequence == 5 { 2 } else { sequence - 1 };
    for (lost, is_damage) in [(1, true), (2, true), (3, false), (4, false)] {
        let found = replay_count(log_with_holes(5, in_flight, &[lost]));
        match is_damage {
            true => assert_eq!(found.unwrap_err().kind(), ErrorKind::Corrupt, "without {lost}"),
            false => assert_eq!(found.unwrap(), lost - 1, "without {lost}"),
        }
    }
}

#[test]
fn so_many_records_are_on_their_way_and_the_next_gathers() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(MEDIUM_BYTES, 1);
    let device = timed(&mut executor, &medium);
    let log = RecordLog::new(device, REGION, ID, START).unwrap();
    let appends = (RECORDS_IN_FLIGHT_MAX + 3) as u64;
    for number in 0..appends {
        let log = log.clone();
        executor.spawn(async move {
            drop(log.try_append(&number.to_le_bytes()).unwrap().durable().await.unwrap());
        });
        executor.run_until_stalled();
        let expected = (number + 1).min(RECORDS_IN_FLIGHT_MAX as u64);
        assert_eq!(medium.writes_seen(), expected, "after {} appends", number + 1);
    }
    executor.run();
    assert_eq!(medium.writes_seen(), RECORDS_IN_FLIGHT_MAX as u64 + 1, "those that waited share one");
    assert_eq!(log.position_needed().sequence, Sequence(RECORDS_IN_FLIGHT_MAX as u64 + 2));
}

/// A writer whose append is acknowledged answers a client, and appends what that sends next: not in
/// the same turn.
#[test]
fn whoever_was_just_told_appends_to_the_next_record() {
    const WRITERS: u64 = 8;
    const ROUNDS: u64 = 10;
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(MEDIUM_BYTES, 1);
    let device = timed(&mut executor, &medium);
    let log = RecordLog::new(device, REGION, ID, START).unwrap();
    for number in 0..WRITERS {
        let log = log.clone();
        executor.spawn(async move {
            for _ in 0..ROUNDS {
                drop(log.try_append(&number.to_le_bytes()).unwrap().durable().await.unwrap());
                let mut is_next_turn = false;
                poll_fn(|context| {
                    context.waker().wake_by_ref();
                    if std::mem::replace(&mut is_next_turn, true) { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            }
        });
    }
    executor.run();
    assert_eq!(medium.writes_seen(), ROUNDS, "a record a round");
}

/// The append that was woken to poll a write may be dropped; another one polls it.
#[test]
fn an_append_that_nobody_awaits_any_more_holds_up_none() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(MEDIUM_BYTES, 1);
    let device = timed(&mut executor, &medium);
    let log = RecordLog::new(device, REGION, ID, START).unwrap();
    let first = log.try_append(b"first").unwrap();
    let mut waiting = Box::pin(first.durable());
    let second = log.try_append(b"second").unwrap();
    let is_done = Arc::new(Mutex::new(false));
    let done = Arc::clone(&is_done);
    executor.block_on(async move {
        let polled = futures_util::poll!(&mut waiting);
        assert!(polled.is_pending(), "the medium takes time");
        drop(waiting);
        drop(second.durable().await.unwrap());
        *done.lock().unwrap() = true;
    });
    assert!(*is_done.lock().unwrap());
    let third = log.try_append(b"third").unwrap();
    executor.block_on(async move { drop(third.durable().await.unwrap()) });
    assert_eq!(medium.writes_seen(), 2);
}
