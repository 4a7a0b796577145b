//! What is read ahead while commits go on beside it.

#[path = "../../ext2/tests/tools/mod.rs"]
mod tools;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use block::completion::SlotSender;
use block::{Completion, Device, EventReceiver, Geometry, Identity, Operation, Request, Response, SharedDevice};
use ext2::{InodeNumber, NewNode, Owner};
use futures_util::FutureExt;
use sharedfs::Mounted;
use tools::now;

const ROOT: InodeNumber = InodeNumber::ROOT;
const BLOCK: u64 = 1024;
const CACHE_BYTES: u64 = 64 << 10;
/// More than the cache holds.
const MUCH: u64 = 200 << 10;

/// A device that reads at once, and answers later.
struct LateAnswers {
    disk: SharedDevice,
    holds_answers: AtomicBool,
    held: Mutex<Vec<(SlotSender, Response)>>,
}

impl Device for LateAnswers {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn identity(&self) -> Identity {
        self.disk.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let is_read = matches!(request.operation, Operation::Read { .. });
        let mut done = self.disk.submit(request);
        if !is_read || !self.holds_answers.load(Ordering::Relaxed) {
            return done;
        }
        let (completion, sender) = Completion::slot();
        self.held.lock().unwrap().push((sender, done.try_take().expect("memory answers at once")));
        completion
    }

    fn subscribe(&self) -> EventReceiver {
        self.disk.subscribe()
    }
}

fn made(mount: &Mounted, name: &[u8]) -> InodeNumber {
    now(mount.create(ROOT, name, NewNode::File, Owner::default())).unwrap().inode
}

fn write(mount: &Mounted, file: InodeNumber, offset: u64, bytes: &[u8]) {
    now(mount.write_file(file, offset, bytes)).unwrap();
    now(mount.commit()).unwrap();
}

/// The second block of a file is in the redo area, and not in its place yet, when both are read in
/// one request. Before the answer comes it is there, and its content in memory goes.
#[test]
fn what_is_read_ahead_of_a_block_that_a_commit_brings_to_its_place_meanwhile_is_not_kept() {
    let device =
        Arc::new(LateAnswers { disk: tools::made(4 << 20, 1024), holds_answers: false.into(), held: Mutex::default() });
    let mount: Mounted = now(sharedfs::open(device.clone(), tools::options(false), CACHE_BYTES, None)).unwrap();
    let (much, file, other) = (made(&mount, b"much"), made(&mount, b"file"), made(&mount, b"other"));
    write(&mount, much, 0, &vec![3; MUCH as usize]);
    write(&mount, file, 0, &[1; 2 * BLOCK as usize]);
    write(&mount, other, 0, &[5]);
    write(&mount, file, BLOCK, &[2; BLOCK as usize]);
    let mut position = 0;
    while position < MUCH {
        position += now(mount.read_file(much, position, CACHE_BYTES as usize)).unwrap().len() as u64;
    }
    // There is something to commit, and the inode is in memory.
    now(mount.write_file(other, 0, &[6])).unwrap();
    now(mount.read_file(file, 0, 0)).unwrap();
    device.holds_answers.store(true, Ordering::Relaxed);
    let mut reading = pin!(mount.read_file(file, 0, 2 * BLOCK as usize));
    let mut has_read_ahead = false;
    let found = loop {
        if let Some(found) = reading.as_mut().now_or_never() {
            break found.unwrap();
        }
        let held = std::mem::take(&mut *device.held.lock().unwrap());
        assert!(!held.is_empty(), "it waits for nothing else");
        if held.iter().any(|(_, response)| response.buffer.len() as u64 == 2 * BLOCK) {
            now(mount.commit()).unwrap();
            has_read_ahead = true;
        }
        held.into_iter().for_each(|(sender, response)| sender.complete(response));
    };
    device.holds_answers.store(false, Ordering::Relaxed);
    assert_eq!(found[BLOCK as usize..], [2; BLOCK as usize], "read ahead: {has_read_ahead}");
    assert_eq!(now(mount.read_file(file, BLOCK, 1)).unwrap(), [2]);
    // Nothing old is written back with a part of the block.
    write(&mount, file, BLOCK, &[7]);
    now(sharedfs::close(&mount)).unwrap();
    let plain = tools::open(&device.disk, true).unwrap();
    assert_eq!(now(plain.read_file(file, BLOCK, 2)).unwrap(), [7, 2]);
}
