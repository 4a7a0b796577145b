//! The caches: what each needs in a guest, and the shell that makes it, or opens it again.
//!
//! Each gets 64 MiB for data, and room for its metadata, of the same disk. All else is by default,
//! except for this:
//! - bcache sends requests past a cache device it thinks congested, and an emulator's disk always is:
//!   `congested_*_threshold_us` are zero. It takes metadata and a reserve out of its 64 MiB; its buckets are of 64 KiB,
//!   since it wants a thousand of them.
//! - dm-cache's smallest block is 32 KiB.

use tests::IQN;
use tests::guest::HOST;

/// Bytes of the LUN that the requests access.
pub const FOOTPRINT_BYTES: u64 = 256 << 20;

/// Size of the LUN: the footprint, and room for bcache's superblock.
pub const LUN_BYTES: u64 = FOOTPRINT_BYTES + (1 << 20);

/// Where the guest serves its cached device.
pub const PORT: u16 = 3260;

/// The guest's target.
pub const GUEST_IQN: &str = "iqn.2026-11.io.forebay:guest";

/// A cache to be measured.
pub struct Peer {
    /// For the table.
    pub name: &'static str,
    /// Programs of the guest besides `forebay`.
    pub programs: &'static [&'static str],
    /// Its kernel modules.
    pub modules: &'static [&'static str],
    /// The device that the cache makes.
    device: &'static str,
    /// Shell that makes the cache for the first time.
    make: &'static str,
    /// Shell that opens the cache again.
    take_up: &'static str,
    /// A command that prints how much of the cache is dirty.
    pub dirty: &'static str,
}

/// All of them, in the order of the table.
pub const PEERS: &[Peer] = &[
    Peer {
        name: "bcache",
        programs: &["iscsistart", "make-bcache", "dmsetup"],
        modules: &["sd_mod", "crc32c_generic", "iscsi_tcp", "dm_mod", "bcache"],
        device: "/dev/bcache0",
        make: "login; size=$((64 << 11)); part data 0 $size
make-bcache --writeback --block 4k --bucket 64k -C /dev/mapper/data -B /dev/sda >/dev/null; register",
        take_up: "login; part data 0 $((64 << 11)); register",
        dirty: "echo answer: $(cat /sys/block/bcache0/bcache/dirty_data)",
    },
    Peer {
        name: "dm-cache (smq, 32 KiB)",
        programs: &["iscsistart", "dmsetup"],
        modules: &["sd_mod", "crc32c_generic", "iscsi_tcp", "dm_cache", "dm_cache_smq"],
        device: "/dev/mapper/cached",
        make: "login; dm_cache",
        take_up: "login; dm_cache",
        dirty: "echo answer: $(dmsetup status cached)",
    },
    Peer {
        name: "forebay, 4 KiB",
        programs: &["nbd-client"],
        modules: &["nbd"],
        device: "/dev/nbd0",
        make: "attach --cache-size 112MiB --cache-lines 16384",
        take_up: "attach",
        dirty: "echo answer: $($FOREBAY status disk --json | grep dirty_bytes)",
    },
    Peer {
        name: "forebay, 4 KiB, crash mode warm",
        programs: &["nbd-client"],
        modules: &["nbd"],
        device: "/dev/nbd0",
        make: "attach --cache-size 112MiB --cache-lines 16384 --cache-crash warm",
        take_up: "attach",
        dirty: "echo answer: $($FOREBAY status disk --json | grep dirty_bytes)",
    },
    Peer {
        name: "forebay, 32 KiB read whole, crash mode warm",
        programs: &["nbd-client"],
        modules: &["nbd"],
        device: "/dev/nbd0",
        make: "attach --cache-size 112MiB --cache-lines 2048 --cache-block-size 32KiB --cache-crash warm \
               --cache-prefetch-lines",
        take_up: "attach --cache-prefetch-lines",
        dirty: "echo answer: $($FOREBAY status disk --json | grep dirty_bytes)",
    },
];

/// Functions of all scripts.
const LIBRARY: &str = r#"
export DM_DISABLE_UDEV=1 FOREBAY_RUNTIME_DIR=/run/forebay FOREBAY_STATE_DIR=/var/lib/forebay
now() { echo "$1: $(cut -d' ' -f1 /proc/uptime)"; }
until_true() { n=0; until eval "$1"; do n=$((n + 1)); [ $n -lt 1200 ] || { echo "never: $1"; exit 1; }; sleep 0.05; done; }
login() {
  mkdir -p /etc/iscsi /run/lock/iscsi
  iscsistart -i iqn.2026-11.io.forebay:kernel -t $IQN -g 1 -a $HOST -p $LUN_PORT >/dev/null 2>&1
  until_true '[ -b /dev/sda ]'
}
part() { dmsetup create $1 --table "0 $3 linear /dev/vda $2"; }
# The kernel makes a device of a LUN's superblock as soon as the cache's is there, too.
register() {
  echo /dev/mapper/data >/sys/fs/bcache/register || true
  echo /dev/sda >/sys/fs/bcache/register || true
  until_true '[ -b /dev/bcache0 ]'
  for set in /sys/fs/bcache/*-*; do
    echo 0 >$set/congested_read_threshold_us
    echo 0 >$set/congested_write_threshold_us
  done
  echo writeback >/sys/block/bcache0/bcache/cache_mode
}
dm_cache() {
  part metadata 0 8192
  part data 8192 131072
  sectors=$(($(cat /sys/block/sda/size) / 64 * 64))
  dmsetup create cached --table "0 $sectors cache /dev/mapper/metadata /dev/mapper/data /dev/sda 64 1 writeback smq 0"
}
attach() {
  $FOREBAY attach iscsi://$HOST:$LUN_PORT/$IQN/0 --name disk --initiator-name iqn.2026-11.io.forebay:ours \
    --cache /dev/vda --as nbd:unix:/run/disk.nbd "$@" >/run/attach.log 2>&1 &
  until_true 'grep -q "^ready: " /run/attach.log || { kill -0 $! || { cat /run/attach.log; exit 1; }; false; }'
  nbd-client -unix /run/disk.nbd /dev/nbd0 >/run/nbd.log 2>&1 || { cat /run/nbd.log; exit 1; }
}
"#;

/// Once the cache is made: the first read, the target in front, and commands until the guest ends.
const SERVE: &str = r#"
dd if=$DEVICE of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null
now first
$FOREBAY target serve --portal 0.0.0.0:3260 --allow-remote --iqn $GUEST_IQN --lun 0=file:$DEVICE,direct,write-cache >/run/target.log 2>&1 &
until_true 'grep -q "^ready: " /run/target.log || { kill -0 $! || { cat /run/target.log; exit 1; }; false; }'
echo serving
while read -r command; do eval "$command"; done
"#;

impl Peer {
    /// The script of a guest, for a cache that is new or not.
    pub fn script(&self, forebay: &str, lun_port: &str, is_new: bool) -> String {
        let steps = if is_new { self.make } else { self.take_up };
        format!(
            "IQN={IQN} HOST={HOST} LUN_PORT={lun_port} GUEST_IQN={GUEST_IQN} DEVICE={} FOREBAY={forebay}\n\
             {LIBRARY}\nnow begun\n{steps}\n{SERVE}",
            self.device
        )
    }
}
