//! A cache device with any damage: looking at it, opening it, reading, writing and closing end in values. When only
//! one copy of the superblock is damaged, nothing is lost.

#![no_main]

use std::sync::Arc;

use base::buffer::Buffer;
use base::executor::Executor;
use block::SharedDevice;
use block::device::DeviceExt;
use cache::{Cache, Mode, OpenOptions, check, inspect};
use fuzz::cache_image::{ORIGIN_BYTES, apply, images, layout};
use fuzz::damage::{Damage, Image, device};
use fuzz::input::Input;
use libfuzzer_sys::fuzz_target;
use store::limits::SUPERBLOCK_BYTES;

const DAMAGES_MAX: usize = 8;
const READ_BYTES: u64 = 32 << 10;

/// Opens, uses and closes; what was read, or `None` where that ended in an error.
fn use_cache(cache_device: &SharedDevice, origin: &SharedDevice, mode: Mode) -> Option<Vec<u8>> {
    let mut executor = Executor::in_order();
    let options = OpenOptions::new(mode, Arc::new(executor.clock()));
    let cache = executor.block_on(Cache::open(Arc::clone(cache_device), Arc::clone(origin), options)).ok()?;
    executor.spawn(cache.run());
    let mut content = Some(Vec::new());
    for offset in (0..ORIGIN_BYTES).step_by(READ_BYTES as usize) {
        match (executor.block_on(cache.read(offset, Buffer::zeroed(READ_BYTES as usize))), &mut content) {
            (Ok(bytes), Some(content)) => content.extend_from_slice(&bytes),
            _ => content = None,
        }
    }
    executor.run_until_stalled();
    let written = executor.block_on(cache.write(4096 + 512, Buffer::copy_of(&[0xee; 8192]), false));
    if written.is_ok() {
        let read = executor.block_on(cache.read(4096 + 512, Buffer::zeroed(8192)));
        assert!(read.is_err() || read.is_ok_and(|bytes| bytes.iter().all(|&byte| byte == 0xee)), "what was written");
    }
    let _ = executor.block_on(cache.flush());
    let status = cache.status();
    assert!(format!("{status:?}").len() > 2);
    let closing = Arc::clone(&cache);
    let _ = executor.block_on(async move { closing.close(false).await });
    let _ = executor.block_on(async move { cache.close(true).await });
    content
}

fn look(cache_device: &SharedDevice) {
    let device = Arc::clone(cache_device);
    base::executor::block_on(async move {
        let inspection = inspect(&device).await;
        let checked = check(&device).await;
        assert_eq!(inspection.is_ok(), checked.is_ok());
        if let Ok(inspection) = inspection {
            assert!(inspection.dirty_lines <= inspection.valid_lines && inspection.valid_lines <= inspection.lines);
        }
    });
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let flags = input.byte();
    let image: &Image = &images()[usize::from(flags & 1)];
    let mode = if flags & 2 != 0 { Mode::WriteThrough } else { Mode::WriteBack };
    let mut cache = image.store.clone();
    let is_one_copy_only = flags & 4 != 0;
    if is_one_copy_only {
        let start = if flags & 8 != 0 { cache.len() - SUPERBLOCK_BYTES } else { 0 };
        let at = usize::from(input.u16()) % SUPERBLOCK_BYTES;
        for (byte, change) in cache[start + at..start + SUPERBLOCK_BYTES].iter_mut().zip(input.rest()) {
            *byte ^= change;
        }
    } else {
        let layout = layout(&image.store);
        for _ in 0..DAMAGES_MAX {
            if input.is_empty() {
                break;
            }
            apply(&Damage::parse(&mut input), &mut cache, &layout);
        }
    }
    let (cache_device, origin) = (device(&cache, "C"), device(&image.origin, "S1"));
    look(&cache_device);
    let content = use_cache(&cache_device, &origin, mode);
    if is_one_copy_only {
        let content = content.expect("one copy of the superblock is enough");
        assert!(content == image.expected, "what was acknowledged is there");
    }
});
