//! A difference beside a slow, obvious model, with the power failing at every write.

use std::sync::{Arc, Mutex, Weak};

use base::executor::block_on;
use base::random::Random;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, FlushEffect, Loss, Power, Reported};
use block::layer::read_only::ReadOnlyLayer;
use block::memory::MemoryDevice;
use block::{
    Buffer, Completion, Device, Error, ErrorKind, EventReceiver, ExtentKind, Geometry, Identity, Request, SharedDevice,
};
use futures_util::future::join_all;
use uuid::Uuid;

use super::{Difference, DifferenceOptions};

const CHUNK: u64 = 4096;
/// The last chunk is short.
const BASE_BYTES: u64 = 24 * CHUNK + 1024;
const DIFFERENCE_BYTES: u64 = 128 << 10;
const OPTIONS: DifferenceOptions =
    DifferenceOptions { uuid: Uuid::from_bytes([7; 16]), chunk_bytes: CHUNK as u32, generation: 0 };

fn identity(serial: &str) -> Identity {
    Identity { target: "iqn.base".into(), unit: "u".into(), serial: serial.into() }
}

/// A read-only base whose sectors hold their numbers.
fn base() -> SharedDevice {
    let memory: SharedDevice = Arc::new(MemoryDevice::new(BASE_BYTES, identity("1")));
    for sector in 0..BASE_BYTES / 512 {
        block_on(memory.write(sector * 512, sector_of(1_000_000 + sector), false)).unwrap();
    }
    Arc::new(ReadOnlyLayer::new(memory))
}

fn sector_of(stamp: u64) -> Buffer {
    Buffer::copy_of(&stamp.to_le_bytes().repeat(64))
}

fn stamps(bytes: &[u8]) -> Vec<u64> {
    let stamp = |sector: &[u8]| {
        let stamp = u64::from_le_bytes(sector[..8].try_into().unwrap());
        assert_eq!(sector, stamp.to_le_bytes().repeat(64), "a sector is torn");
        stamp
    };
    bytes.chunks(512).map(stamp).collect()
}

fn format(difference: &SharedDevice, base: &SharedDevice, options: DifferenceOptions) -> Result<(), Error> {
    let (difference, base) = (Arc::clone(difference), Arc::clone(base));
    block_on(async move { Difference::format(&difference, &base, options).await })
}

fn made(difference: &SharedDevice, base: &SharedDevice) -> Difference {
    format(difference, base, OPTIONS).unwrap();
    opened(difference, base)
}

fn opened(difference: &SharedDevice, base: &SharedDevice) -> Difference {
    block_on(Difference::open(Arc::clone(difference), Arc::clone(base), None)).unwrap()
}

fn memory(bytes: u64) -> SharedDevice {
    Arc::new(MemoryDevice::new(bytes, Identity::default()))
}

fn read_all(device: &Difference) -> Vec<u64> {
    stamps(&block_on(device.read(0, Buffer::zeroed(BASE_BYTES as usize))).unwrap())
}

/// Contents that each sector may have: that of the last flush, and each one written since.
struct Model {
    sectors: Vec<Vec<u64>>,
    stamp: u64,
}

impl Model {
    fn new() -> Self {
        Self { sectors: (0..BASE_BYTES / 512).map(|sector| vec![1_000_000 + sector]).collect(), stamp: 1 }
    }

    fn write(&mut self, first: u64, stamp: impl Fn(u64) -> u64, count: u64) {
        for index in 0..count {
            self.sectors[(first + index) as usize].push(stamp(index));
        }
    }

    fn flush(&mut self) {
        for sector in &mut self.sectors {
            sector.drain(..sector.len() - 1);
        }
    }

    fn now(&self) -> Vec<u64> {
        self.sectors.iter().map(|sector| *sector.last().unwrap()).collect()
    }

    fn check_after_crash(&self, found: &[u64], context: &str) {
        for (number, (allowed, stamp)) in self.sectors.iter().zip(found).enumerate() {
            assert!(allowed.contains(stamp), "{context}: sector {number} holds {stamp}, not one of {allowed:?}");
        }
    }
}

