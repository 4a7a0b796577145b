//! Hosts that share a unit and say anything: every command ends once the time for it is over, and who keeps its copies
//! as the protocol says, and says nothing else, never has an old one.

#![no_main]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::{Clock, Instant};
use base::executor::Executor;
use block::memory::MemoryDevice;
use block::{Device, Identity, Request};
use fuzz::sharing_script::{HOSTS, Named, Step, What, parse};
use libfuzzer_sys::fuzz_target;
use logical_unit::{Command, LogicalUnit, LogicalUnitOptions, LunMap, NexusId, Outcome, SharingOptions};
use scsi::cdb::{Blocks, Transfer};
use scsi::sharing::{CallbackAnswer, MessageBody, Parameters, action_out};
use scsi::{Cdb, Status, TaskAttribute, TaskManagementFunction};

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u8 = 8;
const LEASE: Duration = Duration::from_secs(10);

/// What a host knows and keeps.
#[derive(Default)]
struct Host {
    /// Registrations that were refused, each with a key of its own.
    keys_refused: u8,
    client: u64,
    /// Its session is that client's.
    is_joined: bool,
    taken: u64,
    /// Callbacks that it has not answered.
    asked: Vec<u64>,
    /// Copies, with the byte that they are full of.
    copies: BTreeMap<u8, u8>,
    /// Counts what makes a read of a block void that is under way.
    voids: BTreeMap<u8, u64>,
    /// Until when its copies count.
    until: Option<Instant>,
    /// It sent what its copies are not accounted for.
    is_strange: bool,
}

impl Host {
    fn drop_copy(&mut self, block: u8) {
        self.copies.remove(&block);
        *self.voids.entry(block).or_default() += 1;
    }

    fn drop_all(&mut self) {
        (0..BLOCKS).for_each(|block| self.drop_copy(block));
    }

    fn void(&self, block: u8) -> u64 {
        self.voids.get(&block).copied().unwrap_or_default()
    }

    fn renew(&mut self, sent: Instant) {
        self.until = Some(sent + LEASE * 99 / 100);
    }
}

/// What is under way, shared with what ends it.
#[derive(Default)]
struct Record {
    hosts: [Host; HOSTS],
    /// Changes of each block that have not ended.
    changing: BTreeMap<u8, usize>,
    begun: usize,
    ended: usize,
}

struct World {
    executor: Executor,
    luns: LunMap,
    device: Arc<MemoryDevice>,
    nexuses: [NexusId; HOSTS],
    record: Rc<RefCell<Record>>,
}

fn transfer(block: u8) -> Transfer {
    let blocks = BLOCK_BYTES as u64 / 512;
    let blocks = Blocks::new(u64::from(block) * blocks, blocks as u32);
    Transfer { blocks, is_dpo: false, is_fua: false }
}

impl World {
    fn new() -> Self {
        let mut executor = Executor::in_order();
        let options = LogicalUnitOptions {
            sharing: Some(SharingOptions { lease: LEASE, ..SharingOptions::default() }),
            clock: Some(Arc::new(executor.clock())),
            ..LogicalUnitOptions::default()
        };
        let device = Arc::new(MemoryDevice::new(u64::from(BLOCKS) * BLOCK_BYTES as u64, Identity::default()));
        let unit = LogicalUnit::new(device.clone(), options);
        executor.spawn(unit.run());
        let luns = LunMap::new();
        luns.insert(0, unit);
        let nexuses = ["a", "b", "c", "d"].map(NexusId::new);
        let mut world = Self { executor, luns, device, nexuses, record: Rc::default() };
        (0..HOSTS).for_each(|host| world.connect(host));
        world
    }

    fn now(&self) -> Instant {
        self.executor.clock().now()
    }

    /// The host has a session, and has taken its unit attention.
    fn connect(&mut self, host: usize) {
        self.luns.add_nexus(&self.nexuses[host]);
        self.start(host, Cdb::TestUnitReady, &[], |_, _| {});
    }

    fn start(&mut self, host: usize, cdb: Cdb, data_out: &[u8], end: impl FnOnce(&mut Record, &Outcome) + 'static) {
        let mut record = self.record.borrow_mut();
        record.begun += 1;
        let command = Command {
            cdb: Ok(cdb),
            data_out: Buffer::copy_of(data_out),
            data_in_bytes_max: u32::MAX,
            attribute: TaskAttribute::Simple,
            task_tag: record.begun as u64,
        };
        drop(record);
        let execution = self.luns.execute(&self.nexuses[host], 0, command);
        let record = Rc::clone(&self.record);
        self.executor.spawn(async move {
            let outcome = execution.await;
            let mut record = record.borrow_mut();
            record.ended += 1;
            end(&mut record, &outcome);
        });
        self.executor.run_until_stalled();
    }

    /// Takes what the unit says to a host.
    fn listen(&mut self, host: usize) {
        while let Some((_, message)) = self.luns.poll_message(&self.nexuses[host], Waker::noop()) {
            let mut record = self.record.borrow_mut();
            let one = &mut record.hosts[host];
            if let MessageBody::Registered { .. } = message.body {
                one.is_joined = true;
                if message.client != one.client {
                    one.drop_all();
                    (one.client, one.taken) = (message.client, 0);
                    one.asked.clear();
                }
            }
            one.taken = one.taken.max(message.number);
            match message.body {
                MessageBody::Purge { callback, first_block, block_count, .. } => {
                    (0..BLOCKS).for_each(|block| {
                        if u64::from(block) >= first_block && u64::from(block) - first_block < block_count {
                            one.drop_copy(block);
                        }
                    });
                    one.asked.push(callback);
                }
                MessageBody::CallBack { callback, .. } => one.asked.push(callback),
                _ => {}
            }
        }
    }

