//! A write log with any damage: looking at it, opening it, reading, writing and closing end in values. When only one
//! copy of the superblock is damaged, nothing is lost.

#![no_main]

use std::sync::Arc;

use base::buffer::Buffer;
use base::executor::Executor;
use block::SharedDevice;
use block::device::DeviceExt;
use fuzz::damage::{Damage, Image, device};
use fuzz::input::Input;
use fuzz::log_image::{ORIGIN_BYTES, apply, images, layout};
use libfuzzer_sys::fuzz_target;
use store::limits::SUPERBLOCK_BYTES;
use writelog::{DestageOrder, OpenOptions, WriteLog, check, inspect};

const DAMAGES_MAX: usize = 8;
const READ_BYTES: u64 = 32 << 10;

/// Opens, uses and closes; what was read, or `None` where that ended in an error.
fn use_log(log_device: &SharedDevice, origin: &SharedDevice, order: DestageOrder) -> Option<Vec<u8>> {
    let mut executor = Executor::in_order();
    let mut options = OpenOptions::new(Arc::new(executor.clock()));
    options.order = order;
    let log = executor.block_on(WriteLog::open(Arc::clone(log_device), Arc::clone(origin), options)).ok()?;
    executor.spawn(log.run());
    let mut content = Some(Vec::new());
    for offset in (0..ORIGIN_BYTES).step_by(READ_BYTES as usize) {
        match (executor.block_on(log.read(offset, Buffer::zeroed(READ_BYTES as usize))), &mut content) {
            (Ok(bytes), Some(content)) => content.extend_from_slice(&bytes),
            _ => content = None,
        }
    }
    let written = executor.block_on(log.write(4096 + 512, Buffer::copy_of(&[0xee; 8192]), false));
    if written.is_ok() {
        let read = executor.block_on(log.read(4096 + 512, Buffer::zeroed(8192)));
        assert!(read.is_err() || read.is_ok_and(|bytes| bytes.iter().all(|&byte| byte == 0xee)), "what was written");
    }
    let _ = executor.block_on(log.flush());
    let status = log.status();
    assert!(format!("{status:?}").len() > 2);
    let closing = Arc::clone(&log);
    let _ = executor.block_on(async move { closing.close(false).await });
    let _ = executor.block_on(async move { log.close(true).await });
    content
}

fn look(log_device: &SharedDevice) {
    let (device, clock) = (Arc::clone(log_device), Executor::in_order().clock());
    base::executor::block_on(async move {
        let inspection = inspect(&device, &clock).await;
        let checked = check(&device, None, &clock).await;
        assert_eq!(inspection.is_ok(), checked.is_ok());
        if let Ok(inspection) = inspection {
            assert!(inspection.segments_used <= inspection.segments);
        }
    });
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let flags = input.byte();
    let image: &Image = &images()[usize::from(flags & 1)];
    let order = if flags & 2 != 0 { DestageOrder::Lba } else { DestageOrder::Log };
    let mut log = image.store.clone();
    let is_one_copy_only = flags & 4 != 0;
    if is_one_copy_only {
        let start = if flags & 8 != 0 { log.len() - SUPERBLOCK_BYTES } else { 0 };
        let at = usize::from(input.u16()) % SUPERBLOCK_BYTES;
        for (byte, change) in log[start + at..start + SUPERBLOCK_BYTES].iter_mut().zip(input.rest()) {
            *byte ^= change;
        }
    } else {
        let layout = layout(&image.store);
        for _ in 0..DAMAGES_MAX {
            if input.is_empty() {
                break;
            }
            apply(&Damage::parse(&mut input), &mut log, &layout);
        }
    }
    let (log_device, origin) = (device(&log, "L"), device(&image.origin, "S1"));
    look(&log_device);
    let content = use_log(&log_device, &origin, order);
    if is_one_copy_only {
        let content = content.expect("one copy of the superblock is enough");
        assert!(content == image.expected, "what was acknowledged is there");
    }
});