/// Carries out `count` random requests, or as many as succeed; the model notes each before it is
/// sent.
fn work(device: &Difference, model: &mut Model, seed: u64, count: usize) -> bool {
    let mut random = Random::new(seed);
    for _ in 0..count {
        let sectors = BASE_BYTES / 512;
        let length = 1 + random.below(20);
        let first = random.below(sectors - length + 1);
        let result = match random.below(10) {
            0..5 => {
                let stamp = model.stamp;
                model.stamp += length;
                let fua = random.chance(0.1);
                model.write(first, |index| stamp + index, length);
                let bytes: Vec<u8> = (0..length).flat_map(|index| sector_of(stamp + index).to_vec()).collect();
                let written = block_on(device.write(first * 512, Buffer::copy_of(&bytes), fua)).map(drop);
                if fua && written.is_ok() {
                    for sector in &mut model.sectors[first as usize..(first + length) as usize] {
                        sector.drain(..sector.len() - 1);
                    }
                }
                written
            }
            5 => {
                model.write(first, |_| 0, length);
                block_on(device.discard(first * 512, length * 512))
            }
            6 => {
                model.write(first, |_| 0, length);
                block_on(device.write_zeroes(first * 512, length * 512, false, true))
            }
            7 => {
                let flushed = block_on(device.flush());
                if flushed.is_ok() {
                    model.flush();
                }
                flushed
            }
            _ => block_on(device.read(first * 512, Buffer::zeroed(length as usize * 512))).map(|bytes| {
                let expected = &model.now()[first as usize..(first + length) as usize];
                assert_eq!(stamps(&bytes), expected, "seed {seed}");
            }),
        };
        if result.is_err() {
            return false;
        }
    }
    true
}

#[test]
fn it_reads_what_was_written_and_the_base_elsewhere() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 20, 1) {
        let _printed = test.on_panic(seed, None);
        let (base, difference) = (base(), memory(DIFFERENCE_BYTES));
        let device = made(&difference, &base);
        assert_eq!(read_all(&device), Model::new().now());
        let mut model = Model::new();
        assert!(work(&device, &mut model, seed, 300));
        assert_eq!(read_all(&device), model.now());
        block_on(device.flush()).unwrap();
        let used_bytes = device.status().used_bytes;
        drop(device);
        let device = opened(&difference, &base);
        assert_eq!(read_all(&device), model.now(), "seed {seed}, opened again");
        assert_eq!(device.status().used_bytes, used_bytes);
    }
}

#[test]
fn what_was_flushed_is_there_whatever_write_the_power_fails_at() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 6, 1) {
        test.crash_at_every(seed, 10_000, |nth| {
            let base = base();
            let medium = CrashLayer::new(DIFFERENCE_BYTES, seed);
            let difference: SharedDevice = Arc::new(medium.clone());
            let device = made(&difference, &base);
            medium.power().fail_write(medium.power().writes_seen() + nth);
            let mut model = Model::new();
            let has_finished = work(&device, &mut model, seed, 120);
            drop(device);
            if has_finished {
                assert!(nth > 50, "so few writes test nothing");
                return false;
            }
            let after = medium.after_power_loss_as(Loss::Seeded(seed ^ nth), &Power::new());
            let difference: SharedDevice = Arc::new(after);
            let device = opened(&difference, &base);
            let found = read_all(&device);
            model.check_after_crash(&found, &format!("seed {seed}, power lost at write {nth}"));
            // The next life continues with what was found.
            let mut model = Model { sectors: found.into_iter().map(|stamp| vec![stamp]).collect(), ..model };
            assert!(work(&device, &mut model, seed + 100, 40));
            assert_eq!(read_all(&device), model.now());
            true
        });
    }
}

