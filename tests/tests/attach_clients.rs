//! An attached write-back cache in the hands of clients we did not write: QEMU, libnbd, fio, the kernel's loop device.

use std::fs;
use std::path::Path;
use std::process::Command;

use tests::{Process, Target, World, finish, tool, wait_until};

struct Attached {
    world: World,
    target: Target,
    process: Process,
    uri: String,
}

/// A LUN of `size` in a file, attached through a cache of 64 MiB.
fn attached(size: &str, mode: &str) -> Attached {
    let world = World::new();
    let target = world.target(["--lun", &format!("0=file:disk.img,size={size}")]);
    let front = format!("nbd:unix:{}", world.path("disk.nbd").display());
    let arguments = [
        "attach",
        &target.url(0),
        "--name",
        "disk",
        "--cache",
        "disk.cache",
        "--cache-size",
        "64MiB",
        "--cache-mode",
        mode,
        "--as",
        &front,
    ];
    let process = world.start(arguments);
    let uri = process.ready.clone();
    Attached { world, target, process, uri }
}

impl Attached {
    fn detach(self) -> World {
        self.world.run(["detach", "disk"]).success();
        self.process.wait().success();
        self.target.process.terminate().success();
        self.world
    }

    fn cache_status(&self) -> serde_json::Value {
        let status = self.world.status("disk");
        status["cache"].clone()
    }
}

fn checksum(path: &Path) -> String {
    tool("sha256sum", [path]).split_whitespace().next().unwrap().to_owned()
}

fn random_file(path: &Path, size: usize) {
    let mut bytes = vec![0; size];
    base::random::Random::new(5).fill(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn nbdinfo_shows_what_is_offered() {
    let attached = attached("100MiB", "write-back");
    let info: serde_json::Value = serde_json::from_str(&tool("nbdinfo", ["--json", &attached.uri])).unwrap();
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], 100 << 20);
    for ability in ["can_flush", "can_fua", "can_trim", "can_zero", "can_df"] {
        assert_eq!(export[ability], true, "{ability}: {export}");
    }
    assert_eq!(export["block_size_minimum"], 1);
    assert_eq!(export["block_size_preferred"], 4096);
}

#[test]
fn qemu_io_writes_trims_and_zeroes() {
    let attached = attached("100MiB", "write-back");
    tool(
        "qemu-io",
        [
            "-f",
            "raw",
            "-c",
            "write -P 0xab 0 64k",
            "-c",
            "write -f -P 0xcd 65536 512",
            "-c",
            "read -P 0xab 0 64k",
            "-c",
            "read -P 0xcd 65536 512",
            "-c",
            "flush",
            "-c",
            "discard 0 4k",
            "-c",
            "write -z 8k 4k",
            "-c",
            "read -P 0 8k 4k",
            "-c",
            "write -z -u 16k 4k",
            "-c",
            "read -P 0 16k 4k",
            "-c",
            "read -P 0xab 12k 4k",
            &attached.uri,
        ],
    );
    let world = attached.detach();
    let image = fs::read(world.path("disk.img")).unwrap();
    assert!(image[12 << 10..16 << 10].iter().all(|&byte| byte == 0xab), "what was written back is on the LUN");
    assert!(image[8 << 10..12 << 10].iter().all(|&byte| byte == 0));
    assert!(image[65536..65536 + 512].iter().all(|&byte| byte == 0xcd));
}

#[test]
fn nbdcopy_and_qemu_img_in_and_out() {
    for mode in ["write-back", "write-through"] {
        let attached = attached("200MiB", mode);
        let (source, back, converted) =
            (attached.world.path("source"), attached.world.path("back"), attached.world.path("converted"));
        random_file(&source, 200 << 20);
        tool("nbdcopy", ["--flush", source.to_str().unwrap(), &attached.uri]);
        tool("nbdcopy", [&attached.uri, back.to_str().unwrap()]);
        tool("qemu-img", ["convert", "-f", "raw", "-O", "raw", &attached.uri, converted.to_str().unwrap()]);
        assert_eq!(checksum(&source), checksum(&back), "{mode}");
        assert_eq!(checksum(&source), checksum(&converted), "{mode}");
        let world = attached.detach();
        assert_eq!(checksum(&source), checksum(&world.path("disk.img")), "{mode}");
    }
}

#[test]
fn fio_verifies_what_it_wrote() {
    let attached = attached("100MiB", "write-back");
    let uri = format!("--uri={}", attached.uri);
    tool(
        "fio",
        [
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bsrange=512-32k",
            "--bs_unaligned=0",
            "--size=48m",
            "--iodepth=16",
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            "--randseed=3",
            "--fsync=64",
            "--verify_state_save=0",
        ],
    );
    assert_eq!(attached.cache_status()["origin_reads_before_write_ack"], 0, "no write waited for a read of the target");
    attached.detach();
}

