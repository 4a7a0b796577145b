//! In a closed cache the newest slot of a table page is lost, or has the bytes of an older one: the
//! page then has the lines as they were before.

mod common;

use std::sync::Arc;

use base::executor::Executor;
use base::range::ByteRange;
use block::{ErrorKind, SharedDevice};
use cache::{CrashMode, Freshness, Mode, OpenOptions, check};
use common::{close, made, memory, open, open_options, read, try_open, write};

const LINE: u64 = 4096;
const DEVICE_BYTES: u64 = 1 << 20;

/// Replacements of the newest slot, made from the bytes of the older one.
const WOUNDS: [fn(Vec<u8>) -> Vec<u8>; 2] = [|older| vec![0; older.len()], |older| older];

/// Overwrites the newest slot of the table's only page.
fn hurt_newest_slot(executor: &mut Executor, device: &SharedDevice, wound: fn(Vec<u8>) -> Vec<u8>) {
    let bytes = read(executor, device, 0, DEVICE_BYTES);
    let mut slots: Vec<usize> =
        (0..bytes.len()).step_by(512).filter(|&at| bytes[at + 4..].starts_with(b"ftab")).collect();
    slots.sort_by_key(|&at| u64::from_le_bytes(bytes[at + 16..at + 24].try_into().unwrap()));
    let [older, newest] = slots[..] else { panic!("{slots:?}: both slots are whole") };
    write(executor, device, newest as u64, &wound(bytes[older..older + 4096].to_vec()));
}

#[test]
fn a_cache_closed_clean_whose_table_is_an_older_one_begins_without_clean_lines() {
    for (wound, crash_mode) in WOUNDS.into_iter().flat_map(|wound| {
        [CrashMode::DirtySynchronous, CrashMode::Warm, CrashMode::AllSynchronous].map(|crash_mode| (wound, crash_mode))
    }) {
        let mut executor = Executor::in_order();
        let origin = memory(DEVICE_BYTES);
        let device = made(&mut executor, &origin, crash_mode);
        write(&mut executor, &origin, 0, &[1; LINE as usize]);
        let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
        read(&mut executor, &cache, 0, LINE);
        close(&mut executor, &cache, true);
        // Another host writes, and the cache gets the event, so the line is dropped.
        write(&mut executor, &origin, 0, &[2; LINE as usize]);
        let freshness = Freshness::Changed(vec![ByteRange { offset: 0, length: LINE }]);
        let options = OpenOptions { freshness, ..open_options(&executor, Mode::WriteThrough) };
        let cache = try_open(&mut executor, &device, &origin, options).unwrap();
        read(&mut executor, &cache, 4 * LINE, LINE);
        close(&mut executor, &cache, true);
        hurt_newest_slot(&mut executor, &device, wound);
        let checked = Arc::clone(&device);
        let inspection = executor.block_on(async move { check(&checked).await.unwrap() });
        assert!(inspection.recovery.is_table_older);
        let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
        assert!(cache.status().recovery.is_table_older);
        assert_eq!(read(&mut executor, &cache, 0, LINE)[0], 2, "{crash_mode}: not what it was once");
        close(&mut executor, &cache, true);
        let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
        let recovery = cache.status().recovery;
        assert!(recovery.was_closed && !recovery.is_table_older, "{recovery:?}");
        assert_eq!(read(&mut executor, &cache, 0, LINE)[0], 2);
    }
}

/// A crash while it is opened after that must not bring the lines back.
#[test]
fn a_crash_after_a_cold_beginning_leaves_it_cold() {
    for crash_mode in [CrashMode::DirtySynchronous, CrashMode::Warm, CrashMode::AllSynchronous] {
        let mut executor = Executor::in_order();
        let origin = memory(DEVICE_BYTES);
        let device = made(&mut executor, &origin, crash_mode);
        write(&mut executor, &origin, 0, &[1; LINE as usize]);
        let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
        read(&mut executor, &cache, 0, LINE);
        close(&mut executor, &cache, true);
        write(&mut executor, &origin, 0, &[2; LINE as usize]);
        let freshness = Freshness::Changed(vec![ByteRange { offset: 0, length: LINE }]);
        let options = OpenOptions { freshness, ..open_options(&executor, Mode::WriteThrough) };
        let cache = try_open(&mut executor, &device, &origin, options).unwrap();
        close(&mut executor, &cache, true);
        hurt_newest_slot(&mut executor, &device, WOUNDS[0]);
        drop((open(&mut executor, &device, &origin, Mode::WriteThrough), executor));
        let mut executor = Executor::in_order();
        let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
        assert!(!cache.status().recovery.was_closed);
        assert_eq!(read(&mut executor, &cache, 0, LINE)[0], 2, "{crash_mode}");
    }
}

#[test]
fn a_cache_closed_with_dirty_lines_whose_table_has_as_many_older_ones_is_refused() {
    for wound in WOUNDS {
        let mut executor = Executor::in_order();
        let origin = memory(DEVICE_BYTES);
        let device = made(&mut executor, &origin, CrashMode::DirtySynchronous);
        for byte in 1..3 {
            let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
            write(&mut executor, &cache, 0, &[byte; LINE as usize]);
            assert_eq!(cache.status().dirty_lines, 1);
            close(&mut executor, &cache, true);
        }
        hurt_newest_slot(&mut executor, &device, wound);
        let options = open_options(&executor, Mode::WriteBack);
        let error = try_open(&mut executor, &device, &origin, options).err().expect("what is dirty is older");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let checked = Arc::clone(&device);
        let checked = executor.block_on(async move { check(&checked).await });
        assert_eq!(checked.unwrap_err().to_string(), error.to_string());
    }
}