#[test]
fn a_difference_that_is_half_made_is_none() {
    for nth in 0.. {
        let (base, medium) = (base(), CrashLayer::new(DIFFERENCE_BYTES, 1));
        let difference: SharedDevice = Arc::new(medium.clone());
        medium.power().fail_write(nth);
        if format(&difference, &base, OPTIONS).is_ok() {
            assert!(nth > 1);
            return;
        }
        let difference: SharedDevice = Arc::new(medium.after_power_loss());
        match block_on(Difference::open(difference, base, None)) {
            // The first copy of its superblock has landed, so the difference is whole.
            Ok(device) => assert_eq!(read_all(&device), Model::new().now()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
        }
    }
}

#[test]
fn a_full_difference_refuses_and_discarding_gives_room_back() {
    let (base, difference) = (base(), memory(4096 + 4096 + 8 * CHUNK + 4096));
    let device = made(&difference, &base);
    assert_eq!(device.status().room_bytes, 8 * CHUNK);
    let whole = || Buffer::copy_of(&[9; CHUNK as usize]);
    for chunk in 0..8 {
        block_on(device.write(chunk * CHUNK, whole(), false)).unwrap();
    }
    let error = block_on(device.write(8 * CHUNK, whole(), false)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    block_on(device.write(7 * CHUNK, whole(), false)).expect("what has a slot can be written");
    assert_eq!(stamps(&block_on(device.read(8 * CHUNK, Buffer::zeroed(512))).unwrap()), [1_000_064]);
    block_on(device.discard(2 * CHUNK, CHUNK)).unwrap();
    block_on(device.write(8 * CHUNK, whole(), false)).expect("the map is stored first, and there is room");
    assert_eq!(block_on(device.read(2 * CHUNK, Buffer::zeroed(512))).unwrap()[..], [0; 512]);
    assert_eq!(device.status().used_bytes, 8 * CHUNK);
}

#[test]
fn writers_of_one_chunk_and_of_many_meet_in_order() {
    let (base, difference) = (base(), memory(DIFFERENCE_BYTES));
    let device = made(&difference, &base);
    let writes = (0..64).map(|index| device.write(index % 48 * 512, sector_of(index), false));
    assert!(block_on(join_all(writes)).iter().all(Result::is_ok));
    let expected: Vec<u64> = (0..48).map(|sector| if sector < 16 { 48 + sector } else { sector }).collect();
    assert_eq!(read_all(&device)[..48], expected);
    assert_eq!(device.status().used_bytes, 6 * CHUNK, "one slot a chunk");
}

#[test]
fn it_belongs_to_one_base_and_has_an_identity_of_its_own() {
    let (base, difference) = (base(), memory(DIFFERENCE_BYTES));
    let device = made(&difference, &base);
    assert_eq!(device.identity().serial, "07".repeat(16));
    assert_ne!(device.identity(), base.identity());
    let other: SharedDevice = Arc::new(MemoryDevice::new(BASE_BYTES, identity("2")));
    let error = block_on(Difference::open(Arc::clone(&difference), other, None)).err().unwrap();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("serial 2"), "{error}");
    let none = block_on(Difference::open(memory(DIFFERENCE_BYTES), Arc::clone(&base), None)).err().unwrap();
    assert_eq!(none.kind(), ErrorKind::Corrupt);
    for (bytes, chunk_bytes, kind) in [
        (4096, 4096, ErrorKind::InvalidRange),
        (DIFFERENCE_BYTES, 1000, ErrorKind::InvalidRange),
        (DIFFERENCE_BYTES, 2 << 20, ErrorKind::InvalidRange),
    ] {
        let options = DifferenceOptions { chunk_bytes, ..OPTIONS };
        assert_eq!(format(&memory(bytes), &base, options).unwrap_err().kind(), kind);
    }
}

#[test]
fn a_map_that_contradicts_itself_is_an_error() {
    let (base, difference) = (base(), memory(DIFFERENCE_BYTES));
    let device = made(&difference, &base);
    block_on(device.write(0, Buffer::zeroed(1024), true)).unwrap();
    drop(device);
    let mut entries = [0; super::format::ENTRIES_PER_SECTOR];
    (entries[0], entries[1]) = (1, 1);
    for second in [1, 1000] {
        entries[1] = second;
        let sector = super::format::emit_sector(OPTIONS.uuid, 0, &entries);
        block_on(difference.write(4096, Buffer::copy_of(&sector), false)).unwrap();
        let error = block_on(Difference::open(Arc::clone(&difference), Arc::clone(&base), None)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    block_on(difference.write(4096, Buffer::copy_of(&[1; 512]), false)).unwrap();
    assert!(block_on(Difference::open(difference, base, None)).is_err());
}

#[test]
fn extents_are_the_bases_with_what_differs_on_top() {
    let base = memory(16 * CHUNK);
    let difference = memory(DIFFERENCE_BYTES);
    let device = made(&difference, &base);
    block_on(device.write(4 * CHUNK, Buffer::zeroed(2 * CHUNK as usize), false)).unwrap();
    let extents = block_on(device.extents(0, 16 * CHUNK)).unwrap();
    let found: Vec<_> = extents.iter().map(|extent| (extent.range.offset, extent.range.length, extent.kind)).collect();
    let expected = [
        (0, 4 * CHUNK, ExtentKind::Hole),
        (4 * CHUNK, 2 * CHUNK, ExtentKind::Data),
        (6 * CHUNK, 10 * CHUNK, ExtentKind::Hole),
    ];
    assert_eq!(found, expected);
}

#[test]
fn what_fails_below_is_an_error_and_changes_nothing() {
    let base = base();
    let medium = CrashLayer::new(DIFFERENCE_BYTES, 3);
    let difference: SharedDevice = Arc::new(medium.clone());
    let device = made(&difference, &base);
    medium.fail_write_once(medium.writes_seen(), ErrorKind::Media);
    assert_eq!(block_on(device.write(512, sector_of(1), false)).unwrap_err().kind(), ErrorKind::Media);
    assert_eq!((read_all(&device), device.status().used_bytes), (Model::new().now(), 0));
    block_on(device.write(512, sector_of(1), false)).unwrap();
    // The flush stores the map, and fails; the next one stores it again.
    medium.fail_write_once(medium.writes_seen(), ErrorKind::Media);
    assert_eq!(block_on(device.flush()).unwrap_err().kind(), ErrorKind::Media);
    block_on(device.flush()).unwrap();
    drop(device);
    let difference: SharedDevice = Arc::new(medium.after_power_loss());
    assert_eq!(read_all(&opened(&difference, &base))[1], 1);
}

/// A failing flush may drop data, and the next one succeed. The rest of a chunk around a write was
/// never written by a client.
#[test]
fn what_nobody_wrote_stays_what_the_base_has_though_a_flush_drops_its_chunk() {
    for effect in [FlushEffect::Drops, FlushEffect::DropsUnseen] {
        let base = base();
        let medium = CrashLayer::new(DIFFERENCE_BYTES, 3);
        let device = made(&(Arc::new(medium.clone()) as SharedDevice), &base);
        block_on(device.write(512, sector_of(1), false)).unwrap();
        medium.fail_flush_as(medium.flushes_seen(), ErrorKind::Media, effect, Reported::Once);
        assert!(block_on(device.flush()).is_err());
        match block_on(device.read(0, Buffer::zeroed(CHUNK as usize))) {
            Ok(bytes) => assert_eq!(stamps(&bytes)[2..], Model::new().now()[2..8], "{effect:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Media),
        }
        let _ = block_on(device.flush());
        drop(device);
        let difference: SharedDevice = Arc::new(medium.after_power_loss_as(Loss::All, &Power::new()));
        let found = read_all(&opened(&difference, &base));
        let mut expected = Model::new().now();
        expected[1] = found[1];
        assert_eq!(found, expected, "{effect:?}");
    }
}

/// Its owner knows what became of the device, and says so before the error is answered.
#[test]
fn what_its_owner_knows_of_the_device_decides_what_goes_on_after_an_error() {
    for are_slots_whole in [true, false] {
        let base = base();
        let medium = CrashLayer::new(DIFFERENCE_BYTES, 3);
        let device = Arc::new(made(&(Arc::new(medium.clone()) as SharedDevice), &base));
        let owner = Arc::downgrade(&device);
        device.on_error(move |error| {
            let device = owner.upgrade().expect("it has asked something");
            if are_slots_whole { device.refuse_writes(error.clone()) } else { device.give_up(error.clone()) }
        });
        block_on(device.write(512, sector_of(1), true)).unwrap();
        if are_slots_whole {
            medium.fail_flush_as(medium.flushes_seen(), ErrorKind::Media, FlushEffect::None, Reported::Once);
            assert!(block_on(device.flush()).is_err());
        } else {
            medium.fail_write_once(medium.writes_seen(), ErrorKind::Media);
            assert!(block_on(device.write(4 * CHUNK, sector_of(2), false)).is_err());
        }
        let read = |offset| block_on(device.read(offset, Buffer::zeroed(512))).map(|bytes| stamps(&bytes)[0]).ok();
        assert_eq!(read(512), are_slots_whole.then_some(1));
        assert_eq!(read(8 * CHUNK), Some(1_000_064), "that is the base's");
        for refused in [
            block_on(device.write(512, sector_of(3), false)).map(drop),
            block_on(device.write(8 * CHUNK, sector_of(3), false)).map(drop),
            block_on(device.discard(8 * CHUNK, CHUNK)),
            block_on(device.flush()),
        ] {
            assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Media));
        }
        assert_eq!(read(8 * CHUNK), Some(1_000_064));
    }
}

#[test]
fn requests_that_nobody_awaits_are_carried_on() {
    let (base, difference) = (base(), memory(DIFFERENCE_BYTES));
    let device = made(&difference, &base);
    let mut executor = base::executor::Executor::in_order();
    executor.spawn(device.run());
    drop(device.submit(Request::write(0, sector_of(5), false)));
    executor.run();
    device.stop();
    assert_eq!(read_all(&device)[0], 5);
}

#[test]
fn a_base_provisioned_anew_is_refused() {
    let (base, difference) = (base(), memory(DIFFERENCE_BYTES));
    format(&difference, &base, DifferenceOptions { generation: 3, ..OPTIONS }).unwrap();
    let open = |generation| block_on(Difference::open(Arc::clone(&difference), Arc::clone(&base), generation));
    assert_eq!(open(Some(3)).ok().unwrap().status().generation, 3);
    assert!(open(None).is_ok(), "who says nothing takes it as it is");
    let error = open(Some(4)).err().unwrap();
    let words = error.to_string();
    assert!(error.kind() == ErrorKind::Corrupt && words.contains("generation 3") && words.contains("generation 4"));
    let unnumbered = memory(DIFFERENCE_BYTES);
    format(&unnumbered, &base, OPTIONS).unwrap();
    assert!(block_on(Difference::open(unnumbered, Arc::clone(&base), Some(1))).is_err());
}

#[test]
fn what_the_base_has_is_noted_in_both_copies_of_the_superblock() {
    let (base, difference) = (base(), memory(DIFFERENCE_BYTES));
    let device = Arc::new(made(&difference, &base));
    let contents = |device: Arc<Difference>| block_on(async move { device.contents().await });
    assert_eq!(contents(Arc::clone(&device)), [] as [crate::ContentId; 0], "nobody has said it");
    let ids = [[1; 16], [2; 16]];
    let noting = Arc::clone(&device);
    block_on(async move { noting.note_contents(&ids).await }).unwrap();
    assert_eq!(contents(device), ids);
    for lost in [0, DIFFERENCE_BYTES - 4096] {
        block_on(difference.write(lost, Buffer::copy_of(&[1; 4096]), false)).unwrap();
        assert_eq!(contents(Arc::new(opened(&difference, &base))), ids);
    }
}

/// What is in slots belongs to the base of before.
#[test]
fn nothing_of_another_base_is_read_or_goes_along_and_what_was_written_before_is_flushed() {
    let (base, difference) = (base(), memory(DIFFERENCE_BYTES));
    let device = made(&difference, &base);
    block_on(device.write(0, sector_of(5), false)).unwrap();
    let refusal = || Error::new(ErrorKind::Gone, "another base");
    assert!(device.refusal().is_none());
    assert!(device.refuse_base(refusal()) && !device.refuse_base(refusal()));
    assert_eq!(device.refusal().unwrap().kind(), ErrorKind::Gone);
    let refused = [
        block_on(device.read(0, Buffer::zeroed(512))).map(drop),
        block_on(device.read(CHUNK, Buffer::zeroed(512))).map(drop),
        block_on(device.write(0, sector_of(6), false)).map(drop),
        block_on(device.write(CHUNK, sector_of(6), false)).map(drop),
        block_on(device.discard(0, CHUNK)),
        block_on(device.extents(0, CHUNK)).map(drop),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Gone);
    }
    block_on(device.flush()).unwrap();
    let after = opened(&difference, &base);
    assert_eq!((read_all(&after)[0], after.status().used_bytes), (5, CHUNK));
}

/// A read of the base that was under way when it became another one.
#[test]
fn what_was_read_of_the_base_while_it_became_another_one_goes_nowhere() {
    let (base, difference) = (base(), memory(DIFFERENCE_BYTES));
    let slow = Arc::new(OtherMeanwhile { base, device: Mutex::default() });
    let shared: SharedDevice = slow.clone();
    for is_read in [true, false] {
        format(&difference, &shared, OPTIONS).unwrap();
        let device = Arc::new(opened(&difference, &shared));
        *slow.device.lock().unwrap() = Some(Arc::downgrade(&device));
        let refused = match is_read {
            true => block_on(device.read(0, Buffer::zeroed(512))).map(drop),
            false => block_on(device.write(0, sector_of(6), false)).map(drop),
        };
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Gone);
        assert_eq!(device.status().used_bytes, 0);
    }
}

