//! `attach --as nbd:/dev/nbdN`: a disk of the kernel's own NBD client, in a guest whose kernel has one.

use std::fs;

use tests::guest::{Guest, HOST};
use tests::{IQN, World, forebay_binary};

/// Functions of the scripts here.
const LIBRARY: &str = r#"
until_true() { n=0; until eval "$1"; do n=$((n + 1)); [ $n -lt 1200 ] || { echo "never: $1"; cat /tmp/log; exit 1; }; sleep 0.1; done; }
export FOREBAY_RUNTIME_DIR=/run/forebay FOREBAY_STATE_DIR=/forebay
mkdir -p /run
# Sectors of the disk, after a read: the target tells of a new size with the answer to a command.
size() { dd if=/dev/nbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null; cat /sys/block/nbd0/size; }
# Writes that the disk has ended.
written() { awk '{ print $5 }' /sys/block/nbd0/stat; }
# $1: where to offer it
attach() { rm -f /tmp/log; "$FOREBAY" attach "$URL" --name disk --as "$1" >/tmp/log 2>&1 & pid=$!; until_true 'grep -q ready: /tmp/log'; echo "$(cat /tmp/log)"; }
"#;

fn script(portal: &str, steps: &str) -> String {
    let (_, port) = portal.rsplit_once(':').expect("a portal has a port");
    let forebay = forebay_binary().display();
    format!("FOREBAY={forebay}\nURL=iscsi://{HOST}:{port}/{IQN}/0\n{LIBRARY}\n{steps}")
}

#[test]
fn the_kernels_disk_goes_on_over_a_kill_and_grows_with_the_lun() {
    let world = World::new();
    let config = |size: &str| {
        let luns = format!("luns = [\"0=file:disk.img,size={size}\"]");
        let text = format!("portals = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"{IQN}\"\n{luns}\n");
        fs::write(world.path("target.toml"), text).unwrap();
    };
    config("64MiB");
    let target = world.start(["target", "serve", "--config", "target.toml", "--name", "target"]);
    let steps = r#"
attach nbd:/dev/nbd0
echo "sectors: $(cat /sys/block/nbd0/size)"
echo "cache: $(cat /sys/block/nbd0/queue/write_cache)"
seq 1000000 3200000 | head -c 16777216 >/tmp/data
dd if=/tmp/data of=/dev/nbd0 bs=64k oflag=direct conv=fsync 2>/dev/null & writer=$!
until_true '[ "$(written)" -gt 5 ]'
kill -9 $pid
attach nbd:/dev/nbd0
wait $writer
echo 3 >/proc/sys/vm/drop_caches
[ "$(head -c "$(wc -c </tmp/data)" /dev/nbd0 | sha256sum)" = "$(sha256sum </tmp/data)" ]
echo "survived"
echo "grow"; read -r reply
until_true '[ "$(size)" = 196608 ]'
dd if=/tmp/data of=/dev/nbd0 bs=1M seek=80 conv=fsync 2>/dev/null
"$FOREBAY" detach disk >/dev/null 2>&1
wait $pid
[ ! -e /sys/block/nbd0/pid ]
echo "given back"
attach auto
"$FOREBAY" detach disk >/dev/null 2>&1
wait $pid
"#;
    let mut guest = Guest::new()
        .with_programs(&[&forebay_binary().display().to_string()])
        .with_modules(&["nbd"])
        .with_memory_mib(1536)
        .boot(&script(&target.ready, steps));
    guest.wait_for("survived");
    guest.wait_for("grow");
    config("96MiB");
    world.run(["target", "reload"]).success();
    guest.answer("go on");
    guest.wait_for("given back");
    let transcript = guest.finish();
    assert_eq!(transcript.value("sectors"), (64 * 2048).to_string());
    assert_eq!(transcript.value("cache"), "write back");
    let ready: Vec<_> = transcript.lines.iter().filter(|line| line.contains("ready: ")).collect();
    assert!(ready.iter().all(|line| line.ends_with("/dev/nbd0")), "auto takes the kernel's disk, too: {ready:?}");
    for bad in ["I/O error", "BUG:", "WARNING:"] {
        assert!(!transcript.kernel_log.contains(bad), "\"{bad}\" in:\n{}", transcript.kernel_log);
    }
    let image = fs::read(world.path("disk.img")).unwrap();
    assert!(image.starts_with(b"1000000\n1000001\n") && image[80 << 20..].starts_with(b"1000000\n1000001\n"));
}

#[test]
fn a_kernel_without_an_nbd_client_is_said_to_be_one() {
    if std::path::Path::new("/sys/module/nbd").exists() {
        return println!("skipped: this kernel has an NBD client");
    }
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let words = ["/dev/nbd0", "modprobe nbd"];
    world.run(["attach", &target.url(0), "--name", "disk", "--as", "nbd:/dev/nbd0"]).failure(2, &words);
    world.run(["attach", &target.url(0), "--name", "disk", "--as", "nbd:/dev/sda"]).failure(2, &["/dev/sda"]);
    // The best that is left.
    let disk = world.start(["attach", &target.url(0), "--name", "disk", "--as", "auto"]);
    let status = world.status("disk");
    assert!(["fuse", "nbd"].contains(&status["fronts"][0]["kind"].as_str().unwrap()), "{status}");
    disk.terminate().success();
}
