//! Cached records of a segment are dropped when the segment is used again.

mod common;

use std::sync::Arc;

use base::executor::Executor;
use block::SharedDevice;
use block::layer::crash::CrashLayer;
use common::{Kind, format, open_options, read, try_open, write};
use writelog::{DestageOrder, Durability};

const ORIGIN_BYTES: u64 = 256 << 10;

#[test]
fn records_of_a_segment_that_is_used_again_are_not_read() {
    let mut executor = Executor::in_order();
    let origin: SharedDevice = Arc::new(CrashLayer::new(ORIGIN_BYTES, 2));
    let device: SharedDevice = Arc::new(CrashLayer::new(4 << 20, 1));
    format(&mut executor, &device, &origin);
    let mut options = open_options(&executor, Kind { order: DestageOrder::Lba, durability: Durability::Log }, None);
    options.record_cache_bytes = 4 << 20;
    let opened = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
    let mut at = 0;
    for number in 0..4000u32 {
        let sectors = [7, 23, 15, 31][number as usize / 100 % 4];
        let length = sectors * 512;
        if at + length > ORIGIN_BYTES {
            at = 0;
        }
        let bytes: Vec<u8> = (0..length).map(|byte| (number as u64 * 31 + byte / 512) as u8).collect();
        write(&mut executor, &opened, at, &bytes);
        for sector in 0..sectors {
            let found = read(&mut executor, &opened, at + sector * 512, 512);
            let start = (sector * 512) as usize;
            assert!(found == bytes[start..start + 512], "write {number}, sector {sector} of {sectors}");
        }
        at += length;
    }
}