/// A base that becomes another one while it is read.
struct OtherMeanwhile {
    base: SharedDevice,
    device: Mutex<Option<Weak<Difference>>>,
}

impl Device for OtherMeanwhile {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn identity(&self) -> Identity {
        self.base.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if let Some(device) = self.device.lock().unwrap().as_ref().and_then(Weak::upgrade) {
            device.refuse_base(Error::new(ErrorKind::Gone, "another base"));
        }
        self.base.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.base.subscribe()
    }
}

#[test]
fn either_copy_of_the_superblock_is_enough_and_the_other_is_mended() {
    for lost in [0, DIFFERENCE_BYTES - 4096] {
        let (base, difference) = (base(), memory(DIFFERENCE_BYTES));
        block_on(made(&difference, &base).write(0, sector_of(5), true)).unwrap();
        block_on(difference.write(lost, Buffer::copy_of(&[1; 4096]), false)).unwrap();
        assert_eq!(read_all(&opened(&difference, &base))[0], 5);
        block_on(difference.write(DIFFERENCE_BYTES - 4096 - lost, Buffer::zeroed(4096), false)).unwrap();
        assert_eq!(read_all(&opened(&difference, &base))[0], 5);
    }
}

#[test]
fn a_difference_of_version_1_is_named() {
    let (base, difference) = (base(), memory(DIFFERENCE_BYTES));
    block_on(difference.write(0, Buffer::copy_of(&[&[0; 4][..], b"fb-diff\0", &[0; 500]].concat()), false)).unwrap();
    let error = block_on(Difference::open(difference, base, None)).err().unwrap();
    // As every store of another version.
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("version 1"), "{error}");
}

/// The map that names the slot is still the one on the device.
#[test]
fn a_slot_that_was_left_is_not_used_again_while_storing_the_map_fails() {
    let (medium, base) = (CrashLayer::new(DIFFERENCE_BYTES, 1), base());
    let shared: SharedDevice = Arc::new(medium.clone());
    let device = made(&shared, &base);
    let chunk = |stamp: u64| Buffer::copy_of(&stamp.to_le_bytes().repeat(CHUNK as usize / 8));
    block_on(device.write(0, chunk(5), true)).unwrap();
    block_on(device.discard(0, CHUNK)).unwrap();
    medium.fail_write_once(medium.writes_seen(), ErrorKind::Media);
    block_on(device.flush()).unwrap_err();
    block_on(device.write(CHUNK, chunk(9), false)).unwrap();
    // Volatile writes become durable.
    block_on(shared.flush()).unwrap();
    let after: SharedDevice = Arc::new(medium.after_power_loss_as(Loss::All, &Power::new()));
    let found = read_all(&opened(&after, &base));
    assert_eq!(found[0], 5, "as it was flushed last");
}
