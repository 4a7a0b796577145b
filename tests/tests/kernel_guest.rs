//! Linux 6.12's own iSCSI initiator in front of `forebay target serve`: what the kernel learns of a disk, a file system
//! made, written, read again and checked, space given back, a target that is killed in the middle, and a cache of ours
//! that was away while the kernel wrote.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tests::guest::{Guest, HOST, Transcript};
use tests::{IQN, Process, World, tool};

const INITIATOR: &str = "iqn.2026-11.io.forebay:guest";

/// Functions of all scripts here.
const LIBRARY: &str = r#"
# Waits until a condition holds, for half a minute.
until_true() { n=0; until eval "$1"; do n=$((n + 1)); [ $n -lt 300 ] || { echo "never: $1"; exit 1; }; sleep 0.1; done; }
# Files with content that says where it belongs, and their checksums.
fill() { for i in 1 2 3 4; do seq $((i * 1000000)) $((i * 1000000 + 99999)) >"/mnt/$1.$i"; done; (cd /mnt; sha256sum "$1".*) >"/tmp/$1.sums"; }
forget() { echo 3 >/proc/sys/vm/drop_caches; }
verify() { (cd /mnt; sha256sum -c "/tmp/$1.sums" >/dev/null); echo "verified: $1"; }
"#;

/// A guest that can log in and make a file system.
fn guest() -> Guest {
    Guest::new().with_programs(&["iscsistart", "mkfs.ext4", "e2fsck"]).with_modules(&[
        "sd_mod",
        "crc32c_generic",
        "iscsi_tcp",
        "ext4",
    ])
}

/// The script's first lines: the library, and a login by `iscsistart` with these further arguments.
fn login(portal: &str, arguments: &str) -> String {
    let (_, port) = portal.rsplit_once(':').expect("a portal has a port");
    format!(
        "{LIBRARY}\nmkdir -p /etc/iscsi /run/lock/iscsi\n\
         iscsistart -i {INITIATOR} -t {IQN} -g 1 -a {HOST} -p {port} {arguments}\n\
         until_true '[ -b /dev/sda ]'\n"
    )
}

/// What no healthy run makes the kernel say.
fn assert_quiet(kernel_log: &str) {
    for bad in ["I/O error", "EXT4-fs error", "BUG:", "WARNING:", "critical", "timed out", "conn error"] {
        assert!(!kernel_log.contains(bad), "\"{bad}\" in:\n{kernel_log}");
    }
}

/// Bytes that a file takes on its disk.
fn allocated_bytes(path: &Path) -> u64 {
    fs::metadata(path).expect("the file is there").blocks() * 512
}

#[test]
fn a_kernel_makes_a_file_system_and_gives_space_back() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=256MiB"]);
    let inquiry = world.run(["inquiry", "--json", &target.url(0)]).json();
    let script = login(target.portal(), "")
        + r#"
cd /sys/block/sda
echo "sectors: $(cat size)"
for name in logical_block_size physical_block_size discard_granularity discard_max_bytes write_cache; do
  echo "$name: $(cat queue/$name)"
done
for name in vendor model wwid; do echo "$name: $(cat device/$name)"; done
for page in 80 83 b0 b1 b2; do echo "page $page: $(hexdump -ve '1/1 "%02x"' device/vpd_pg$page)"; done
cd /sys/class/iscsi_session/session1
for name in initial_r2t immediate_data first_burst_len max_burst_len erl; do echo "$name: $(cat $name)"; done
cd /
mkfs.ext4 -q -F /dev/sda
mount -t ext4 -o discard /dev/sda /mnt
fill kept
fill given_back
dd if=/dev/zero of=/mnt/ballast bs=1M count=48 conv=fsync 2>/dev/null
umount /mnt; forget
mount -t ext4 -o discard /dev/sda /mnt
verify kept
verify given_back
echo "full"; read -r reply
rm /mnt/given_back.* /mnt/ballast
sync
fstrim /mnt
umount /mnt; forget
echo "trimmed"; read -r reply
mount -t ext4 /dev/sda /mnt
verify kept
umount /mnt
e2fsck -f -n /dev/sda
echo "checked: $?"
blkdiscard /dev/sda
forget
[ "$(head -c 16777216 /dev/sda | sha256sum)" = "$(head -c 16777216 /dev/zero | sha256sum)" ]
"#;
    let mut guest = guest().boot(&script);
    guest.wait_for("full");
    let disk = world.path("disk.img");
    let full = allocated_bytes(&disk);
    guest.answer("go on");
    guest.wait_for("trimmed");
    let trimmed = allocated_bytes(&disk);
    guest.answer("go on");
    let transcript = guest.finish();
    assert!(full > 48 << 20, "{full} bytes with ballast");
    assert!(trimmed < full - (48 << 20), "{trimmed} bytes after, {full} before");
    assert!(allocated_bytes(&disk) < 1 << 20, "everything was discarded");
    assert_knows_the_disk(&transcript, &inquiry);
    assert_quiet(&transcript.kernel_log);
}