#[test]
fn a_kernel_file_system_on_a_loop_device() {
    let attached = attached("100MiB", "write-back");
    let (mount, file_system) = (attached.world.path("fuse"), attached.world.path("ext4"));
    fs::create_dir(&mount).unwrap();
    fs::create_dir(&file_system).unwrap();
    let mut fuse = Command::new("nbdfuse").arg(&mount).arg(&attached.uri).spawn().expect("nbdfuse is installed");
    let device = mount.join("nbd");
    wait_until("nbdfuse shows a file", || device.exists());
    let as_root = |arguments: &[&str]| {
        let is_root = rustix::process::geteuid().is_root();
        let (program, arguments) = if is_root { (arguments[0], &arguments[1..]) } else { ("sudo", arguments) };
        let mut command = Command::new(program);
        if !is_root {
            command.arg("-n");
        }
        finish(command.args(arguments)).success()
    };
    let loop_device = as_root(&["losetup", "--find", "--show", device.to_str().unwrap()]).trim().to_owned();
    as_root(&["mkfs.ext4", "-q", "-F", &loop_device]);
    as_root(&["mount", &loop_device, file_system.to_str().unwrap()]);
    as_root(&[
        "dd",
        "if=/dev/urandom",
        &format!("of={}/data", file_system.display()),
        "bs=1M",
        "count=40",
        "conv=fsync",
    ]);
    let before = as_root(&["sha256sum", &format!("{}/data", file_system.display())]);
    as_root(&["umount", file_system.to_str().unwrap()]);
    as_root(&["losetup", "--detach", &loop_device]);
    tool("fusermount3", ["-u", mount.to_str().unwrap()]);
    fuse.wait().unwrap();
    // The LUN's own file, without the cache, holds the file system.
    let world = attached.detach();
    let image = world.path("disk.img");
    let checked = finish(Command::new("e2fsck").args(["-fn", image.to_str().unwrap()]));
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let loop_device =
        as_root(&["losetup", "--find", "--show", "--read-only", image.to_str().unwrap()]).trim().to_owned();
    let file_system = world.path("ext4");
    as_root(&["mount", "-o", "ro,noload", &loop_device, file_system.to_str().unwrap()]);
    let after = as_root(&["sha256sum", &format!("{}/data", file_system.display())]);
    as_root(&["umount", file_system.to_str().unwrap()]);
    as_root(&["losetup", "--detach", &loop_device]);
    assert_eq!(before, after);
}

#[test]
fn a_lun_whose_size_is_no_multiple_of_4_kib() {
    let size = (10 << 20) + 3 * 512;
    let attached = attached(&size.to_string(), "write-back");
    let (source, back) = (attached.world.path("source"), attached.world.path("back"));
    random_file(&source, size);
    tool("nbdcopy", [source.to_str().unwrap(), &attached.uri]);
    tool("nbdcopy", [&attached.uri, back.to_str().unwrap()]);
    assert_eq!(checksum(&source), checksum(&back));
    let world = attached.detach();
    assert_eq!(checksum(&source), checksum(&world.path("disk.img")));
}

#[test]
fn settings_and_cleaning_while_it_runs() {
    let attached = attached("100MiB", "write-back");
    tool("qemu-io", ["-f", "raw", "-c", "write -P 1 0 8M", &attached.uri]);
    assert_eq!(attached.cache_status()["dirty_bytes"], 8 << 20);
    attached.world.run(["clean", "disk"]).success();
    assert_eq!(attached.cache_status()["dirty_bytes"], 0);
    tool("qemu-io", ["-f", "raw", "-c", "write -P 2 0 8M", &attached.uri]);
    attached.world.run(["set", "disk", "cache.mode=write-through"]).success();
    let cache = attached.cache_status();
    assert_eq!((cache["mode"].as_str(), cache["dirty_bytes"].as_u64()), (Some("write-through"), Some(0)));
    tool("qemu-io", ["-f", "raw", "-c", "write -P 3 0 8M", &attached.uri]);
    assert_eq!(attached.cache_status()["dirty_bytes"], 0);
    attached.world.run(["set", "disk", "cache.mode=write-back"]).success();
    tool("qemu-io", ["-f", "raw", "-c", "write -P 4 4M 4M", "-c", "read -P 3 0 4M", &attached.uri]);
    assert_eq!(attached.cache_status()["dirty_bytes"], 4 << 20);
    for setting in [
        "cache.replacement=s3-fifo",
        "cache.admission=second-use",
        "cache.cutoff=4MiB",
        "cache.prefetch=64KiB",
        "cache.clean-min=2MiB",
        "cache.clean-max=64MiB",
        "cache.dirty-max=80%",
        "cache.clean-above=100%",
        "cache.deferred=8KiB",
    ] {
        attached.world.run(["set", "disk", setting]).success();
    }
    let cache = attached.cache_status();
    assert_eq!((cache["replacement"].as_str(), cache["cutoff_bytes"].as_u64()), (Some("s3-fifo"), Some(4 << 20)));
    assert_eq!((&cache["dirty_max_percent"], &cache["clean_above_percent"]), (&80.into(), &100.into()));
    assert_eq!(cache["clean_min_bytes_per_second"], 2 << 20);
    assert_eq!(cache["clean_max_bytes_per_second"], 64 << 20);
    assert_eq!((&cache["deferred_max"], &cache["writes_deferred"]), (&8192.into(), &0.into()));
    tool("qemu-io", ["-f", "raw", "-c", "write -f -P 5 0 4k", "-c", "write -f -P 6 1M 64k", &attached.uri]);
    assert_eq!(attached.cache_status()["writes_deferred"], 1, "the smaller one");
    tool("qemu-io", ["-f", "raw", "-c", "read -P 5 0 4k", "-c", "read -P 6 1M 64k", &attached.uri]);
    attached.world.run(["set", "disk", "cache.deferred=off"]).success();
    assert_eq!(attached.cache_status()["deferred_max"], 0);
    attached.world.run(["set", "disk", "cache.cutoff=off"]).success();
    attached.world.run(["set", "disk", "cache.clean-max=off"]).success();
    attached.world.run(["set", "disk", "cache.dirty-max=most"]).failure(2, &["most"]);
    attached.world.run(["set", "disk", "cache.mode=sideways"]).failure(2, &["sideways"]);
    attached.world.run(["set", "disk", "cache.prefetch=far"]).failure(2, &["far"]);
    attached.world.run(["set", "disk", "cache.colour=red"]).failure(2, &["cache.colour"]);
    attached.detach();
}

