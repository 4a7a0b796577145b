//! The server with the programs that people use: libnbd's nbdinfo and nbdcopy, qemu-io, qemu-img
//! and fio.
//!
//! A missing program fails its test: without it the server is not known to work with that program.

mod common;

use std::process::{Output, Stdio};
use std::time::Duration;

use base::buffer::Buffer;
use base::checksum::{Crc32c, crc32c};
use base::random::Random;
use block::device::DeviceExt;
use block::{Geometry, SharedDevice};
use common::{Running, memory, memory_with};
use front::NbdOptions;
use tokio::process::Command;

const MIB: u64 = 1 << 20;

/// Longest a program may take; they take well below a second.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(60);

fn options() -> NbdOptions {
    NbdOptions { export_name: "disk".into(), description: "a test disk".into(), ..NbdOptions::default() }
}

/// Runs a program to its end. Returns its output if it succeeded, and otherwise all its messages.
async fn try_run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let running = Command::new(program).args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    let output: Output = tokio::time::timeout(PROGRAM_TIME_MAX, running)
        .await
        .unwrap_or_else(|_| panic!("{program} {arguments:?} does not end"))
        .unwrap_or_else(|error| panic!("{program} is needed by this test: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(out.into_owned()) } else { Err(format!("{}: {out}{err}", output.status)) }
}

async fn run(program: &str, arguments: &[&str]) -> String {
    try_run(program, arguments).await.unwrap_or_else(|said| panic!("{program} {arguments:?} failed: {said}"))
}

fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Random::new(seed).fill(&mut bytes);
    bytes
}

async fn checksum(device: &SharedDevice, length: usize) -> u32 {
    let mut checksum = Crc32c::new();
    for offset in (0..length).step_by(MIB as usize) {
        let piece = Buffer::zeroed((length - offset).min(MIB as usize));
        checksum.update(&device.read(offset as u64, piece).await.unwrap());
    }
    checksum.finish()
}

/// libnbd refuses less than the smallest announced block, before it asks the server.
#[tokio::test]
async fn nbdfuse_writes_and_reads_any_bytes() {
    let device = memory_with(Geometry { logical_block_bytes: 4096, ..Geometry::plain(MIB) });
    let running = Running::start(device.clone(), options());
    let (uri, path) = (running.address.uri("disk"), running.path("disk.img"));
    std::fs::write(&path, "").unwrap();
    let mut mounted = Command::new("nbdfuse").arg(&path).arg(&uri).stdin(Stdio::null()).kill_on_drop(true).spawn();
    let mounted = mounted.as_mut().expect("nbdfuse is needed by this test");
    let is_mounted = || std::fs::metadata(&path).map_or(0, |found| found.len()) == MIB;
    common::wait_until("nbdfuse mounts the export", is_mounted).await;
    let file = path.clone();
    let written = tokio::task::spawn_blocking(move || {
        use std::os::unix::fs::FileExt;
        let disk = std::fs::File::options().read(true).write(true).open(file)?;
        disk.write_all_at(b"hello", 4094)?;
        let mut read = [0; 7];
        disk.read_exact_at(&mut read, 4093)?;
        Ok::<_, std::io::Error>(read)
    });
    let written = written.await.unwrap();
    run("fusermount3", &["-u", path.to_str().unwrap()]).await;
    mounted.wait().await.unwrap();
    assert_eq!(&written.unwrap(), b"\0hello\0");
    assert_eq!(device.read(0, Buffer::zeroed(8192)).await.unwrap()[4094..4099], *b"hello");
    running.stop().await;
}

#[tokio::test]
async fn nbdinfo_sees_what_is_offered() {
    let running = Running::start(memory(64 * MIB + 512), options());
    let uri = running.address.uri("disk");
    let told = run("nbdinfo", &[&uri]).await;
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export=\"disk\":",
        "description: a test disk",
        "export-size: 67109376",
        "base:allocation",
        "is_read_only: false",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_minimum: 1",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(told.contains(line), "no \"{line}\" in {told}");
    }
    let listed = run("nbdinfo", &["--list", &running.address.uri("")]).await;
    assert!(listed.contains("export=\"disk\":"), "{listed}");
    let map = run("nbdinfo", &["--map", &uri]).await;
    let words: Vec<&str> = map.split_whitespace().collect();
    assert_eq!(words, ["0", "67109376", "3", "hole,zero"]);
    let unknown = try_run("nbdinfo", &[&running.address.uri("other")]).await.unwrap_err();
    assert!(unknown.contains("other"), "{unknown}");
    running.stop().await;
}