/// What the kernel made of INQUIRY, the VPD pages and the negotiation.
fn assert_knows_the_disk(transcript: &Transcript, inquiry: &serde_json::Value) {
    let text = |key: &str| inquiry[key].as_str().expect("it is a string").to_owned();
    let serial = text("serial");
    let hex: String = serial.bytes().map(|byte| format!("{byte:02x}")).collect();
    let unit = text("unit");
    assert_eq!(transcript.value("sectors"), (256 * 2048).to_string());
    assert_eq!(transcript.value("vendor"), "FOREBAY");
    assert_eq!(transcript.value("page 80"), format!("00800020{hex}"));
    assert!(transcript.value("page 83").contains(unit.trim_start_matches("naa.")), "{unit} is missing");
    assert!(transcript.value("wwid").ends_with(&serial));
    for (key, value) in [
        ("logical_block_size", inquiry["logical_block_bytes"].to_string()),
        ("physical_block_size", inquiry["physical_block_bytes"].to_string()),
        ("discard_granularity", inquiry["discard_granularity_bytes"].to_string()),
        ("write_cache", "write through".to_owned()),
        ("initial_r2t", "0".to_owned()),
        ("immediate_data", "1".to_owned()),
        ("erl", "0".to_owned()),
    ] {
        assert_eq!(transcript.value(key), value, "{key}");
    }
    for (page, length) in [("page b0", 0x3c), ("page b1", 0x3c), ("page b2", 4)] {
        let bytes = transcript.value(page);
        assert!(bytes.starts_with(&format!("00{}{length:04x}", &page[5..])), "{page}: {bytes}");
    }
}

#[test]
fn a_kernel_logs_in_with_chap_and_digests() {
    let world = World::new();
    let secret = "a-secret-of-19-bytes";
    fs::write(world.path("secret"), secret).expect("the world is ours");
    let target = world.target(["--lun", "0=ram:128MiB", "--chap-user", "alice", "--chap-file", "secret"]);
    let digests = "-P node.conn[0].iscsi.HeaderDigest=CRC32C -P node.conn[0].iscsi.DataDigest=CRC32C";
    let script = login(target.portal(), &format!("-u alice -w {secret} {digests}"))
        + r#"
cd /sys/class/iscsi_connection/connection1:0
echo "digests: $(cat header_digest) $(cat data_digest)"
echo "user: $(cat /sys/class/iscsi_session/session1/username)"
cd /
mkfs.ext4 -q -F /dev/sda
mount -t ext4 /dev/sda /mnt
fill digested
umount /mnt; forget
mount -t ext4 /dev/sda /mnt
verify digested
umount /mnt
e2fsck -f -n /dev/sda
"#;
    let transcript = guest().boot(&script).finish();
    assert_eq!(transcript.value("digests"), "1 1");
    assert_eq!(transcript.value("user"), "alice");
    assert_eq!(transcript.value("verified"), "digested");
    assert_quiet(&transcript.kernel_log);
}

/// The initiator asks the target for its proof, too, and takes no other.
#[test]
fn a_kernel_proves_and_is_proved_to() {
    let world = World::new();
    let (secret, own) = ("a-secret-of-19-bytes", "the-targets-own-words");
    fs::write(world.path("secret"), secret).expect("the world is ours");
    fs::write(world.path("own"), own).expect("the world is ours");
    let chap =
        ["--chap-user", "alice", "--chap-file", "secret", "--mutual-chap-user", "disks", "--mutual-chap-file", "own"];
    let target = world.target(["--lun", "0=ram:64MiB"].into_iter().chain(chap));
    let portal = target.portal().to_owned();
    let (_, port) = portal.rsplit_once(':').expect("a portal has a port");
    let wrong = format!(
        "mkdir -p /etc/iscsi /run/lock/iscsi\n\
         if iscsistart -i {INITIATOR} -t {IQN} -g 1 -a {HOST} -p {port} -u alice -w {secret} -U disks -W \
         some-other-words\n\
         then echo 'impostor: taken'; else echo 'impostor: refused'; fi\n[ ! -b /dev/sda ]\n"
    );
    let right = login(&portal, &format!("-u alice -w {secret} -U disks -W {own}"))
        + r#"
cd /sys/class/iscsi_session
echo "users: $(cat */username) $(cat */username_in)"
cd /
seq 1 100000 | dd of=/dev/sda bs=64k conv=fsync 2>/dev/null
forget
echo "sum: $(head -c 65536 /dev/sda | sha256sum)"
echo "expected: $(seq 1 100000 | head -c 65536 | sha256sum)"
"#;
    let transcript = guest().boot(&(wrong + &right)).finish();
    assert_eq!(transcript.value("impostor"), "refused");
    assert_eq!(transcript.value("users"), "alice disks");
    assert_eq!(transcript.value("sum"), transcript.value("expected"));
    assert_quiet(&transcript.kernel_log);
}

