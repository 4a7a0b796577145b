//! What several hosts read and wrote on one LUN, and whether it was always the newest: the history of each block has to
//! be that of one register ([`check`]).
//!
//! Each write has a content of its own, so that who reads a block knows which write it saw.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use block::device::DeviceExt;
use block::{Buffer, SharedDevice};

use crate::{PATIENCE, finish};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 4096;

/// The host that is `qemu-io`, which knows of no others.
pub const STOCK: u64 = 9;

/// One read or write of one block.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Whose it is.
    pub host: u64,
    /// Which block.
    pub block: u64,
    /// Else it reads.
    pub is_write: bool,
    /// What was written or found: who wrote it in the high half, zero for nobody.
    pub value: u64,
    /// Before it was asked for.
    pub began: Instant,
    /// None for a write of which nobody knows whether it was carried out.
    pub ended: Option<Instant>,
}

/// A block, and where on the LUN it is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its number.
    pub block: u64,
    /// In bytes.
    pub offset: u64,
}

/// All that was done. Clones are the same.
#[derive(Clone, Default)]
pub struct History {
    operations: Arc<Mutex<Vec<Operation>>>,
    last_value: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl History {
    /// Whether nothing more is to be done.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Nothing more is to be done.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Waits until each of these hosts was told that a write is done which it began after `since`. Blocks its thread.
    ///
    /// # Panics
    /// When that takes longer than any machine is slow.
    pub fn until_all_wrote(&self, hosts: &[u64], since: Instant) {
        let deadline = Instant::now() + PATIENCE;
        let has_written = |&host: &u64| {
            let is_its = |done: &Operation| done.is_write && done.host == host && done.began > since;
            self.lock().iter().any(|done| is_its(done) && done.ended.is_some())
        };
        while !hosts.iter().all(has_written) {
            assert!(Instant::now() < deadline, "not all of {hosts:?} go on writing");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// All operations, as they ended.
    pub fn all(&self) -> Vec<Operation> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Operation>> {
        self.operations.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn next_value(&self, host: u64) -> u64 {
        host << 32 | (self.last_value.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Writes a block. Whether it succeeded.
    pub async fn write(&self, device: &SharedDevice, host: u64, Place { block, offset }: Place) -> bool {
        let (began, value) = (Instant::now(), self.next_value(host));
        let is_done = device.write(offset, Buffer::copy_of(&content(value)), false).await.is_ok();
        let ended = is_done.then(Instant::now);
        self.lock().push(Operation { host, block, is_write: true, value, began, ended });
        is_done
    }

    /// Reads a block. Whether it succeeded.
    ///
    /// # Panics
    /// When it is not one write's as a whole.
    pub async fn read(&self, device: &SharedDevice, host: u64, Place { block, offset }: Place) -> bool {
        let began = Instant::now();
        let result = device.read(offset, Buffer::zeroed(BLOCK_BYTES as usize)).await;
        if let Ok(bytes) = &result {
            let (value, ended) = (value_of(bytes), Some(Instant::now()));
            self.lock().push(Operation { host, block, is_write: false, value, began, ended });
        }
        result.is_ok()
    }

    /// Has `qemu-io` write or read a block of the LUN at `url`. What it writes it reads from the file `pattern`.
    ///
    /// # Panics
    /// When there is no room for that file.
    pub fn ask_qemu(&self, url: &str, pattern: &Path, is_write: bool, Place { block, offset }: Place) {
        let (began, written) = (Instant::now(), self.next_value(STOCK));
        let command = match is_write {
            true => {
                std::fs::write(pattern, written.to_le_bytes()).expect("there is room");
                format!("write -s {} {offset} {BLOCK_BYTES}", pattern.display())
            }
            false => format!("read -v {offset} {BLOCK_BYTES}"),
        };
        let finished = finish(Command::new("qemu-io").args(["-f", "raw", "-t", "none", "-c", &command, url]));
        let is_done = finished.code == Some(0) && !finished.stdout.contains("failed");
        let ended = is_done.then(Instant::now);
        let found = if is_write { Some(written) } else { is_done.then(|| value_in_dump(&finished.stdout)).flatten() };
        if let Some(value) = found {
            self.lock().push(Operation { host: STOCK, block, is_write, value, began, ended });
        }
    }
}

fn content(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK_BYTES as usize / 8)
}

/// The value of a block, which is one write's as a whole.
///
/// # Panics
/// When it is not.
pub fn value_of(bytes: &[u8]) -> u64 {
    let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    assert!(bytes == content(value), "a block is torn");
    value
}

/// The first eight bytes of a dump: `00000000:  01 00 00 00 09 00 00 00 ...`.
fn value_in_dump(dump: &str) -> Option<u64> {
    let (_, bytes) = dump.lines().find_map(|line| line.split_once(':').filter(|(at, _)| at.len() == 8))?;
    let bytes: Vec<u8> = bytes.split_whitespace().take(8).map_while(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// When one value was there for certain, or came and went: from the first end of what knew it to the last begin
/// (Gibbons and Korach, 1997).
#[derive(Clone, Copy, Debug)]
struct Zone {
    value: u64,
    first_end: Option<Instant>,
    last_begin: Instant,
}

impl Zone {
    /// The time in which it must have been there throughout.
    fn certain(&self) -> Option<(Instant, Instant)> {
        self.first_end.filter(|end| *end < self.last_begin).map(|end| (end, self.last_begin))
    }
}

/// Why the operations on one block are not those of one register. Exact where each write has a value of its own: no two
/// values were certainly there at one time, and none came and went while another certainly was there.
///
/// # Errors
/// What is not so, in words.
pub fn check(operations: &[Operation], start: Instant) -> Result<(), String> {
    let mut zones: BTreeMap<u64, Zone> = BTreeMap::new();
    zones.insert(0, Zone { value: 0, first_end: Some(start), last_begin: start });
    let writes: BTreeMap<u64, &Operation> =
        operations.iter().filter(|operation| operation.is_write).map(|write| (write.value, write)).collect();
    for operation in operations.iter().filter(|operation| !operation.is_write) {
        let began = match writes.get(&operation.value) {
            Some(write) => write.began,
            None if operation.value == 0 => start,
            None => return Err(format!("nobody wrote {:x}", operation.value)),
        };
        if operation.ended.is_some_and(|ended| ended < began) {
            return Err(format!("{:x} was read before it was written", operation.value));
        }
    }
    let is_read = |value: u64| operations.iter().any(|operation| !operation.is_write && operation.value == value);
    for operation in operations {
        // What nobody knows the outcome of, and nobody saw, may never have been.
        if operation.is_write && operation.ended.is_none() && !is_read(operation.value) {
            continue;
        }
        let zone = zones.entry(operation.value).or_insert(Zone {
            value: operation.value,
            first_end: operation.ended,
            last_begin: operation.began,
        });
        zone.first_end = [zone.first_end, operation.ended].into_iter().flatten().min();
        zone.last_begin = zone.last_begin.max(operation.began);
    }
    let certain: Vec<(Zone, (Instant, Instant))> =
        zones.values().filter_map(|zone| Some((*zone, zone.certain()?))).collect();
    for (index, (zone, (from, to))) in certain.iter().enumerate() {
        for (other, (other_from, other_to)) in &certain[index + 1..] {
            if from < other_to && other_from < to {
                return Err(format!("{:x} and {:x} were there at once", zone.value, other.value));
            }
        }
        for other in zones.values().filter(|other| other.certain().is_none() && other.value != zone.value) {
            if *from < other.last_begin && other.first_end.is_some_and(|end| end < *to) {
                return Err(format!("{:x} came and went while {:x} was there", other.value, zone.value));
            }
        }
    }
    Ok(())
}

/// Checks the history of each block.
///
/// # Panics
/// When one is not that of a register.
pub fn check_all(history: &[Operation], start: Instant) {
    let blocks: BTreeSet<u64> = history.iter().map(|operation| operation.block).collect();
    for block in blocks {
        let of_block: Vec<Operation> = history.iter().filter(|operation| operation.block == block).copied().collect();
        if let Err(why) = check(&of_block, start) {
            panic!("block {block} of {} operations: {why}", of_block.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_checker_finds_an_old_read_and_a_lost_write() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let operation = |is_write, value, from, ended| Operation {
            host: value >> 32,
            block: 0,
            is_write,
            value,
            began: at(from),
            ended,
        };
        let write = |value, from, to: Option<u64>| operation(true, value, from, to.map(at));
        let read = |value, from, to| operation(false, value, from, Some(at(to)));
        let right = [write(1, 10, Some(20)), read(1, 30, 40), write(2, 50, Some(60)), read(1, 55, 58), read(2, 70, 80)];
        assert_eq!(check(&right, start), Ok(()));
        assert!(check(&[right[0], right[2], read(1, 70, 80)], start).is_err(), "old");
        assert!(check(&[right[0], read(0, 30, 40)], start).is_err(), "lost");
        assert!(check(&[read(3, 30, 40)], start).is_err(), "from nowhere");
        let unknown = write(5, 10, None);
        assert_eq!(check(&[unknown, read(0, 20, 30), read(5, 40, 50)], start), Ok(()), "it may land late");
        assert!(check(&[unknown, read(5, 20, 30), read(0, 40, 50)], start).is_err(), "and not go away again");
        let seen = [write(1, 10, Some(20)), read(1, 30, 40), read(1, 100, 110), write(2, 50, Some(60))];
        assert!(check(&seen, start).is_err(), "a value comes and goes while another is there");
    }
}
