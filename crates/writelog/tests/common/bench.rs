//! A log over media that fail and lose power, and options of some tests.

use std::sync::Arc;
use std::time::Duration;

use super::{Kind, format, open_options, try_open};
use base::buffer::Buffer;
use base::executor::Executor;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::delay::Latency;
use block::{ErrorKind, Geometry, SharedDevice};
use writelog::options::Level2;
use writelog::{DestageOrder, Durability, OpenOptions, WriteLog};

pub const ORIGIN_BYTES: u64 = 64 * 4096;
pub const LOG_BYTES: u64 = 512 << 10;
pub const KIND: Kind = Kind { durability: Durability::Log, order: DestageOrder::Log };

pub struct Bench {
    pub executor: Executor,
    pub log_medium: CrashLayer,
    pub origin_medium: CrashLayer,
    pub log: Arc<WriteLog>,
}

impl Bench {
    pub fn new(change: impl FnOnce(&mut OpenOptions)) -> Self {
        let mut executor = Executor::in_order();
        let log_medium = CrashLayer::new(LOG_BYTES, 1);
        let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
        let origin_medium = CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry);
        let (device, origin): (SharedDevice, SharedDevice) =
            (Arc::new(log_medium.clone()), Arc::new(origin_medium.clone()));
        format(&mut executor, &device, &origin);
        let mut options = open_options(&executor, KIND, None);
        options.record_cache_bytes = 0;
        change(&mut options);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        Self { executor, log_medium, origin_medium, log }
    }

    pub fn write(&mut self, offset: u64, byte: u8) -> Result<(), ErrorKind> {
        let writing = self.log.write(offset, Buffer::copy_of(&[byte; 4096]), false);
        self.executor.block_on(writing).map(drop).map_err(|error| error.kind())
    }

    pub fn close(&mut self, keep_dirty: bool) -> Result<(), ErrorKind> {
        let log = Arc::clone(&self.log);
        self.executor.block_on(async move { log.close(keep_dirty).await }).map_err(|error| error.kind())
    }

    pub fn reopen(&mut self) -> Result<Arc<WriteLog>, ErrorKind> {
        let medium = self.log_medium.clone();
        self.open_on(&medium)
    }

    pub fn open_on(&mut self, log_medium: &CrashLayer) -> Result<Arc<WriteLog>, ErrorKind> {
        let options = open_options(&self.executor, KIND, None);
        let (device, origin) = (Arc::new(log_medium.clone()), Arc::new(self.origin_medium.clone()));
        let (device, origin): (SharedDevice, SharedDevice) = (device, origin);
        try_open(&mut self.executor, &device, &origin, options).map_err(|error| error.kind())
    }
}

/// A log device and an origin that take time.
pub fn slow_devices(
    executor: &mut Executor,
    log_medium: &CrashLayer,
    origin_medium: &CrashLayer,
) -> (SharedDevice, SharedDevice) {
    let workers = Workers::new();
    let slow = |medium: &CrashLayer, executor: &Executor, most| -> SharedDevice {
        let latency = Latency::Between(Duration::ZERO, Duration::from_micros(most));
        Arc::new(medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers))
    };
    let devices = (slow(log_medium, executor, 100), slow(origin_medium, executor, 700));
    executor.spawn(async move { workers.run().await });
    devices
}

/// Destages only when asked to.
pub fn only_when_asked(options: &mut OpenOptions) {
    let hour = Duration::from_secs(3600);
    options.level2 = Level2 { idle: hour, age_max: hour, share_start: 0.9, share_slow: 0.95, ..options.level2 };
}
