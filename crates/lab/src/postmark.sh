#!/usr/bin/env bash
# Real PostMark (Debian's package) on ext2 mounted `-o sync`, plainly over iSCSI and through the write log, in one run: paper 000, figure 4.
# postmark.sh [FILES:TRANSACTIONS[:BLOCK]]...  (1000:50000 and 20000:100000; BLOCK bytes are read and written at once, past the C library's buffer)
#
#   postmark, in a memory cgroup of 128 MB ─► ext2 -o sync ─► loop device ─► nbdfuse ─► attach [--log] ─► iSCSI ─► LUN in RAM, like a disk
#
# Disk and link are the demo's, SCALE times faster (10), so that it ends in minutes. Needs root, for mount, losetup and the cgroup.
# Environment: FOREBAY_BIN; FOLDER for the log; FILE_BYTES, sizes of files ("512 4096"); LOG_OPTIONS for more options of `attach --log`; LOG_SIZE;
# SYSTEMS ("plain log"). A line "result: SYSTEM FILES TRANSACTIONS BLOCK MILLISECONDS RATE" ends each run: all of it, and transactions a second.
set -euo pipefail
forebay=${FOREBAY_BIN:?the program to measure}
folder=${FOLDER:?a folder for the log, on the disk to be measured}
scale=${SCALE:-10} systems=${SYSTEMS:-plain log} file_bytes=${FILE_BYTES:-512 4096}
read -ra log_options <<<"${LOG_OPTIONS:-}"
[ $# -gt 0 ] || set -- 1000:50000 20000:100000

[ "$(id -u)" = 0 ] || { echo "PostMark on a LUN needs root, for mount, losetup and a memory cgroup" >&2; exit 1; }
PATH=$PATH:/usr/sbin:/sbin
missing=()
for entry in postmark:postmark nbdfuse:libnbd-bin fusermount3:fuse3 losetup:mount mkfs.ext2:e2fsprogs; do
  command -v "${entry%%:*}" >/dev/null || missing+=("${entry##*:}")
done
[ ${#missing[@]} = 0 ] || { echo "PostMark on a LUN needs these packages: ${missing[*]}" >&2; exit 1; }

mkdir -p "$folder"
stage=$(mktemp -d)
export FOREBAY_RUNTIME_DIR=$stage/run FOREBAY_STATE_DIR=$stage/state
started=() loop=
unmount() {
  ! mountpoint -q "$stage/files" || umount "$stage/files"
  [ -z "$loop" ] || losetup --detach "$loop"
  loop=
  # The loop device is gone only once nobody has it open, some daemon that looks at new disks among them.
  local tries=100
  while mountpoint -q "$stage/export" && ! fusermount3 -u "$stage/export"; do
    ((tries--)) || return 1
    sleep 0.1
  done
}
finish() {
  unmount || true
  for id in "${started[@]}"; do kill "$id" 2>/dev/null || true; done
  wait
  [ -z "${group:-}" ] || rmdir "$group"
  rm -rf "$stage" "$folder/log"
}
trap finish EXIT
mkdir "$stage/export" "$stage/files"

# The cgroup, in whichever version the system has the memory controller.
if [ -d /sys/fs/cgroup/memory ]; then
  group=/sys/fs/cgroup/memory/forebay-postmark.$$ limit=memory.limit_in_bytes
else
  group=/sys/fs/cgroup/forebay-postmark.$$ limit=memory.max
fi
mkdir "$group"
echo $((128 << 20)) >"$group/$limit"

iqn=iqn.2026-11.io.forebay:postmark
microseconds() { echo "$(($1 / scale))us"; }
disk=disk=7200rpm,seek=$(microseconds 8500),rotation=$(microseconds 4170),transfer=$((20 * scale))MB/s
"$forebay" target serve --portal 127.0.0.1:0 --iqn $iqn --lun "0=ram:1GiB,$disk" --name target >"$stage/target.log" & started+=($!)
until grep -q '^ready: ' "$stage/target.log"; do kill -0 "${started[-1]}"; sleep 0.02; done
url=iscsi://$(sed -n 's/^ready: //p' "$stage/target.log")/$iqn/0
echo "disk: $disk; link: $(microseconds 1000) round trip${log_options:+; attach }${log_options[*]}"

# milliseconds COMMAND...: runs it, prints how long it took.
milliseconds() {
  local began; began=$(date +%s%N)
  "$@" >"$stage/out" 2>&1 || { cat "$stage/out" >&2; return 1; }
  echo $((($(date +%s%N) - began) / 1000000))
}

postmark_in_group() { # FILES TRANSACTIONS [BLOCK]
  {
    printf '%s\n' "set location $stage/files" "set number $1" "set transactions $2" "set size $file_bytes" "set report verbose"
    [ -z "${3:-}" ] || printf '%s\n' "set read $3" "set write $3" "set buffering false"
    printf '%s\n' run quit
  } >"$stage/postmark.cfg"
  # Any group's own processes count, so this shell of its own enters first.
  bash -c "echo \$\$ >$group/cgroup.procs && exec postmark $stage/postmark.cfg" | tee "$stage/postmark.out"
  grep -q 'seconds of transactions' "$stage/postmark.out"
}

run_system() { # SYSTEM FILES TRANSACTIONS [BLOCK]
  local options=() block=${4:-}
  : >"$stage/attach.log"
  [ "$1" = plain ] || options=(--log "$folder/log" --log-size "${LOG_SIZE:-256MiB}" "${log_options[@]}")
  # The file system is made at full speed, and is new for each.
  "$forebay" set target lun.0.disk=off >/dev/null
  "$forebay" attach "$url" --name disk --as "nbd:unix:$stage/nbd" --link-round-trip "$(microseconds 1000)" "${options[@]}" \
    >"$stage/attach.log" & started+=($!)
  local attached=$!
  until grep -q '^ready: ' "$stage/attach.log"; do kill -0 $attached; sleep 0.02; done
  nbdfuse "$stage/export" "nbd+unix:///?socket=$stage/nbd" & started+=($!)
  until [ -e "$stage/export/nbd" ]; do kill -0 "${started[-1]}"; sleep 0.02; done
  loop=$(losetup --find --show "$stage/export/nbd")
  mkfs.ext2 -q -F "$loop"
  mount -t ext2 -o sync "$loop" "$stage/files"
  "$forebay" clean disk >/dev/null 2>&1 || true
  "$forebay" set target lun.0.disk=on >/dev/null
  local taken; taken=$(milliseconds postmark_in_group "$2" "$3" "$block")
  sed -n '/^Time:/,$p' "$stage/postmark.out"
  "$forebay" status disk --json |
    sed -n '/"log": {/,$ s/^ *"\(records\|written_bytes\|superseded_bytes\|dirty_bytes\|destaged_bytes\|destage_writes\|writes_slowed\)": \(.*\),/log \1: \2/p'
  unmount
  local rest; rest=$(milliseconds "$forebay" detach disk)
  wait $attached
  rm -f "$folder/log"
  echo "$1, $2 files, $3 transactions${block:+, blocks of $block bytes}: $taken ms, then $rest ms until the LUN had all"
  local rate; rate=$(sed -n 's/.*seconds of transactions (\([0-9]*\) per second).*/\1/p' "$stage/postmark.out")
  echo "result: $1 $2 $3 ${block:-0} $taken $rate"
  echo "$taken" >"$stage/$1.ms"
}

for load in "$@"; do
  IFS=: read -r files transactions block <<<"$load"
  for system in $systems; do run_system "$system" "$files" "$transactions" "$block"; done
  [ "$systems" != "plain log" ] || awk -v load="$load" '{ ms[NR] = $1 }
    END { printf "%s: plain %.1f s, log %.1f s: %.2f x as fast\n", load, ms[1] / 1000, ms[2] / 1000, ms[1] / ms[2] }' \
    "$stage/plain.ms" "$stage/log.ms"
done
