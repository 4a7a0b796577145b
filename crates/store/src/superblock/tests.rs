//! Superblocks on a device of memory: what is read of copies that are damaged, of other stores, or cut by a power loss.

use std::sync::Arc;

use base::executor::block_on;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::memory::MemoryDevice;
use block::{ErrorKind, Identity};
use zerocopy::little_endian::U64;

use super::*;

const KIND: StoreKind = StoreKind { code: *b"test\0\0\0\0", version: 3, version_min: 3, name: "test store" };
const DEVICE_BYTES: u64 = 64 << 10;
const LAST: u64 = DEVICE_BYTES - SUPERBLOCK_BYTES as u64;

fn device(size_bytes: u64) -> SharedDevice {
    Arc::new(MemoryDevice::new(size_bytes, Identity::default()))
}

fn create(device: &SharedDevice, payload: u64) -> Superblock<U64> {
    let device = Arc::clone(device);
    block_on(
        async move { Superblock::create(&device, KIND, Uuid::from_bytes([7; 16]), U64::new(payload)).await.unwrap() },
    )
}

fn read(device: &SharedDevice, kind: StoreKind) -> Result<Superblock<U64>, Error> {
    let device = Arc::clone(device);
    block_on(async move { Superblock::read(&device, kind).await })
}

#[test]
fn the_first_copy_says_how_long_the_store_is_and_a_damaged_one_nothing() {
    let device = device(DEVICE_BYTES);
    create(&device, 1);
    let copy = |place| -> [u8; SUPERBLOCK_BYTES] {
        let bytes = block_on(device.read(place, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
        bytes[..].try_into().unwrap()
    };
    assert_eq!(device_bytes(&copy(0)), Some(DEVICE_BYTES));
    assert_eq!(device_bytes(&copy(LAST)), None, "it is the last one");
    let mut damaged = copy(0);
    damaged[SUPERBLOCK_BYTES - 1] ^= 1;
    assert_eq!(device_bytes(&damaged), None);
    assert_eq!(device_bytes(&[0; SUPERBLOCK_BYTES]), None);
}

#[test]
fn a_damaged_store_still_says_what_it_is() {
    let device = device(DEVICE_BYTES);
    let is_named = |kind: StoreKind| {
        let device = Arc::clone(&device);
        block_on(async move { is_named(&device, kind).await })
    };
    assert!(!is_named(KIND), "there is nothing");
    create(&device, 1);
    block_on(device.write(512, Buffer::copy_of(&[0xa5; 512]), true)).unwrap();
    damage(&device, LAST);
    assert_eq!(read(&device, KIND).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(is_named(KIND) && is_named(StoreKind { version: 4, ..KIND }));
    assert!(!is_named(StoreKind { code: *b"other\0\0\0", ..KIND }));
    damage(&device, 0);
    assert!(!is_named(KIND));
}

fn damage(device: &SharedDevice, offset: u64) {
    block_on(device.write(offset, Buffer::copy_of(&[0xa5; 512]), true)).unwrap();
}

#[test]
fn the_bytes_are_what_the_format_page_says() {
    let device = device(DEVICE_BYTES);
    create(&device, 0x1122_3344_5566_7788);
    let bytes = block_on(device.read(LAST, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
    let golden = [
        "01000000666f726562617900746573740000000003000000080000000707070707070707",
        "0707070707070707010000000000000000f00000000000000000010000000000",
    ]
    .concat();
    assert_eq!(hex(&bytes[4..72]), golden);
    assert_eq!(bytes[..4], crc32c(&bytes[4..]).to_le_bytes());
    assert!(bytes[72..128].iter().all(|&byte| byte == 0));
    assert_eq!(bytes[128..136], 0x1122_3344_5566_7788u64.to_le_bytes());
    assert!(bytes[136..].iter().all(|&byte| byte == 0));
}

#[test]
fn both_copies_have_the_token_that_was_set_last() {
    let device = device(DEVICE_BYTES);
    let mut superblock = create(&device, 1);
    let tokens = Some(Tokens { in_use: 0x0102_0304_0506_0708, closed: 9 });
    for (tokens, is_closed, token) in
        [(None, false, 0), (tokens, false, 0x0102_0304_0506_0708), (tokens, true, 9), (None, false, 9)]
    {
        superblock.set_token(tokens, is_closed);
        let on = Arc::clone(&device);
        superblock = block_on(async move { superblock.write(&on).await.map(|()| superblock) }).unwrap();
        for place in [0, LAST] {
            let bytes = block_on(device.read(place, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
            let copy: &[u8; SUPERBLOCK_BYTES] = bytes[..].try_into().unwrap();
            assert_eq!(copy[72..80], u64::to_le_bytes(token));
            assert_eq!(identity(copy, place), Some(StoreIdentity { uuid: Uuid::from_bytes([7; 16]), token }));
            assert_eq!(identity(copy, place + 512), None);
        }
        assert_eq!(read(&device, KIND).unwrap().token, token);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn either_copy_alone_is_enough() {
    for place in [0, LAST] {
        let device = device(DEVICE_BYTES);
        create(&device, 42);
        damage(&device, place);
        assert_eq!(read(&device, KIND).unwrap().payload.get(), 42);
    }
}

#[test]
fn the_newer_copy_counts_whichever_it_is() {
    let device = device(DEVICE_BYTES);
    let mut superblock = create(&device, 1);
    for place in [0, LAST] {
        let older = block_on(device.read(place, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
        let newest = superblock.payload.get() + 1;
        superblock.payload = U64::new(newest);
        let (on, mut written) = (Arc::clone(&device), superblock.clone());
        superblock = block_on(async move {
            written.write(&on).await.unwrap();
            written
        });
        // The power failed before this one was written.
        block_on(device.write(place, older, true)).unwrap();
        assert_eq!(read(&device, KIND).unwrap().payload.get(), newest, "the copy at {place} is older");
    }
}

#[test]
fn what_is_wrong_with_a_copy_is_told_until_a_write_mends_it() {
    let zeroes: fn(&SharedDevice, u64) = |device, place| {
        block_on(device.write(place, Buffer::zeroed(SUPERBLOCK_BYTES), true)).unwrap();
    };
    let other_bytes: fn(&SharedDevice, u64) = damage;
    for (wound, state) in [(zeroes, CopyState::Empty), (other_bytes, CopyState::Damaged)] {
        for place in [0, LAST] {
            let device = device(DEVICE_BYTES);
            create(&device, 42);
            assert_eq!(read(&device, KIND).unwrap().copies(), Copies::ALIKE);
            wound(&device, place);
            let mut found = read(&device, KIND).unwrap();
            let copies = found.copies();
            assert_eq!(if place == 0 { copies.first } else { copies.last }, state);
            assert!(copies.is_one_damaged(), "{copies}");
            let on = Arc::clone(&device);
            block_on(async move { found.write(&on).await.unwrap() });
            assert_eq!(read(&device, KIND).unwrap().copies(), Copies::ALIKE);
        }
    }
}

#[test]
fn a_write_mends_the_damaged_copy() {
    let device = device(DEVICE_BYTES);
    create(&device, 1);
    damage(&device, LAST);
    let mut superblock = read(&device, KIND).unwrap();
    superblock.payload = U64::new(2);
    let on = Arc::clone(&device);
    block_on(async move { superblock.write(&on).await.unwrap() });
    damage(&device, 0);
    assert_eq!(read(&device, KIND).unwrap().payload.get(), 2);
}

#[test]
fn without_a_copy_the_message_says_so() {
    let device = device(DEVICE_BYTES);
    let error = read(&device, KIND).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Corrupt, "not a forebay test store: there is no superblock")
    );
    create(&device, 1);
    damage(&device, 0);
    damage(&device, LAST);
    let error = read(&device, KIND).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("both copies"), "{error}");
}

#[test]
fn a_sequence_that_none_reaches_is_damage() {
    let device = device(DEVICE_BYTES);
    create(&device, 1);
    let mut first = block_on(device.read(0, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
    first[48..56].copy_from_slice(&u64::MAX.to_le_bytes());
    let checksum = crc32c(&first[4..]);
    first[..4].copy_from_slice(&checksum.to_le_bytes());
    block_on(device.write(0, first, true)).unwrap();
    assert_eq!(read(&device, KIND).unwrap().sequence, 1);
}

#[test]
fn an_older_version_that_is_read_is_the_newer_one_once_it_is_written() {
    let device = device(DEVICE_BYTES);
    create(&device, 1);
    let newer = StoreKind { version: KIND.version + 1, ..KIND };
    let mut superblock = read(&device, newer).unwrap();
    assert_eq!(superblock.version(), KIND.version);
    let writing = Arc::clone(&device);
    let written = block_on(async move { superblock.write(&writing).await.map(|()| superblock.version()) });
    assert_eq!((written.unwrap(), read(&device, newer).unwrap().version()), (newer.version, newer.version));
    assert!(read(&device, KIND).unwrap_err().to_string().contains("format version 4"));
}

#[test]
fn another_kind_version_or_size_is_named() {
    let small = device(DEVICE_BYTES);
    create(&small, 1);
    let other_kind = StoreKind { code: *b"other\0\0\0", ..KIND };
    let error = read(&small, other_kind).unwrap_err().to_string();
    assert!(error.contains("kind \"test\""), "{error}");
    let error = read(&small, StoreKind { version: 4, version_min: 4, ..KIND }).unwrap_err().to_string();
    assert!(error.contains("version 3") && error.contains("version 4"), "{error}");
    let error = read(&small, StoreKind { version: 5, version_min: 4, ..KIND }).unwrap_err().to_string();
    assert!(error.contains("version 3") && error.contains("versions 4 to 5"), "{error}");

    let cut = device(DEVICE_BYTES / 2);
    let first = block_on(small.read(0, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
    block_on(cut.write(0, first, true)).unwrap();
    let error = read(&cut, KIND).unwrap_err().to_string();
    assert!(error.contains("was cut") && error.contains("65536") && error.contains("32768"), "{error}");
    assert!(error.contains("bring back what was cut off, or discard"), "{error}");
}

/// A part of one disk was copied over another: the newer copy names a table and a log that are not there.
#[test]
fn a_copy_of_another_store_beside_ours_is_damage_however_new_either_is() {
    for writes in [1, 5] {
        let (ours, theirs) = (device(DEVICE_BYTES), device(DEVICE_BYTES));
        create(&ours, 1);
        let on = Arc::clone(&theirs);
        block_on(async move {
            let mut other = Superblock::create(&on, KIND, Uuid::from_bytes([8; 16]), U64::new(2)).await.unwrap();
            for _ in 1..writes {
                other.write(&on).await.unwrap();
            }
        });
        let first = block_on(theirs.read(0, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
        block_on(ours.write(0, first, true)).unwrap();
        let error = read(&ours, KIND).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("two test stores"), "{error}");
    }
}

/// The same, with a store of another kind, version or size: what stands beside either copy may be the other's.
#[test]
fn a_copy_of_another_kind_version_or_size_beside_ours_is_damage_and_says_what_it_is() {
    let other_kind = StoreKind { code: *b"other\0\0\0", ..KIND };
    for (kind, bytes, words) in [
        (other_kind, DEVICE_BYTES, "kind \"other\""),
        (StoreKind { version: 4, version_min: 4, ..KIND }, DEVICE_BYTES, "version 4"),
        (KIND, 2 * DEVICE_BYTES, "was cut"),
    ] {
        for is_first_theirs in [true, false] {
            let (ours, theirs) = (device(DEVICE_BYTES), device(2 * DEVICE_BYTES));
            create(&ours, 1);
            let place = if is_first_theirs { 0 } else { LAST };
            let uuid = Uuid::from_bytes([8; 16]);
            let other = Superblock { kind, uuid, device_bytes: bytes, ..create(&theirs, 2) };
            block_on(ours.write(place, other.emit(place), true)).unwrap();
            let error = read(&ours, KIND).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}

/// The power failed between the two copies: either is the state of a moment, and each program reads its own.
#[test]
fn a_store_that_was_to_get_another_version_is_still_what_it_was_where_one_copy_says_so() {
    let ours = device(DEVICE_BYTES);
    let newer = Superblock { kind: StoreKind { version: 4, ..KIND }, sequence: 2, ..create(&ours, 1) };
    block_on(ours.write(LAST, newer.emit(LAST), true)).unwrap();
    assert_eq!(read(&ours, KIND).unwrap().sequence, 1);
    assert_eq!(read(&ours, newer.kind).unwrap().sequence, 2);
}

#[test]
fn a_copy_in_the_wrong_place_does_not_count() {
    let from = device(DEVICE_BYTES);
    create(&from, 1);
    let first = block_on(from.read(0, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
    let to = device(DEVICE_BYTES);
    block_on(to.write(LAST, first, true)).unwrap();
    assert!(read(&to, KIND).is_err());
}

#[test]
fn an_erased_store_is_none() {
    let device = device(DEVICE_BYTES);
    create(&device, 1);
    let on = Arc::clone(&device);
    block_on(async move { erase(&on).await.unwrap() });
    assert!(read(&device, KIND).unwrap_err().to_string().contains("no superblock"));
}

/// Of a write that failed one copy landed, so that it counts. The next one of the same program is cut off: it was
/// to the other copy.
#[test]
fn a_write_behind_one_that_reached_one_copy_leaves_that_one_whole() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 16, 1) {
        let _printed = test.on_panic(seed, None);
        let medium = CrashLayer::new(DEVICE_BYTES, seed);
        let (device, uuid): (SharedDevice, _) = (Arc::new(medium.clone()), Uuid::from_bytes([7; 16]));
        let writing = medium.clone();
        block_on(async move {
            let mut superblock = Superblock::create(&device, KIND, uuid, [U64::new(1); 128]).await.unwrap();
            for nth in [0, 1] {
                writing.fail_write_once(writing.writes_seen() + nth, ErrorKind::Media);
                superblock.payload = [U64::new(2); 128];
                superblock.write(&device).await.unwrap_err();
                assert_eq!(superblock.is_undecided(), nth == 0);
            }
            writing.power().fail_write(writing.power().writes_seen());
            superblock.payload = [U64::new(3); 128];
            superblock.write(&device).await.unwrap_err();
        });
        let device: SharedDevice = Arc::new(medium.after_power_loss_as(Loss::Seeded(seed), &Power::new()));
        let found = block_on(async move { Superblock::<[U64; 128]>::read(&device, KIND).await.unwrap() });
        assert!([2, 3].contains(&found.payload[0].get()), "seed {seed}: {}", found.payload[0]);
    }
}

/// The older copy is written first: whatever becomes of it, the newer one is whole.
#[test]
fn a_write_cut_short_after_another_that_was_leaves_a_whole_copy() {
    // Of several units of 512 bytes, so that it can tear.
    type Payload = [U64; 128];
    let test = block::crash_test!();
    for seed in test.seeds(0, 16, 1) {
        let _printed = test.on_panic(seed, None);
        for nths in [[0, 0], [0, 1], [1, 0], [1, 1]] {
            let mut medium = CrashLayer::new(DEVICE_BYTES, seed);
            let (device, uuid): (SharedDevice, _) = (Arc::new(medium.clone()), Uuid::from_bytes([7; 16]));
            let created = async move { Superblock::create(&device, KIND, uuid, [U64::new(1); 128]).await };
            block_on(created).unwrap();
            let mut kept = 1;
            for (number, nth) in (2..).zip(nths) {
                let device: SharedDevice = Arc::new(medium.clone());
                medium.power().fail_write(medium.power().writes_seen() + nth);
                let written = async move {
                    let mut superblock = Superblock::<Payload>::read(&device, KIND).await?;
                    superblock.payload = [U64::new(number); 128];
                    superblock.write(&device).await
                };
                assert_eq!(block_on(written).map_err(|error| error.kind()), Err(ErrorKind::Gone));
                medium = medium.after_power_loss_as(Loss::Seeded(seed), &Power::new());
                let device: SharedDevice = Arc::new(medium.clone());
                let found = block_on(async move { Superblock::<Payload>::read(&device, KIND).await });
                let payload = found.unwrap_or_else(|error| panic!("seed {seed}, {nths:?}: {error}")).payload;
                assert!([kept, number].contains(&payload[0].get()) && payload.iter().all(|word| *word == payload[0]));
                kept = payload[0].get();
            }
        }
    }
}