#[test]
fn a_target_that_is_killed_and_comes_back_larger_loses_nothing() {
    let world = World::new();
    let mut target = world.target(["--lun", "0=file:disk.img,size=256MiB"]);
    let portal = target.portal().to_owned();
    let script = format!("{LIBRARY}\nPORTAL={HOST}:{} IQN={IQN}\n", portal.rsplit_once(':').expect("a portal").1)
        + r#"
mkdir -p /run/lock/iscsi
iscsid
iscsiadm -m node -T $IQN -p $PORTAL,1 -o new
iscsiadm -m node -T $IQN -p $PORTAL,1 --login
until_true '[ -b /dev/sda ]'
mkfs.ext4 -q -F /dev/sda
mount -t ext4 /dev/sda /mnt
seq 1 200000 >/tmp/pattern
echo 0 >/tmp/count
(
  i=0
  while [ ! -e /tmp/enough ]; do
    i=$((i + 1))
    dd if=/tmp/pattern of=/mnt/$((i % 64)) bs=64k conv=fsync 2>/dev/null
    echo $i >/tmp/count.new
    mv /tmp/count.new /tmp/count
  done
) &
writer=$!
until_true '[ "$(cat /tmp/count)" -ge 3 ]'
echo "writing"; read -r reply
before=$(cat /tmp/count)
until_true '[ "$(cat /tmp/count)" -ge $((before + 3)) ]'
touch /tmp/enough
wait $writer
umount /mnt; forget
mount -t ext4 /dev/sda /mnt
for file in /mnt/[0-9]*; do cmp $file /tmp/pattern; done
echo "files: $(ls /mnt | grep -c '^[0-9]')"
umount /mnt
e2fsck -f -n /dev/sda
echo "before: $(cat /sys/block/sda/size)"
iscsiadm -m session --rescan
until_true '[ $(cat /sys/block/sda/size) -gt 524288 ]'
echo "after: $(cat /sys/block/sda/size)"
mount -t ext4 /dev/sda /mnt
resize2fs /dev/sda
echo "file system: $(df -k /mnt | tail -n 1 | awk '{ print $2 }')"
umount /mnt
e2fsck -f -n /dev/sda
iscsiadm -m node --logout
"#;
    let mut guest = guest()
        .with_programs(&["iscsid", "iscsiadm", "resize2fs"])
        .with_file("/etc/iscsi/initiatorname.iscsi", &format!("InitiatorName={INITIATOR}\n"))
        .with_file("/etc/iscsi/iscsid.conf", "node.session.timeo.replacement_timeout = 120\n")
        .boot(&script);
    guest.wait_for("writing");
    target.process.kill();
    fs::OpenOptions::new()
        .write(true)
        .open(world.path("disk.img"))
        .and_then(|disk| disk.set_len(384 << 20))
        .expect("the disk is there");
    let _again = world.start(["target", "serve", "--portal", &portal, "--iqn", IQN, "--lun", "0=file:disk.img"]);
    guest.answer("go on");
    let transcript = guest.finish();
    let number = |key: &str| transcript.value(key).parse::<u32>().expect("it is a number");
    assert!(number("files") >= 6, "three before and three after");
    assert!(number("file system") > 320 << 10, "KiB, of 384 MiB");
    assert_eq!(transcript.value("before"), (256 * 2048).to_string());
    assert_eq!(transcript.value("after"), (384 * 2048).to_string());
    for bad in ["I/O error", "EXT4-fs error", "BUG:"] {
        assert!(!transcript.kernel_log.contains(bad), "\"{bad}\" in:\n{}", transcript.kernel_log);
    }
}