/// A session is taken over by who logs in under the same name: that must not happen before the lock is looked at.
#[test]
fn who_attaches_under_the_name_of_one_that_runs_is_refused_before_it_takes_over_the_session() {
    let attached = attached("64MiB", "write-back");
    let world = &attached.world;
    let session = || world.run(["target", "status", "--json"]).json()["sessions"][0]["tsih"].clone();
    let before = session();
    fs::remove_file(world.path("run/disk.sock")).expect("it is there");
    let second =
        ["attach", &attached.target.url(0), "--name", "disk", "--cache", "other.cache", "--cache-size", "16MiB"];
    world.run(second).failure(6, &["\"disk\" is running already (process", "disk.sock is gone"]);
    assert_eq!(session(), before);
    tool("qemu-io", ["-f", "raw", "-c", "write -P 1 0 64k", "-c", "read -P 1 0 64k", &attached.uri]);
    attached.process.terminate().success();
}

#[test]
fn warm_reads_never_touch_the_target() {
    let attached = attached("64MiB", "write-back");
    let reads = || {
        let status = attached.world.run(["target", "status", "--json"]).json();
        status["luns"][0]["reads"].as_u64().unwrap()
    };
    tool("qemu-io", ["-f", "raw", "-c", "read 0 16M", &attached.uri]);
    // What a reader got is inserted after it got it.
    let is_warm = |status: &serde_json::Value| status["cache"]["valid_bytes"].as_u64() >= Some(16 << 20);
    attached.world.wait_for_status("disk", "all that was read is in the cache", is_warm);
    let cold = reads();
    tool("qemu-io", ["-f", "raw", "-c", "read 0 16M", "-c", "read 1M 4k", &attached.uri]);
    assert_eq!(reads(), cold, "the target was asked again");
    // Also after a clean stop.
    let Attached { world, target, process, .. } = attached;
    world.run(["detach", "disk"]).success();
    process.wait().success();
    let front = format!("nbd:unix:{}", world.path("disk.nbd").display());
    let process = world.start(["attach", &target.url(0), "--name", "disk", "--cache", "disk.cache", "--as", &front]);
    let warm = || world.run(["target", "status", "--json"]).json()["luns"][0]["reads"].as_u64().unwrap();
    let before = warm();
    tool("qemu-io", ["-f", "raw", "-c", "read 0 16M", &process.ready]);
    assert_eq!(warm(), before, "the target was asked after a clean stop");
}

#[test]
fn a_partial_write_that_misses_never_reads_from_the_target() {
    let attached = attached("64MiB", "write-back");
    let reads = || {
        let status = attached.world.run(["target", "status", "--json"]).json();
        status["luns"][0]["reads"].as_u64().unwrap_or(0)
    };
    let before = reads();
    // Aligned to sectors, never to lines; QEMU would pad smaller or odd ones itself.
    let writes: Vec<String> =
        (0..64).map(|index| format!("write -P {} {} 1536", index + 1, index * 65536 + 512)).collect();
    let arguments = ["-f", "raw"].into_iter().chain(writes.iter().flat_map(|write| ["-c", write.as_str()]));
    tool("qemu-io", arguments.chain([attached.uri.as_str()]));
    // QEMU probes the first sector when it opens an image.
    assert!(reads() - before <= 1, "partial writes made the cache read the target: {} to {}", before, reads());
    assert_eq!(attached.cache_status()["origin_reads_before_write_ack"], 0);
    let world = attached.detach();
    let image = fs::read(world.path("disk.img")).unwrap();
    for index in 0..64usize {
        let at = index * 65536;
        assert!(image[at..at + 512].iter().all(|&byte| byte == 0), "a neighbour was changed");
        assert!(image[at + 512..at + 2048].iter().all(|&byte| byte == index as u8 + 1));
        assert!(image[at + 2048..at + 4096].iter().all(|&byte| byte == 0), "a neighbour was changed");
    }
}