    fn order(&mut self, host: usize, client: u64, parameters: &Parameters) {
        let list = parameters.emit();
        let service_action = parameters.action();
        let cdb = Cdb::SharingOut { service_action, client, parameter_list_length: list.len() as u32 };
        let (sent, lives) = (self.now(), matches!(service_action, action_out::REGISTER | action_out::RENEW));
        self.start(host, cdb, &list, move |record, outcome| {
            let host = &mut record.hosts[host];
            match outcome.status {
                Status::Good if lives => host.renew(sent),
                Status::Good => {}
                _ if service_action == action_out::REGISTER => host.keys_refused = host.keys_refused.wrapping_add(1),
                _ => {}
            }
        });
    }

    fn take(&mut self, step: &Step) {
        let host = step.host;
        match &step.what {
            What::Register => {
                // A key whose client was fenced makes no other one.
                let mut key = [host as u8 + 1; 16];
                key[1] = self.record.borrow().hosts[host].keys_refused;
                self.order(host, 0, &Parameters::Register { key, registers_reads: true, before: None });
            }
            What::Answer => self.answer(host),
            What::Read(block) => self.read(host, block % BLOCKS),
            What::Write(block) => self.write(host, block % BLOCKS),
            What::Order { action, named, list } => {
                let client = match *named {
                    Named::Host(of) => self.record.borrow().hosts[of].client,
                    Named::Id(id) => id,
                };
                let service_action = action & 0x1f;
                if matches!(service_action, action_out::REGISTER | action_out::LEAVE) {
                    let mut record = self.record.borrow_mut();
                    // With another's key it is the other.
                    let is_register = service_action == action_out::REGISTER;
                    record.hosts.iter_mut().for_each(|host| host.is_strange |= is_register);
                    record.hosts[host].drop_all();
                    (record.hosts[host].until, record.hosts[host].is_joined) = (None, false);
                }
                let cdb = Cdb::SharingOut { service_action, client, parameter_list_length: list.len() as u32 };
                self.start(host, cdb, list, |_, _| {});
            }
            What::Pass(quarters) => self.pass(Duration::from_millis(250) * u32::from(*quarters % 64)),
            What::Lose => {
                self.luns.remove_nexus(&self.nexuses[host]);
                self.record.borrow_mut().hosts[host].is_joined = false;
                self.executor.run_until_stalled();
                self.connect(host);
            }
            What::Reset => {
                let reset = TaskManagementFunction::LogicalUnitReset;
                drop(self.luns.task_management(&self.nexuses[host], reset, Some(0), None));
                self.executor.run_until_stalled();
            }
        }
    }

    fn answer(&mut self, host: usize) {
        let (client, taken, callback) = {
            let mut record = self.record.borrow_mut();
            let one = &mut record.hosts[host];
            let callback = if one.asked.is_empty() { None } else { Some(one.asked.remove(0)) };
            (one.client, one.taken, callback)
        };
        if let Some(callback) = callback {
            self.order(host, client, &Parameters::Acknowledge { taken, callback, answer: CallbackAnswer::Done });
        }
        self.order(host, client, &Parameters::Renew { taken });
    }

    fn read(&mut self, host: usize, block: u8) {
        let (client, void) = {
            let record = self.record.borrow();
            let one = &record.hosts[host];
            (Some(one.client).filter(|_| one.is_joined), one.void(block))
        };
        self.start(host, Cdb::Read(transfer(block)), &[], move |record, outcome| {
            let one = &mut record.hosts[host];
            // It is registered only if it was sent as the client that it is.
            if outcome.status == Status::Good && client == Some(one.client) && one.void(block) == void {
                one.copies.insert(block, outcome.data_in[0]);
            }
        });
    }

    fn write(&mut self, host: usize, block: u8) {
        let byte = {
            let mut record = self.record.borrow_mut();
            record.hosts[host].drop_copy(block);
            *record.changing.entry(block).or_default() += 1;
            record.begun as u8 | 1
        };
        self.start(host, Cdb::Write(transfer(block)), &[byte; BLOCK_BYTES], move |record, _| {
            record.hosts[host].drop_copy(block);
            *record.changing.entry(block).or_default() -= 1;
        });
    }

    fn pass(&mut self, time: Duration) {
        // The target is run all the while.
        let end = self.now() + time;
        while self.now() < end {
            let next = self.now() + LEASE / 10;
            self.executor.clock().advance_to(next.min(end));
            self.executor.run_until_stalled();
        }
    }

    /// What is at a block.
    fn content(&self, block: u8) -> u8 {
        let buffer = Buffer::zeroed(BLOCK_BYTES);
        let mut read = self.device.submit(Request::read(u64::from(block) * BLOCK_BYTES as u64, buffer));
        read.try_take().expect("memory answers at once").buffer[0]
    }

    /// No host that keeps to the protocol has an old copy that it may use.
    fn check(&self) {
        let (record, now) = (self.record.borrow(), self.now());
        let lives = |host: &&Host| !host.is_strange && host.until.is_some_and(|until| now < until);
        for host in record.hosts.iter().filter(lives) {
            for (block, byte) in &host.copies {
                let is_changing = record.changing.get(block).is_some_and(|count| *count > 0);
                assert!(is_changing || self.content(*block) == *byte, "block {block}: a copy is old");
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut world = World::new();
    for step in parse(bytes) {
        world.take(&step);
        (0..HOSTS).for_each(|host| world.listen(host));
        world.check();
    }
    // Whoever is silent now is fenced, and what waited goes on.
    for _ in 0..32 {
        world.pass(LEASE / 2);
    }
    let record = world.record.borrow();
    assert_eq!(record.ended, record.begun, "every command has an outcome");
});
