//! Several threads at once, with cleaning, checkpoints and replacement under way: no thread waits
//! for ever, and each reads what it wrote.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::VirtualClock;
use base::random::Random;
use block::device::DeviceExt;
use cache::{Associativity, Cache, FormatOptions, Mode, OpenOptions};
use common::{format_options, memory};
use tokio::task::JoinHandle;

const CLIENTS: u64 = 8;
const LINES_PER_CLIENT: u64 = 40;
const REQUESTS: u64 = 1500;
/// Longer than any wait on a busy machine that is not for ever.
const TIME_MAX: Duration = Duration::from_secs(120);

/// A clock ten times as fast as real time, and the thread that drives it.
fn turning_clock() -> (Arc<VirtualClock>, JoinHandle<()>) {
    let clock = Arc::new(VirtualClock::new());
    let turned = Arc::clone(&clock);
    let turning = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            turned.advance(Duration::from_millis(10));
        }
    });
    (clock, turning)
}

/// Each client owns every eighth sector, so that clients share every line.
async fn client(cache: Arc<Cache>, number: u64) {
    let mut random = Random::new(number);
    let mut expected = vec![0u8; (LINES_PER_CLIENT * CLIENTS) as usize];
    for _ in 0..REQUESTS {
        let line = random.below(LINES_PER_CLIENT * CLIENTS);
        let offset = (line * 8 + number) * 512;
        if random.chance(0.5) {
            let byte = random.below(256) as u8;
            cache.write(offset, Buffer::copy_of(&[byte; 512]), false).await.expect("nothing fails");
            expected[line as usize] = byte;
        } else {
            let bytes = cache.read(offset, Buffer::zeroed(512)).await.expect("nothing fails");
            assert!(bytes.iter().all(|&byte| byte == expected[line as usize]), "client {number}, line {line}");
        }
        if random.chance(0.002) {
            let mode = if random.chance(0.5) { Mode::WriteBack } else { Mode::WriteThrough };
            cache.set_mode(mode).await.expect("nothing fails");
        }
    }
    for (line, &byte) in expected.iter().enumerate() {
        let bytes = cache.read((line as u64 * 8 + number) * 512, Buffer::zeroed(512)).await.expect("nothing fails");
        assert!(bytes.iter().all(|&read| read == byte), "client {number}, line {line} at the end");
    }
}

#[test]
fn threads_read_what_they_wrote() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    runtime.block_on(async {
        let cache_device = memory(2 << 20);
        let origin = memory(LINES_PER_CLIENT * CLIENTS * 4096);
        let options = FormatOptions {
            associativity: Associativity::Ways(8),
            frames_max: Some(160),
            log_bytes: Some(64 << 10),
            ..format_options()
        };
        Cache::format(&cache_device, &origin, options).await.unwrap();
        let (clock, turning) = turning_clock();
        let options = OpenOptions::new(Mode::WriteBack, clock);
        let cache = Cache::open(cache_device, Arc::clone(&origin), options).await.unwrap();
        let running = tokio::spawn(cache.run());
        let clients: Vec<_> = (0..CLIENTS).map(|number| tokio::spawn(client(Arc::clone(&cache), number))).collect();
        for client in clients {
            let finished = tokio::time::timeout(TIME_MAX, client).await;
            finished.expect("somebody waits for ever").expect("a client failed");
        }
        tokio::time::timeout(TIME_MAX, cache.close(false)).await.expect("closing ends").unwrap();
        tokio::time::timeout(TIME_MAX, running).await.expect("running ends").unwrap();
        turning.abort();
        assert!(cache.status().checkpoints > 0 && cache.status().evictions > 0, "too little happened");
    });
}

/// Each thread writes its own lines until a write is refused.
async fn write_until_closed(cache: Arc<Cache>, number: u64) -> Vec<[u8; 2]> {
    let mut held = vec![[0, 0]; LINES_PER_CLIENT as usize];
    for round in 1..=u8::MAX {
        for line in 0..LINES_PER_CLIENT {
            held[line as usize][1] = round;
            let offset = (line * CLIENTS + number) * 4096;
            if cache.write(offset, Buffer::copy_of(&[round; 512]), false).await.is_err() {
                return held;
            }
            held[line as usize][0] = round;
        }
    }
    held
}

#[test]
fn a_cache_closed_under_way_has_all_that_was_acknowledged() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    for nth in 0..40 {
        runtime.block_on(async {
            let (device, origin) = (memory(4 << 20), memory(LINES_PER_CLIENT * CLIENTS * 4096));
            Cache::format(&device, &origin, format_options()).await.unwrap();
            let (clock, turning) = turning_clock();
            let open = async || {
                let options = OpenOptions::new(Mode::WriteBack, Arc::clone(&clock) as _);
                Cache::open(Arc::clone(&device), Arc::clone(&origin), options).await.unwrap()
            };
            let cache = open().await;
            let running = tokio::spawn(cache.run());
            let clients: Vec<_> =
                (0..CLIENTS).map(|number| tokio::spawn(write_until_closed(Arc::clone(&cache), number))).collect();
            tokio::time::sleep(Duration::from_micros(500 + nth * 50)).await;
            let keep_dirty = nth % 2 == 0;
            let closing = tokio::time::timeout(TIME_MAX, cache.close(keep_dirty));
            closing.await.expect("closing ends").unwrap();
            let mut held = Vec::new();
            for client in clients {
                let finished = tokio::time::timeout(TIME_MAX, client).await;
                held.push(finished.expect("somebody waits for ever").expect("a client failed"));
            }
            tokio::time::timeout(TIME_MAX, running).await.expect("running ends").unwrap();
            let opened = open().await;
            assert!(opened.status().recovery.was_closed);
            assert!(keep_dirty || opened.status().dirty_lines == 0);
            let running = tokio::spawn(opened.run());
            for (number, held) in held.iter().enumerate() {
                for (line, held) in held.iter().enumerate() {
                    let offset = (line as u64 * CLIENTS + number as u64) * 4096;
                    let bytes = opened.read(offset, Buffer::zeroed(512)).await.unwrap();
                    assert!(held.contains(&bytes[0]), "client {number}, line {line}: {} and not {held:?}", bytes[0]);
                }
            }
            opened.close(true).await.unwrap();
            running.await.unwrap();
            turning.abort();
        });
    }
}
