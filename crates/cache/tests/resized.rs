//! An origin whose size changes while it is cached.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::executor::Executor;
use block::memory::MemoryDevice;
use block::{Completion, Device, Event, EventHub, EventReceiver, Geometry, Identity, Request, SharedDevice};
use cache::Mode;
use common::{format, format_options, open, read, write};

const LINE: u64 = 4096;
const ORIGIN_BYTES: u64 = 64 * LINE;

/// A device that says that it is smaller than it is, or not.
struct Resizable {
    inner: SharedDevice,
    size_bytes: AtomicU64,
    events: EventHub,
}

impl Resizable {
    fn resize(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
        self.events.publish(&Event::Resized(self.geometry()));
    }
}

impl Device for Resizable {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes.load(Ordering::Relaxed), ..self.inner.geometry() }
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        self.inner.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.events.subscribe()
    }
}

#[test]
fn what_an_origin_lost_by_shrinking_does_not_come_back_when_it_grows() {
    let mut executor = Executor::in_order();
    let inner: SharedDevice = Arc::new(MemoryDevice::new(ORIGIN_BYTES, Identity::default()));
    let size_bytes = AtomicU64::new(ORIGIN_BYTES);
    let resizable = Arc::new(Resizable { inner: Arc::clone(&inner), size_bytes, events: EventHub::new() });
    let origin: SharedDevice = resizable.clone();
    let cache_device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, Identity::default()));
    format(&mut executor, &cache_device, &origin, format_options());
    let cache = open(&mut executor, &cache_device, &origin, Mode::WriteThrough);
    write(&mut executor, &cache, 0, &[7; ORIGIN_BYTES as usize]);
    executor.run();
    // In the middle of a line, of which the rest stays.
    let end = 20 * LINE + 1024;
    resizable.resize(end);
    executor.run();
    assert_eq!(cache.geometry().size_bytes, end);
    write(&mut executor, &inner, end, &vec![0; (ORIGIN_BYTES - end) as usize]);
    resizable.resize(ORIGIN_BYTES);
    executor.run();
    let hits = cache.status().reads.hits;
    assert_eq!(read(&mut executor, &cache, 0, end), vec![7; end as usize]);
    assert_eq!(cache.status().reads.hits, hits + 1, "what was not lost is still cached");
    assert_eq!(read(&mut executor, &cache, end, ORIGIN_BYTES - end), vec![0; (ORIGIN_BYTES - end) as usize]);
}
