//! A target with one RAM disk, and an initiator that uses it without a transport.

#![allow(dead_code, reason = "every test file uses its own part")]

pub(crate) mod changing;
pub(crate) mod shared_unit;

use std::sync::{Arc, Mutex};

use base::executor::block_on;
use block::completion::SlotSender;
use block::memory::MemoryDevice;
use block::{Buffer, Completion, Device, Geometry, Identity, Operation, Request, Response, SharedDevice};
use logical_unit::{Command, Execution, LogicalUnit, LogicalUnitOptions, LunMap, NexusId, Outcome};
use scsi::cdb::{Blocks, Transfer};
use scsi::{Cdb, CdbBytes, Sense, Status, TaskAttribute};

pub(crate) const BLOCK_BYTES: usize = 512;
pub(crate) const BLOCK_COUNT: u64 = 2048;

pub(crate) fn identity() -> Identity {
    Identity { target: "memory".into(), unit: "disk".into(), serial: "5eria1".into() }
}

pub(crate) fn memory() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(BLOCK_COUNT * BLOCK_BYTES as u64, identity()))
}

/// A target with one logical unit at LUN 0, and one nexus that has taken its unit attentions.
pub(crate) struct Target {
    pub(crate) map: LunMap,
    pub(crate) nexus: NexusId,
}

impl Target {
    pub(crate) fn new() -> Self {
        Self::with(memory(), LogicalUnitOptions::default())
    }

    pub(crate) fn with(device: SharedDevice, options: LogicalUnitOptions) -> Self {
        let map = LunMap::new();
        map.insert(0, LogicalUnit::new(device, options));
        let target = Self { map, nexus: NexusId::new("initiator,i,0x1 target,t,0x1") };
        target.map.add_nexus(&target.nexus);
        assert_eq!(target.sense(Cdb::TestUnitReady), Some(Sense::POWER_ON_OR_RESET));
        target
    }

    /// The same target for another initiator, whose unit attentions are taken already.
    pub(crate) fn other(&self, name: &str) -> Self {
        let other = Self { map: self.map.clone(), nexus: NexusId::new(name) };
        other.map.add_nexus(&other.nexus);
        assert_eq!(other.sense(Cdb::TestUnitReady), Some(Sense::POWER_ON_OR_RESET));
        other
    }

    pub(crate) fn start(&self, cdb: CdbBytes, data_out: Buffer, attribute: TaskAttribute, task_tag: u64) -> Execution {
        let cdb = Cdb::parse(&cdb);
        let command = Command { cdb, data_out, data_in_bytes_max: 1 << 20, attribute, task_tag };
        self.map.execute(&self.nexus, 0, command)
    }

    pub(crate) fn run_bytes(&self, cdb: &[u8], data_out: &[u8]) -> Outcome {
        let cdb = CdbBytes::new(cdb).expect("tests send no longer CDB");
        block_on(self.start(cdb, Buffer::copy_of(data_out), TaskAttribute::Simple, 1))
    }

    pub(crate) fn run(&self, cdb: Cdb, data_out: &[u8]) -> Outcome {
        self.run_bytes(&cdb.emit(), data_out)
    }

    /// Returns the data-in of a command that must end with GOOD.
    pub(crate) fn data(&self, cdb: Cdb) -> Vec<u8> {
        let outcome = self.run(cdb, &[]);
        assert_eq!((outcome.status, outcome.sense), (Status::Good, None), "{cdb:?}");
        outcome.data_in.to_vec()
    }

    pub(crate) fn good(&self, cdb: Cdb, data_out: &[u8]) {
        let outcome = self.run(cdb, data_out);
        assert_eq!((outcome.status, outcome.sense), (Status::Good, None), "{cdb:?}");
    }

    pub(crate) fn sense(&self, cdb: Cdb) -> Option<Sense> {
        self.run(cdb, &[]).sense
    }

    /// Checks that a command ends with this condition, whatever its field pointer.
    pub(crate) fn refuses(&self, cdb: Cdb, data_out: &[u8], expected: Sense) {
        let outcome = self.run(cdb, data_out);
        assert_eq!(outcome.status, Status::CheckCondition, "{cdb:?}");
        assert!(outcome.sense.is_some_and(|sense| sense.is_same_condition(&expected)), "{cdb:?}: {:?}", outcome.sense);
    }

    pub(crate) fn write(&self, lba: u64, bytes: &[u8]) {
        let blocks = Blocks::new(lba, (bytes.len() / BLOCK_BYTES) as u32);
        self.good(Cdb::Write(transfer(blocks)), bytes);
    }

    pub(crate) fn read(&self, lba: u64, count: u32) -> Vec<u8> {
        self.data(Cdb::Read(transfer(Blocks::new(lba, count))))
    }
}

pub(crate) fn transfer(blocks: Blocks) -> Transfer {
    Transfer { blocks, is_dpo: false, is_fua: false }
}

/// A device whose requests wait until the test releases them, in order.
pub(crate) struct GatedDevice {
    below: Arc<MemoryDevice>,
    waiting: Mutex<Vec<(Request, SlotSender)>>,
}

impl GatedDevice {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { below: memory(), waiting: Mutex::default() })
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.lock().unwrap().len()
    }

    /// The bytes of each waiting request.
    pub(crate) fn waiting_bytes(&self) -> Vec<u64> {
        self.waiting
            .lock()
            .unwrap()
            .iter()
            .map(|(request, _)| request.range().map_or(0, |range| range.length))
            .collect()
    }

    /// Releases the oldest request.
    pub(crate) fn release(&self) {
        let (request, sender) = self.waiting.lock().unwrap().remove(0);
        let response = self.below.submit(request).try_take().expect("memory answers at once");
        sender.complete(response);
    }

    /// Fails the oldest request.
    pub(crate) fn fail(&self, kind: block::ErrorKind) {
        let (request, sender) = self.waiting.lock().unwrap().remove(0);
        sender.complete(request.fail(kind));
    }
}

impl Device for GatedDevice {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if matches!(request.operation, Operation::Flush) {
            return Completion::ready(Response::done(Buffer::empty()));
        }
        let (completion, sender) = Completion::slot();
        self.waiting.lock().unwrap().push((request, sender));
        completion
    }
}
