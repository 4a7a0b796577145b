//! Writes that wait for room, and what ends their wait.

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::{Completion, Device, ErrorKind, Event, EventHub, EventReceiver, Geometry, Identity, Request, SharedDevice};
use common::bench::{KIND, LOG_BYTES, ORIGIN_BYTES, slow_devices};
use common::{Kind, format, open_options, read, try_open};
use futures_util::future::{Either, join_all, select};
use futures_util::stream::{self, StreamExt};
use writelog::{DestageOrder, Durability};

/// A LUN that publishes events.
struct Eventful {
    medium: CrashLayer,
    events: EventHub,
}

impl Device for Eventful {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn identity(&self) -> Identity {
        self.medium.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        self.medium.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.events.subscribe()
    }
}

/// The log is full, and no batch will ever make room.
#[test]
fn writes_that_wait_for_room_are_refused_when_the_lun_becomes_another_disk() {
    for durability in [Durability::Log, Durability::UnsafeVolatile] {
        let mut executor = Executor::in_order();
        let origin = Arc::new(Eventful { medium: CrashLayer::new(16 * ORIGIN_BYTES, 2), events: EventHub::new() });
        let (device, below): (SharedDevice, SharedDevice) = (Arc::new(CrashLayer::new(LOG_BYTES, 1)), origin.clone());
        format(&mut executor, &device, &below);
        let mut options = open_options(&executor, Kind { durability, ..KIND }, None);
        options.level2.pause_max = Duration::ZERO;
        let log = try_open(&mut executor, &device, &below, options).expect("nothing fails");
        origin.medium.fail_writes_from(0, ErrorKind::Gone);
        let writes = (0..300).map(|block| log.write(block * 8192, Buffer::copy_of(&[1; 4096]), false));
        let writes = writes.collect::<Vec<_>>();
        executor.run_until_stalled();
        origin.events.publish(&Event::IdentityChanged);
        let written = executor.block_on(join_all(writes));
        let refused = written.iter().filter(|result| result.is_err()).count();
        assert!((1..300).contains(&refused), "{durability}: {refused} of 300 found no room");
    }
}

/// The log is full of data that its device does not return: room can never be made, and none of the
/// data is dropped.
#[test]
fn writes_that_wait_for_room_are_refused_when_what_fills_the_log_cannot_be_read() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        for durability in [Durability::Log, Durability::UnsafeVolatile] {
            let kind = Kind { durability, order };
            let mut executor = Executor::in_order();
            let (medium, origin) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(16 * ORIGIN_BYTES, 2));
            let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(medium.clone()), Arc::new(origin));
            format(&mut executor, &device, &origin);
            let mut options = open_options(&executor, kind, None);
            options.record_cache_bytes = 0;
            let log = try_open(&mut executor, &device, &origin, options.clone()).expect("nothing fails");
            medium.fail_reads_of(ByteRange { offset: 0, length: LOG_BYTES });
            let writes = (0..300).map(|block| log.write(block * 8192, Buffer::copy_of(&[1; 4096]), true));
            let (writes, clock) = (join_all(writes.collect::<Vec<_>>()), executor.clock());
            let written = executor.block_on(async move {
                let too_long = clock.sleep(Duration::from_secs(3600));
                match select(writes, pin!(too_long)).await {
                    Either::Left((written, _)) => Some(written),
                    Either::Right(_) => None,
                }
            });
            let written = written.unwrap_or_else(|| panic!("{kind:?}: somebody waits for ever"));
            let refused = written.iter().filter(|result| result.is_err()).count();
            assert!((1..300).contains(&refused), "{kind:?}: {refused} of 300 found no room");
            medium.heal();
            let mut executor = Executor::in_order();
            options.clock = Arc::new(executor.clock());
            let device: SharedDevice = Arc::new(medium.after_restart());
            let log = try_open(&mut executor, &device, &origin, options).expect("its device returns what it has");
            for (block, _) in (0..).zip(&written).filter(|(_, result)| result.is_ok()) {
                assert!(read(&mut executor, log.as_ref(), block * 8192, 4096) == [1; 4096], "{kind:?}: block {block}");
            }
        }
    }
}

/// Discards at distinct places until a checkpoint has no room for another: batches of nothing but
/// zeroes make room.
#[test]
fn changes_that_wait_for_room_in_the_checkpoint_go_on() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let mut executor = Executor::new(1);
        let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(16 * ORIGIN_BYTES, 1));
        let (device, origin) = slow_devices(&mut executor, &log_medium, &origin_medium);
        format(&mut executor, &device, &origin);
        let options = open_options(&executor, Kind { order, ..KIND }, None);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        executor.block_on(async move {
            let discard = |index: u64| log.write_zeroes(index * 1024, 512, false, true);
            stream::iter(0..4000).map(discard).buffer_unordered(64).for_each(|result| async { result.unwrap() }).await;
            log.close(false).await.expect("nothing fails");
        });
    }
}
