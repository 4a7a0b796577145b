//! The whole log of a cache is lost in a crash: the writes since the last checkpoint are missing,
//! and the open reports that.

mod common;

use std::sync::Arc;

use base::executor::Executor;
use block::{ErrorKind, SharedDevice};
use cache::{Mode, check};
use common::{format, format_options, memory, open, open_options, read, try_open, write};

/// Offset of the log's offset and length in the superblock.
const LOG_AT: usize = 128 + 2592;

fn zero_log(executor: &mut Executor, device: &SharedDevice) {
    let superblock = read(executor, device, 0, 4096);
    let number = |at: usize| u64::from_le_bytes(superblock[at..at + 8].try_into().unwrap());
    let (offset, length) = (number(LOG_AT), number(LOG_AT + 8));
    write(executor, device, offset, &vec![0; length as usize]);
}

#[test]
fn a_cache_in_use_whose_log_has_no_record_is_refused() {
    for writes in [0, 1, 200] {
        let (device, origin) = (memory(1 << 20), memory(1 << 20));
        let mut executor = Executor::in_order();
        format(&mut executor, &device, &origin, format_options());
        let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
        for line in 0..writes {
            write(&mut executor, &cache, line % 100 * 4096, &[1; 4096]);
        }
        drop((cache, executor));
        let mut executor = Executor::in_order();
        let checked = Arc::clone(&device);
        executor.block_on(async move { check(&checked).await }).expect("a crash is no damage");
        zero_log(&mut executor, &device);
        let options = open_options(&executor, Mode::WriteBack);
        let error = try_open(&mut executor, &device, &origin, options).err().expect("records are missing");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let checked = Arc::clone(&device);
        let checked = executor.block_on(async move { check(&checked).await });
        assert_eq!(checked.unwrap_err().to_string(), error.to_string());
    }
}
