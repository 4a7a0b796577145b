//! tgtd, a target of others: it knows neither change marks nor sharing.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{IQN, PATIENCE, World, finish};

/// One with a logical unit of 16 MiB, LUN 1.
pub struct Tgt<'a> {
    world: &'a World,
    port: u16,
    process: Child,
}

impl<'a> Tgt<'a> {
    /// Starts it on a free port of this host.
    ///
    /// # Panics
    /// When it cannot be run, or does not listen.
    pub fn start(world: &'a World) -> Self {
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
        fs::File::create(world.path("tgt.img")).and_then(|file| file.set_len(16 << 20)).expect("there is room");
        let mut command = Command::new("tgtd");
        command.args(["-f", "-C", "1", "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        command.env("TGT_IPC_SOCKET", world.path("tgt")).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("tgtd can be run: tests/tools/install-packages installs it");
        let tgt = Self { world, port, process };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "tgtd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        let file = world.path("tgt.img");
        tgt.administer(&["--mode", "target", "--op", "new", "--tid", "1", "-T", IQN]);
        let unit = ["--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "-b"];
        tgt.administer(&[&unit[..], &[file.to_str().expect("its name is text")]].concat());
        tgt.administer(&["--mode", "target", "--op", "bind", "--tid", "1", "-I", "ALL"]);
        tgt
    }

    fn administer(&self, order: &[&str]) {
        let mut command = Command::new("tgtadm");
        command.env("TGT_IPC_SOCKET", self.world.path("tgt")).args(["-C", "1", "--lld", "iscsi"]).args(order);
        finish(&mut command).success();
    }

    /// The URL of its logical unit.
    pub fn url(&self) -> String {
        format!("iscsi://127.0.0.1:{}/{IQN}/1", self.port)
    }
}

impl Drop for Tgt<'_> {
    fn drop(&mut self) {
        // It may be gone already; there is nobody to tell.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
