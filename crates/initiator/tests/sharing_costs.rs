//! What sharing a LUN costs, counted in round trips of a link on which everything else takes no time
//! (`docs/measurements/sharing.md`).

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::clock::Clock as _;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, ByteRange, Device, Dropped, Keeper};
use initiator::{InitiatorOptions, RemoteLun};
use logical_unit::SharingOptions;
use support::sharing::{self, add_keeper, host};
use support::{World, identity};

const ROUND_TRIP: Duration = Duration::from_millis(100);
const SMALL: usize = 4096;
/// More than goes with a command: the target asks for it.
const LARGE: usize = 1 << 20;

/// A target whose LUN may be shared, behind links that take half of a round trip each way.
fn serve(seed: u64) -> World {
    let mut world = World::new(seed);
    let device = Arc::new(MemoryDevice::new(8 << 20, identity("shared")));
    sharing::serve(&mut world, device, SharingOptions::default());
    world.network.set_delay(Some((world.clock.clone(), ROUND_TRIP / 2)));
    world
}

fn connect(world: &mut World, number: u32, is_shared: bool) -> Arc<RemoteLun> {
    let options = InitiatorOptions { is_shared, ..host(world, number) };
    let lun = world.connect(options).unwrap();
    world.pass(Duration::from_secs(1));
    lun
}

/// A cache of one block.
#[derive(Default)]
struct Cache {
    has_copy: AtomicBool,
    /// How often it was asked to drop it.
    purges: AtomicU64,
}

impl Keeper for Cache {
    fn revoke(&self, _: ByteRange) -> Dropped {
        self.has_copy.store(false, Ordering::Relaxed);
        self.purges.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {})
    }
}

impl Cache {
    fn over(lun: &Arc<RemoteLun>) -> Arc<Self> {
        let cache = Arc::new(Self::default());
        add_keeper(lun, &cache);
        cache
    }
}

/// Round trips that a write takes.
fn round_trips(world: &mut World, lun: &Arc<RemoteLun>, length: usize) -> f64 {
    let began = world.clock.now();
    let write = lun.write(0, Buffer::zeroed(length), false);
    world.run(write).unwrap();
    world.clock.now().since(began).as_secs_f64() / ROUND_TRIP.as_secs_f64()
}

#[test]
fn a_write_that_calls_back_takes_one_round_trip_more_than_a_plain_one() {
    for (length, plain) in [(SMALL, 1.0), (LARGE, 2.0)] {
        for holders in [1, 3] {
            let mut world = serve(1);
            let stock = connect(&mut world, 1, false);
            let client = connect(&mut world, 2, true);
            let readers: Vec<_> = (0..holders).map(|number| connect(&mut world, 10 + number, true)).collect();
            let caches: Vec<_> = readers.iter().map(Cache::over).collect();
            for writer in [&stock, &client] {
                let alone = round_trips(&mut world, writer, length);
                assert!((alone - plain).abs() < 0.01, "{length} bytes: {alone} round trips");
                for reader in &readers {
                    let read = reader.read(0, Buffer::zeroed(length));
                    world.run(read).unwrap();
                }
                let calling = round_trips(&mut world, writer, length);
                assert!(
                    (calling - plain - 1.0).abs() < 0.01,
                    "{length} bytes, {holders} readers: {calling} round trips"
                );
            }
            let purges: Vec<u64> = caches.iter().map(|cache| cache.purges.load(Ordering::Relaxed)).collect();
            assert!(purges.iter().all(|count| *count == 2), "each was asked once a write: {purges:?}");
        }
    }
}

#[test]
fn who_is_alone_and_who_reads_again_what_it_has_sends_no_message() {
    let mut world = serve(2);
    let plain = connect(&mut world, 1, false);
    let client = connect(&mut world, 2, true);
    let sent = |lun: &Arc<RemoteLun>| lun.status().pdus_sent;
    for lun in [&plain, &client] {
        let before = (sent(lun), lun.status().pdus_received);
        for _ in 0..2 {
            let read = lun.read(0, Buffer::zeroed(SMALL));
            world.run(read).unwrap();
            assert!((round_trips(&mut world, lun, SMALL) - 1.0).abs() < 0.01);
        }
        let status = lun.status();
        assert_eq!((status.pdus_sent - before.0, status.pdus_received - before.1), (4, 4));
    }
}

/// Jain's index: 1 where all have the same.
fn evenness(counts: &[u64]) -> f64 {
    let sum: u64 = counts.iter().sum();
    let squares: u64 = counts.iter().map(|count| count * count).sum();
    (sum * sum) as f64 / (counts.len() as u64 * squares) as f64
}

#[test]
fn eight_readers_of_one_block_and_who_writes_it_are_all_served_and_evenly() {
    const READERS: u32 = 8;
    /// What a reader or a writer does with the block before it comes again.
    const REST: Duration = Duration::from_millis(7);
    let mut world = serve(3);
    let writer = connect(&mut world, 1, true);
    let is_over = Arc::new(AtomicBool::new(false));
    let counts = Arc::new(Mutex::new(vec![[0_u64; 2]; READERS as usize]));
    let luns: Vec<_> = (0..READERS).map(|number| connect(&mut world, 10 + number, true)).collect();
    let caches: Vec<_> = luns.iter().map(Cache::over).collect();
    for (number, (lun, cache)) in luns.into_iter().zip(caches).enumerate() {
        let (clock, is_over, counts) = (world.clock.clone(), Arc::clone(&is_over), Arc::clone(&counts));
        world.executor.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let is_hit = cache.has_copy.load(Ordering::Relaxed) && lun.copies().is_some_and(|all| all.may_use());
                if !is_hit {
                    let asked = cache.purges.load(Ordering::Relaxed);
                    lun.read(0, Buffer::zeroed(SMALL)).await.expect("it is there");
                    // Data that a purge overtook is not kept.
                    cache.has_copy.store(cache.purges.load(Ordering::Relaxed) == asked, Ordering::Relaxed);
                }
                counts.lock().unwrap()[number][usize::from(is_hit)] += 1;
                clock.sleep(REST).await;
            }
        });
    }
    let written = Arc::new(AtomicU64::new(0));
    {
        let (clock, is_over, written) = (world.clock.clone(), Arc::clone(&is_over), Arc::clone(&written));
        world.executor.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                writer.write(0, Buffer::zeroed(SMALL), false).await.expect("it is there");
                written.fetch_add(1, Ordering::Relaxed);
                clock.sleep(REST).await;
            }
        });
    }
    const SECONDS: u64 = 60;
    world.pass(Duration::from_secs(SECONDS));
    is_over.store(true, Ordering::Relaxed);
    let counts = counts.lock().unwrap().clone();
    let reads: Vec<u64> = counts.iter().map(|[missed, hit]| missed + hit).collect();
    let (written, even) = (written.load(Ordering::Relaxed), evenness(&reads));
    println!("in {SECONDS} s: {written} writes; reads (from the target, from copies) {counts:?}; evenness {even:.4}");
    assert!(even > 0.99, "{counts:?}: {even}");
    // A write waits for a round trip of its own, one of the readers, and what comes between.
    let most = (Duration::from_secs(SECONDS).as_millis() / (2 * ROUND_TRIP).as_millis()) as u64;
    assert!(written > most / 3, "{written} of {most} writes");
    assert!(reads.iter().all(|count| *count > written / 2), "{counts:?} beside {written} writes");
}
