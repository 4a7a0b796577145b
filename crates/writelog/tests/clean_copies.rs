//! Copies in the log of what the origin has, too.

mod common;

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::Event;
use block::device::DeviceExt;
use common::bench::{Bench, only_when_asked};
use common::read;

#[test]
fn what_others_change_is_read_anew_where_only_a_clean_copy_is_here() {
    let range = ByteRange { offset: 0, length: 8192 };
    for (event, record_cache_bytes) in
        [(Event::Invalidated(range), 0), (Event::Invalidated(range), 48 << 10), (Event::Missed, 0)]
    {
        let mut bench = Bench::new(|options| {
            only_when_asked(options);
            options.record_cache_bytes = record_cache_bytes;
        });
        bench.write(0, 1).unwrap();
        let destaging = Arc::clone(&bench.log);
        bench.executor.block_on(async move { destaging.destage(|_| {}).await }).unwrap();
        bench.write(4096, 3).unwrap();
        let medium = bench.origin_medium.clone();
        bench.executor.block_on(medium.write(0, Buffer::copy_of(&[9; 8192]), true)).unwrap();
        assert_eq!(read(&mut bench.executor, bench.log.as_ref(), 0, 512), [1; 512], "nobody said anything yet");
        medium.publish(&event);
        bench.executor.run_until_stalled();
        let found = read(&mut bench.executor, bench.log.as_ref(), 0, 8192);
        assert_eq!((found[0], found[4096]), (9, 3), "{event:?}: what is dirty stays");
    }
}
