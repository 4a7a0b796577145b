//! Traces through target, initiator and cache: every read checked, and the miss ratios of LRU.
//!
//! The real trace is the cloudPhysics one of libCacheSim's data folder; `FOREBAY_TRACE` names the file. Without it,
//! that test is skipped, and says so; the generated trace is always replayed.

use std::path::Path;

use tests::World;
use workload::trace::synthetic::{lru_miss_ratio, mixed};
use workload::trace::write_cloud_physics;

const BLOCK_BYTES: u64 = 4096;

/// The exit code of a wrong use.
const USAGE: i32 = 2;

/// The miss ratio of `trace` through a cache of exactly `blocks` lines in one set, LRU, write-through.
fn replay(world: &World, url: &str, trace: &Path, blocks: u64) -> f64 {
    let cache = format!("{blocks}.cache");
    let name = format!("c{blocks}");
    let lines = blocks.to_string();
    let attached = world.start([
        "attach",
        url,
        "--name",
        &name,
        "--cache",
        &cache,
        "--cache-size",
        "512MiB",
        "--cache-lines",
        &lines,
        "--cache-mode",
        "write-through",
        "--cache-associativity",
        "full",
        "--cache-replacement",
        "lru",
    ]);
    let printed = world.run(["replay", trace.to_str().unwrap(), &name, "--allow-data-loss", "--json"]).json();
    world.run(["detach", &name]).success();
    attached.wait().success();
    printed["cache"]["miss_ratio"].as_f64().expect("an attachment with a cache counts hits")
}

#[test]
fn a_generated_trace_has_the_miss_ratio_of_a_textbook_lru() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:256MiB"]);
    let records = mixed(1, 4000, 64 << 20);
    let trace = world.path("trace.csv");
    write_cloud_physics(records.iter().copied(), std::fs::File::create(&trace).unwrap()).unwrap();
    for blocks in [512, 2048, 4096] {
        let expected = lru_miss_ratio(&records, blocks);
        let found = replay(&world, &target.url(0), &trace, blocks as u64);
        assert!((expected - found).abs() < 1e-12, "{blocks} blocks: {found} instead of {expected}");
    }
}

#[test]
fn a_trace_with_a_bad_line_or_that_does_not_fit_writes_nothing() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let url = target.url(0);
    let trace = world.path("trace.log");
    let write = |text: &str| std::fs::write(&trace, text).unwrap();
    let replay = |more: &[&str]| {
        let arguments = [&["replay", trace.to_str().unwrap(), &url, "--allow-data-loss"], more].concat();
        world.run(arguments)
    };
    write("fio version 2 iolog\nd write 0 4096\nd \u{1b}[31mfrob\n");
    replay(&[]).failure(USAGE, &["line 3 of the trace", r#""\u{1b}[31mfrob""#]);
    write("fio version 2 iolog\nd write 0 4096\nd write 1099511627776 4096\n");
    replay(&[]).failure(USAGE, &["or 2MiB with --rebase"]);
    // Nothing was written so far: an empty disk needs no leave.
    let printed = world.run(["replay", trace.to_str().unwrap(), &url, "--rebase", "--json"]).json();
    assert_eq!(printed["verified_bytes"], 8192);
}

/// A record of the second layout of vscsi traces.
fn vscsi(command: u16, bytes: u32, block: u64) -> Vec<u8> {
    let (command, bytes, block) = (command.to_le_bytes(), bytes.to_le_bytes(), block.to_le_bytes());
    [&command[..], &[5, 2], &[7, 0, 0, 0], &bytes, &[1, 0, 0, 0], &block, &[0; 8], &[0; 8]].concat()
}

#[test]
fn commands_of_a_trace_that_neither_read_nor_write_are_passed_over_and_counted() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let url = target.url(0);
    // A write, UNMAP, WRITE SAME (16), a read.
    let records = [vscsi(0x2a, 4096, 0), vscsi(0x42, 24, 0), vscsi(0x93, 512, 8), vscsi(0x28, 4096, 0)];
    std::fs::write(world.path("trace.vscsi"), records.concat()).unwrap();
    let printed = world.run(["replay", "trace.vscsi", &url, "--dry-run", "--json"]).json();
    assert_eq!((&printed["requests"], &printed["other_commands"]), (&2.into(), &2.into()), "{printed}");
    let printed = world.run(["replay", "trace.vscsi", &url, "--json"]).json();
    assert_eq!((&printed["counts"]["requests"], &printed["other_commands"]), (&2.into(), &2.into()), "{printed}");
    let printed = world.run(["replay", "trace.vscsi", &url, "--allow-data-loss"]).success();
    assert!(printed.contains("2 SCSI commands of the trace were passed over"), "{printed}");
}

#[test]
fn a_trace_that_only_reads_needs_no_leave_and_checks_nothing() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let url = target.url(0);
    let (writes, reads) = (world.path("writes.log"), world.path("reads.log"));
    std::fs::write(&writes, "fio version 2 iolog\nd write 0 4096\nd read 0 8192\n").unwrap();
    std::fs::write(&reads, "1 8 0 0\n").unwrap();
    let printed = world.run(["replay", writes.to_str().unwrap(), &url, "--json"]).json();
    let bytes = |key: &str| printed["counts"][key].as_u64();
    assert_eq!((bytes("bytes_read"), bytes("bytes_read_checked")), (Some(8192), Some(4096)));
    assert_eq!(printed["verified_bytes"], 4096);
    let printed = world.run(["replay", reads.to_str().unwrap(), &url]).success();
    assert!(printed.contains("nothing was written, so no content was checked"), "{printed}");
    let printed = world.run(["replay", reads.to_str().unwrap(), "--dry-run", "--json"]).json();
    assert_eq!((printed["reads"].as_u64(), printed["size_bytes"].as_u64()), (Some(1), Some(8 * 512 + 512)));
}

#[test]
fn the_cloud_physics_trace_has_its_published_miss_ratios() {
    let Some(trace) = std::env::var_os("FOREBAY_TRACE").filter(|path| Path::new(path).exists()) else {
        println!("skipped: set FOREBAY_TRACE to cloudPhysicsIO.csv from libCacheSim's data folder to replay it");
        return;
    };
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=32GiB,write-cache"]);
    // 1 %, 5 %, 10 % and 20 % of the 269,210 blocks that the trace touches.
    for (blocks, published) in [(2692, 0.8969), (13460, 0.8871), (26921, 0.8741), (53842, 0.8129)] {
        let found = replay(&world, &target.url(0), Path::new(&trace), blocks);
        println!("{blocks} blocks of {BLOCK_BYTES} bytes: miss ratio {found:.4}, published {published:.4}");
        assert_eq!(format!("{found:.4}"), format!("{published:.4}"), "{blocks} blocks");
    }
}
