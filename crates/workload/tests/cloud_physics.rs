//! The LRU curve of a recorded trace, to four digits.
//!
//! The figures were measured by libCacheSim on its own `cloudPhysicsIO.csv`: 4 KiB blocks, reads
//! and writes both allocate, no warm-up. The trace may not be copied here: `FOREBAY_TRACE` names
//! it. Without that the test reports itself as skipped.

use std::fs::File;
use std::io::BufReader;

use workload::miss_ratio::MissRatioCurve;
use workload::trace::{Format, Options, TraceReader};

/// Blocks of the cache (1, 5, 10, 20 % of 269,210) and its miss ratio.
const LRU: [(usize, &str); 4] = [(2692, ".8969"), (13_460, ".8871"), (26_921, ".8741"), (53_842, ".8129")];

#[test]
fn the_lru_row_of_the_cloud_physics_trace() {
    let Some(path) = std::env::var_os("FOREBAY_TRACE").filter(|path| !path.is_empty()) else {
        println!("skipped: set FOREBAY_TRACE to cloudPhysicsIO.csv, from the data folder of libCacheSim");
        return;
    };
    let file = File::open(&path).unwrap_or_else(|error| panic!("FOREBAY_TRACE={}: {error}", path.display()));
    let mut reader = TraceReader::new(BufReader::new(file), Options::default());
    let mut requests = 0;
    let mut curve = MissRatioCurve::new();
    for record in reader.by_ref() {
        let record = record.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        requests += 1;
        curve.access(&record.access);
    }
    assert_eq!(reader.format(), Some(Format::CloudPhysics));
    assert_eq!((requests, curve.access_count(), curve.block_count()), (113_872, 1_141_869, 269_210));
    for (cache_blocks, expected) in LRU {
        let ratio = curve.miss_ratio(cache_blocks).expect("there are accesses");
        assert_eq!(format!("{ratio:.4}").trim_start_matches('0'), expected, "{cache_blocks} blocks");
    }
}