#[tokio::test]
async fn qemu_io_writes_reads_discards_and_flushes() {
    for (name, geometry) in [
        ("512-byte blocks", Geometry::plain(16 * MIB)),
        ("odd size", Geometry::plain(16 * MIB + 1536)),
        ("4 KiB blocks", Geometry { logical_block_bytes: 4096, ..Geometry::plain(16 * MIB) }),
        ("small transfers", Geometry { transfer_bytes_max: 32 * 1024, ..Geometry::plain(16 * MIB) }),
    ] {
        let device = memory_with(geometry);
        let running = Running::start(device.clone(), options());
        let uri = running.address.uri("disk");
        let commands = [
            "write -P 0xab 0 64k",
            "read -P 0xab 0 64k",
            "write -f -P 0xcd 1M 2M",
            "read -P 0xcd 1M 2M",
            "discard 0 64k",
            "read -P 0 0 64k",
            "write -z 1M 4k",
            "write -z -u 1028k 4k",
            "read -P 0 1M 8k",
            "read -P 0xcd 1032k 4k",
            "flush",
        ];
        let mut arguments = vec!["-f", "raw"];
        commands.iter().for_each(|command| arguments.extend(["-c", command]));
        arguments.push(&uri);
        let said = run("qemu-io", &arguments).await;
        assert!(!said.contains("failed") && !said.contains("error"), "{name}: {said}");
        let below = device.read(MIB + 8192, Buffer::zeroed(4096)).await.unwrap();
        assert!(below.iter().all(|&byte| byte == 0xcd), "{name}");
        let counters = running.server.counters();
        assert!(counters.flush.requests > 0 && counters.trim.requests > 0 && counters.write_zeroes.requests > 0);
        assert_eq!(counters.protocol_errors, 0);
        running.stop().await;
    }
}

#[tokio::test]
async fn qemu_io_is_refused_writes_to_a_read_only_export() {
    let running = Running::start(memory(MIB), NbdOptions { is_read_only: true, ..options() });
    let uri = running.address.uri("disk");
    run("qemu-io", &["-r", "-f", "raw", "-c", "read -P 0 0 64k", &uri]).await;
    let said = try_run("qemu-io", &["-f", "raw", "-c", "write 0 64k", &uri]).await.unwrap_err();
    assert!(said.contains("Permission denied"), "{said}");
    assert_eq!(running.server.counters().write.requests, 0);
    running.stop().await;
}

#[tokio::test]
async fn qemu_img_converts_in_and_finds_no_difference() {
    let device = memory(8 * MIB);
    let running = Running::start(device.clone(), options());
    let (uri, image) = (running.address.uri("disk"), running.path("in.img"));
    let mut bytes = random_bytes(5, 8 * MIB as usize);
    bytes[MIB as usize..5 * MIB as usize].fill(0);
    std::fs::write(&image, &bytes).unwrap();
    let image = image.to_str().unwrap();
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image, &uri]).await;
    assert_eq!(checksum(&device, bytes.len()).await, crc32c(&bytes));
    let compared = run("qemu-img", &["compare", "-f", "raw", "-F", "raw", image, &uri]).await;
    assert!(compared.contains("identical"), "{compared}");
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]).await;
    assert!(map.contains("\"zero\": true"), "the zeroes are a hole: {map}");
    running.stop().await;
}

#[tokio::test]
async fn nbdcopy_in_and_out_gives_equal_bytes() {
    let device = memory(16 * MIB + 512);
    let running = Running::start(device.clone(), options());
    let (uri, source, target) = (running.address.uri("disk"), running.path("in.img"), running.path("out.img"));
    let mut bytes = random_bytes(6, 16 * MIB as usize + 512);
    bytes[2 * MIB as usize..6 * MIB as usize].fill(0);
    std::fs::write(&source, &bytes).unwrap();
    run("nbdcopy", &["--flush", source.to_str().unwrap(), &uri]).await;
    assert_eq!(checksum(&device, bytes.len()).await, crc32c(&bytes));
    run("nbdcopy", &[&uri, target.to_str().unwrap()]).await;
    assert_eq!(crc32c(&std::fs::read(&target).unwrap()), crc32c(&bytes));
    let counters = running.server.counters();
    assert!(counters.connections_accepted > 2, "nbdcopy uses several connections where it may: {counters:?}");
    assert!(counters.block_status.requests > 0 && counters.write_zeroes.requests > 0, "{counters:?}");
    running.stop().await;
}

#[tokio::test]
async fn fio_verifies_what_it_wrote_at_depth() {
    let running = Running::start(memory(64 * MIB), options());
    let job = [
        "--name=verify".to_owned(),
        "--ioengine=nbd".to_owned(),
        format!("--uri={}", running.address.uri("disk")),
        "--rw=randwrite".to_owned(),
        "--bsrange=512-128k".to_owned(),
        "--iodepth=32".to_owned(),
        "--size=16m".to_owned(),
        "--verify=crc32c".to_owned(),
        // No file of its state in this folder.
        "--verify_state_save=0".to_owned(),
        "--randseed=7".to_owned(),
    ];
    let arguments: Vec<&str> = job.iter().map(String::as_str).collect();
    let said = run("fio", &arguments).await;
    assert!(said.contains("err= 0"), "{said}");
    let counters = running.server.counters();
    assert!(counters.write.bytes >= 16 * MIB && counters.read.bytes >= 16 * MIB, "{counters:?}");
    running.stop().await;
}
