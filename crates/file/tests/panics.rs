//! A panic in any background work of the blocking engine ends the process, in which a hook sees to that, and hangs nobody.
//!
//! Each is planted in a process of its own: this test program, started again.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::OnceLock;

use block::Buffer;
use block::device::DeviceExt;
use file::{FileDevice, FileOptions};
use rustix::process::Signal;

const VARIABLE: &str = "FOREBAY_TEST_PANIC_IN";
const TEST: &str = "a_panic_in_the_work_of_a_file_ends_the_process";

static PLANTED: OnceLock<String> = OnceLock::new();

#[test]
fn a_panic_in_the_work_of_a_file_ends_the_process() {
    if let Ok(name) = std::env::var(VARIABLE) {
        return use_a_file(name);
    }
    let program = std::env::current_exe().expect("this test has a program");
    for name in ["file-pool", "file-call", "file-workers"] {
        let output = Command::new(&program).args(["--exact", TEST, "--nocapture"]).env(VARIABLE, name).output();
        let output = output.expect("the program is there");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(Signal::ABORT.as_raw()), "{name}: {said}");
        assert!(said.contains(&format!("planted in {name}")), "{said}");
    }
}

/// Whatever the blocking engine does, with a panic planted in one piece of its work.
fn use_a_file(name: String) {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
    PLANTED.set(name).expect("this is the only one");
    base::background::observe(|name| assert!(PLANTED.get().is_none_or(|planted| planted != name), "planted in {name}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(async {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
        let options = FileOptions { size: Some(1 << 20), io_uring: false, ..FileOptions::default() };
        let device = FileDevice::open(folder.path().join("disk"), options).expect("there is room");
        device.write(0, Buffer::copy_of(&[1; 4096]), true).await.expect("there is room");
        device.extents(0, 1 << 20).await.expect("it is a file");
        device.flush().await.expect("it is a file");
    });
}