/// The files of an ext4 file system, each with its checksum: of a copy of the whole disk, read through the attachment.
fn files_through(world: &World, uri: &str) -> Vec<(String, String)> {
    let (copy, files) = (world.path("copy"), world.path("files"));
    let (from, to) = (format!("if={uri}"), format!("of={}", copy.display()));
    tool("qemu-img", ["dd", "-f", "raw", "-O", "raw", "bs=1M", &from, &to]);
    tool("e2fsck", ["-fn", copy.to_str().expect("paths of tests are text")]);
    // Left behind by the last time.
    let _ = fs::remove_dir_all(&files);
    fs::create_dir(&files).expect("the world is ours");
    tool("debugfs", ["-R", &format!("rdump / {}", files.display()), copy.to_str().expect("paths of tests are text")]);
    sums_in(&files)
}

/// Every file below `directory`, with its checksum, as the guest's `sha256sum` names them.
fn sums_in(directory: &Path) -> Vec<(String, String)> {
    let script = format!("cd {} && find . -type f | sort | xargs sha256sum", directory.display());
    sums(tool("sh", ["-c", &script]).lines())
}

fn sums<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    let mut sums: Vec<_> =
        lines.filter_map(|line| line.split_once("  ")).map(|(sum, name)| (name.to_owned(), sum.to_owned())).collect();
    sums.sort();
    sums
}

/// A cache that had read all of an ext4 file system comes back after a kernel has mounted and changed it. No line of
/// what the kernel wrote is served, metadata or data; what it did not touch still is.
#[test]
fn a_cache_that_was_away_while_a_kernel_wrote_serves_nothing_that_is_old() {
    const DISK_MIB: u64 = 64;
    let world = World::new();
    let target = world.target(["--lun", &format!("0=file:disk.img,size={DISK_MIB}MiB")]);
    let cache = ["--cache", "disk.cache", "--cache-size", "96MiB"];
    let attach = || world.start([&["attach", &target.url(0), "--name", "disk"], &cache[..]].concat());
    let detach = |disk: Process| {
        world.run(["detach", "disk"]).success();
        disk.wait().success();
    };
    let made = world.path("made");
    fs::create_dir(&made).expect("the world is ours");
    for file in 0..12 {
        let line = format!("file {file} as it was made\n");
        fs::write(made.join(format!("file.{file}")), line.repeat(40_000)).expect("the world is ours");
    }
    let image = world.path("image").display().to_string();
    tool(
        "mkfs.ext4",
        ["-q", "-F", "-d", made.to_str().expect("paths of tests are text"), &image, &format!("{DISK_MIB}m")],
    );

    let disk = attach();
    tool("qemu-img", ["convert", "-n", "-f", "raw", "-O", "raw", &image, &disk.ready]);
    let before = files_through(&world, &disk.ready);
    assert_eq!(before, sums_in(&made));
    detach(disk);

    let known: String = before.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
    let script = login(target.portal(), "")
        + r#"
mount -t ext4 /dev/sda /mnt
(cd /mnt; sha256sum -c /known >/dev/null)
# In place, longer, gone, new, and moved.
seq 1000000 1020000 | dd of=/mnt/file.1 bs=4k conv=notrunc 2>/dev/null
seq 2000000 2050000 >>/mnt/file.3
rm /mnt/file.5
mkdir /mnt/new
for i in 1 2 3; do seq $((i * 1000000)) $((i * 1000000 + 99999)) >/mnt/new/$i; done
mv /mnt/file.7 /mnt/new/moved
sync
cd /mnt; find . -type f | xargs sha256sum; cd /
umount /mnt
"#;
    let transcript = guest().with_file("/known", &known).boot(&script).finish();
    let after = sums(transcript.lines.iter().map(String::as_str));
    assert!(after.len() == 14 && after != before, "{after:#?}");
    assert_quiet(&transcript.kernel_log);

    let disk = attach();
    assert_eq!(files_through(&world, &disk.ready), after, "a file is not what the kernel left");
    let status = world.status("disk");
    detach(disk);
    let copy = fs::read(world.path("copy")).expect("it was made");
    assert!(copy == fs::read(world.path("disk.img")).expect("it is served"), "a block is not what the LUN has");
    // It was not thrown away altogether: that would have been easy.
    let freshness = &status["freshness"]["cache"];
    assert_eq!(freshness["state"], "partly", "{freshness}");
    let others = freshness["changed_by_others_bytes"].as_u64().expect("a number");
    assert!((1 << 20..DISK_MIB << 20).contains(&others), "{freshness}");
    assert!(status["cache"]["reads"]["hits"].as_u64() > Some(0), "{}", status["cache"]["reads"]);
}
