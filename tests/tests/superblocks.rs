//! A cache or a write log of whose superblock one copy is gone: the checks say so, and the next attach mends it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tests::{Process, World, tool};

/// Exit code, as documented.
const MISMATCH: i32 = 7;

const STORE_BYTES: u64 = 8 << 20;
const COPY_BYTES: u64 = 4096;

const CACHE: [&str; 6] = ["--cache", "disk.store", "--cache-size", "8MiB", "--cache-mode", "write-back"];
const LOG: [&str; 8] =
    ["--log", "disk.store", "--log-size", "8MiB", "--destage-idle", "100000s", "--destage-age", "100000s"];

fn io(process: &Process, command: &str) {
    tool("qemu-io", ["-f", "raw", "-c", command, &process.ready]);
}

/// Makes `length` bytes of the store zero.
fn lose(world: &World, offset: u64, length: u64) {
    let store = File::options().write(true).open(world.path("disk.store")).unwrap();
    store.write_all_at(&vec![0; length as usize], offset).unwrap();
}

#[test]
fn a_lost_copy_of_a_superblock_is_told_by_check_and_written_again_by_the_next_attach() {
    for (kind, store) in [("cache", &CACHE[..]), ("log", &LOG)] {
        let world = World::new();
        let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
        let url = target.url(0);
        let attach = [&["attach", &url, "--name", "disk"], store].concat();
        let mut disk = world.start(&attach);
        io(&disk, "write -P 0x5a 0 64k");
        disk.kill();
        let check = || world.run([kind, "check", "disk.store"]);
        assert_eq!(check().success(), "disk.store: no damage found\n");
        for (offset, words) in [
            (0, "first copy all zero, last copy whole"),
            (STORE_BYTES - COPY_BYTES, "first copy whole, last copy all zero"),
        ] {
            lose(&world, offset, COPY_BYTES);
            check().failure(MISMATCH, &["disk.store", "one of the two copies", words, "the next attach writes both"]);
            let said = world.run([kind, "inspect", "disk.store"]).success();
            assert!(said.contains(words), "{said}");
            // Ended like this it keeps what is dirty.
            world.start(&attach).terminate().success();
            assert_eq!(check().success(), "disk.store: no damage found\n");
        }
        let disk = world.start(&attach);
        io(&disk, "read -P 0x5a 0 64k");
    }
}

/// What stands behind the first copy is the cache's log: that the newest of its records are gone cannot be told from
/// their never having been there.
#[test]
fn a_check_never_calls_a_cache_whole_whose_first_bytes_are_gone() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let mut disk = world.start([&["attach", &target.url(0), "--name", "disk"], &CACHE[..]].concat());
    io(&disk, "write -P 0x5a 0 64k");
    disk.kill();
    lose(&world, 0, 2 * COPY_BYTES);
    let checked = world.run(["cache", "check", "disk.store"]);
    checked.failure(MISMATCH, &["disk.store"]);
}
