//! A panic in any background work of the blocking engine ends the process, by a panic hook, and
//! leaves no request hanging.
//!
//! Each is planted in a process of its own: this test program, started again.

#[expect(dead_code, reason = "other tests use more of it")]
mod loop_device;
mod planted;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use base::range::ByteRange;
use block::Buffer;
use block::device::DeviceExt;
use file::{FileDevice, FileOptions};
use loop_device::{LoopDevice, may_make_devices};
use planted::{DEVICE_WORK, FILE_WORK};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const VARIABLE: &str = "FOREBAY_TEST_PANIC_IN";
/// Variable with the block device, for the process that is started again.
const DEVICE_VARIABLE: &str = "FOREBAY_TEST_PANIC_DEVICE";

static PLANTED: OnceLock<String> = OnceLock::new();

#[test]
fn a_panic_in_the_work_of_a_file_ends_the_process() {
    if let Ok(name) = std::env::var(VARIABLE) {
        return use_a_file(name);
    }
    for name in FILE_WORK {
        ends_the_process("a_panic_in_the_work_of_a_file_ends_the_process", name, Path::new(""));
    }
}

/// A holder of a part of a block device tries again and again to become its keeper, in background
/// work.
#[test]
fn a_panic_of_who_waits_to_keep_a_block_device_ends_the_process() {
    if let Ok(name) = std::env::var(VARIABLE) {
        let path = std::env::var(DEVICE_VARIABLE).expect("it is set beside the other one");
        return wait_for_a_device(name, path.into());
    }
    if may_make_devices() {
        let folder = folder();
        let device = LoopDevice::new(&folder.path().join("backing"), 1 << 20, 512);
        ends_the_process("a_panic_of_who_waits_to_keep_a_block_device_ends_the_process", DEVICE_WORK, &device.path);
    }
}

/// Starts `test` of this program again, with a panic planted in the work `name`, and expects the
/// process to abort by it.
fn ends_the_process(test: &str, name: &str, device: &Path) {
    let program = std::env::current_exe().expect("this test has a program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture"]).env(VARIABLE, name).env(DEVICE_VARIABLE, device);
    let output = command.output().expect("the program is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(Signal::ABORT.as_raw()), "{name}: {said}");
    assert!(said.contains(&format!("planted in {name}")), "{said}");
}

/// Plants a panic in the work `name`, as the program does. Returns a runtime.
fn plant(name: String) -> Runtime {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
    PLANTED.set(name).expect("this is the only one");
    base::background::observe(|name| assert!(PLANTED.get().is_none_or(|planted| planted != name), "planted in {name}"));
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts")
}

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable")
}

/// Uses everything that the blocking engine does, with a panic planted in the work `name`.
fn use_a_file(name: String) {
    plant(name).block_on(async {
        let folder = folder();
        let options = FileOptions { size: Some(1 << 20), io_uring: false, ..FileOptions::default() };
        let device = FileDevice::open(folder.path().join("disk"), options).expect("there is room");
        device.write(0, Buffer::copy_of(&[1; 4096]), true).await.expect("there is room");
        device.extents(0, 1 << 20).await.expect("it is a file");
        device.flush().await.expect("it is a file");
    });
}

/// Two parts of a block device: the holder of the second waits until the keeper goes.
fn wait_for_a_device(name: String, path: PathBuf) {
    plant(name).block_on(async {
        let part = |offset| {
            let part = ByteRange::new(offset, 64 << 10);
            FileOptions { exclusive: true, part, ..FileOptions::default() }
        };
        let keeping = FileDevice::open(&path, part(0)).expect("nobody has it");
        let waiting = FileDevice::open(&path, part(64 << 10)).expect("nobody has this part");
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        drop((keeping, waiting));
    });
}
