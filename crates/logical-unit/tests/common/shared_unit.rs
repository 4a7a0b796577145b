//! A shared unit, its commands and messages. Time stands still unless the test advances the clock.

use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use base::clock::Clock;
use base::executor::Executor;
use block::{Buffer, SharedDevice};
use logical_unit::change_marks::ChangeStore;
use logical_unit::{Command, LogicalUnit, LogicalUnitOptions, LunMap, NexusId, Outcome, SharingOptions};
use scsi::cdb::Blocks;
use scsi::sharing::{CallbackAnswer, LifeBefore, Lock, MessageBody, Mode, Parameters, Report, ReportRecord, Resource};
use scsi::{Cdb, Sense, Status, TaskAttribute};

use super::{BLOCK_BYTES, memory, transfer};

pub(crate) const LEASE: Duration = Duration::from_secs(10);
pub(crate) const MOMENT: Duration = Duration::from_millis(1);

pub(crate) fn options() -> SharingOptions {
    SharingOptions { lease: LEASE, callback_time: Duration::from_secs(4), ..SharingOptions::default() }
}

/// A command under way; its outcome once it has ended.
#[derive(Clone, Default)]
pub(crate) struct Started(Arc<Mutex<Option<Outcome>>>);

impl Started {
    pub(crate) fn is_over(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    pub(crate) fn outcome(&self) -> Outcome {
        self.0.lock().unwrap().take().expect("it is over")
    }

    /// Checks that it ended with GOOD.
    pub(crate) fn good(&self) {
        let outcome = self.outcome();
        assert_eq!((outcome.status, outcome.sense), (Status::Good, None));
    }

    pub(crate) fn sense(&self) -> Option<Sense> {
        self.outcome().sense
    }
}

/// A unit with its background tasks.
pub(crate) struct World {
    pub(crate) executor: Executor,
    pub(crate) luns: LunMap,
    pub(crate) tag: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(memory(), options())
    }

    pub(crate) fn with(device: SharedDevice, sharing: SharingOptions) -> Self {
        Self::with_marks(device, sharing, None)
    }

    /// A world whose unit has change marks, too, kept in `change_store`.
    pub(crate) fn with_marks(
        device: SharedDevice,
        sharing: SharingOptions,
        change_store: Option<Arc<dyn ChangeStore>>,
    ) -> Self {
        let options = LogicalUnitOptions {
            change_store,
            sharing: Some(sharing),
            atomic_bytes_max: 1 << 20,
            ..LogicalUnitOptions::default()
        };
        Self::with_options(device, options)
    }

    pub(crate) fn with_options(device: SharedDevice, options: LogicalUnitOptions) -> Self {
        let mut world = Self { executor: Executor::in_order(), luns: LunMap::new(), tag: 0 };
        let unit = LogicalUnit::new(device, LogicalUnitOptions { clock: Some(world.clock()), ..options });
        world.executor.spawn(unit.run());
        world.luns.insert(0, unit);
        world
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.executor.clock())
    }

    /// Another initiator, whose unit attention is taken already.
    pub(crate) fn nexus(&mut self, name: &str) -> NexusId {
        let nexus = NexusId::new(&format!("{name},i,0x1,target,t,0x1"));
        self.luns.add_nexus(&nexus);
        assert_eq!(self.run(&nexus, Cdb::TestUnitReady, &[]).sense, Some(Sense::POWER_ON_OR_RESET));
        nexus
    }

    pub(crate) fn settle(&mut self) {
        self.executor.run_until_stalled();
    }

    /// Advances the time in small steps, while the target runs.
    pub(crate) fn advance(&mut self, duration: Duration) {
        let end = self.executor.clock().now() + duration;
        while self.executor.clock().now() < end {
            let next = self.executor.clock().now() + LEASE / 10;
            self.executor.clock().advance_to(next.min(end));
            self.settle();
        }
    }

    pub(crate) fn start_as(&mut self, nexus: &NexusId, cdb: Cdb, data_out: &[u8], attribute: TaskAttribute) -> Started {
        self.start_of((0, attribute), nexus, cdb, data_out)
    }

    /// One to another LUN.
    pub(crate) fn start_at(&mut self, lun: u64, nexus: &NexusId, cdb: Cdb, data_out: &[u8]) -> Started {
        self.start_of((lun, TaskAttribute::Simple), nexus, cdb, data_out)
    }

    fn start_of(
        &mut self,
        (lun, attribute): (u64, TaskAttribute),
        nexus: &NexusId,
        cdb: Cdb,
        data_out: &[u8],
    ) -> Started {
        self.tag += 1;
        let command = Command {
            cdb: Ok(cdb),
            data_out: Buffer::copy_of(data_out),
            data_in_bytes_max: 1 << 20,
            attribute,
            task_tag: self.tag,
        };
        let execution = self.luns.execute(nexus, lun, command);
        let started = Started::default();
        let outcome = Arc::clone(&started.0);
        self.executor.spawn(async move {
            let ended = execution.await;
            *outcome.lock().unwrap() = Some(ended);
        });
        self.settle();
        started
    }

    pub(crate) fn start(&mut self, nexus: &NexusId, cdb: Cdb, data_out: &[u8]) -> Started {
        self.start_as(nexus, cdb, data_out, TaskAttribute::Simple)
    }

    pub(crate) fn run(&mut self, nexus: &NexusId, cdb: Cdb, data_out: &[u8]) -> Outcome {
        self.start(nexus, cdb, data_out).outcome()
    }

    pub(crate) fn write(&mut self, nexus: &NexusId, lba: u64, byte: u8) -> Started {
        self.start(nexus, Cdb::Write(transfer(Blocks::new(lba, 1))), &[byte; BLOCK_BYTES])
    }

    pub(crate) fn read(&mut self, nexus: &NexusId, lba: u64) -> Started {
        self.start(nexus, Cdb::Read(transfer(Blocks::new(lba, 1))), &[])
    }

    pub(crate) fn order(&mut self, nexus: &NexusId, client: u64, parameters: &Parameters) -> Outcome {
        let list = parameters.emit();
        let cdb =
            Cdb::SharingOut { service_action: parameters.action(), client, parameter_list_length: list.len() as u32 };
        self.run(nexus, cdb, &list)
    }

    pub(crate) fn ordered(&mut self, nexus: &NexusId, client: u64, parameters: &Parameters) {
        let outcome = self.order(nexus, client, parameters);
        assert_eq!((outcome.status, outcome.sense), (Status::Good, None), "{parameters:?}");
    }

    pub(crate) fn messages(&mut self, nexus: &NexusId) -> Vec<(u64, MessageBody)> {
        let next = || self.luns.poll_message(nexus, Waker::noop()).map(|(_, message)| (message.number, message.body));
        std::iter::from_fn(next).collect()
    }

    pub(crate) fn register(&mut self, nexus: &NexusId, key: u8) -> u64 {
        self.ordered(nexus, 0, &register(key));
        let registered = self.luns.poll_message(nexus, Waker::noop()).map(|(_, message)| message);
        match registered {
            Some(message) if matches!(message.body, MessageBody::Registered { .. }) => message.client,
            other => panic!("{other:?}"),
        }
    }

    /// Registers a new host. Returns its life in the form in which it is claimed after a start.
    pub(crate) fn life(&mut self, name: &str, key: u8) -> LifeBefore {
        let nexus = self.nexus(name);
        self.ordered(&nexus, 0, &register(key));
        match self.luns.poll_message(&nexus, Waker::noop()).map(|(_, message)| (message.client, message.body)) {
            Some((client, MessageBody::Registered { proof, .. })) => LifeBefore { client, proof },
            other => panic!("{other:?}"),
        }
    }

    /// Registers a host that keeps copies of what it reads.
    pub(crate) fn client(&mut self, name: &str, key: u8) -> (NexusId, u64) {
        let nexus = self.nexus(name);
        let client = self.register(&nexus, key);
        (nexus, client)
    }

    /// Takes the only message, which must be a purge. Returns its number.
    pub(crate) fn purge(&mut self, nexus: &NexusId) -> u64 {
        match self.messages(nexus)[..] {
            [(_, MessageBody::Purge { callback, .. })] => callback,
            ref other => panic!("no purge alone: {other:?}"),
        }
    }

    pub(crate) fn acknowledge(&mut self, (nexus, client): &(NexusId, u64), callback: u64) {
        let answer = CallbackAnswer::Done;
        self.ordered(nexus, *client, &Parameters::Acknowledge { taken: 0, callback, answer });
    }

    pub(crate) fn renew(&mut self, (nexus, client): &(NexusId, u64)) {
        self.ordered(nexus, *client, &Parameters::Renew { taken: 0 });
    }

    /// The report without the names of clients.
    pub(crate) fn report(&mut self, nexus: &NexusId) -> Vec<ReportRecord> {
        let mut records = self.report_with_names(nexus);
        records.retain(|record| !matches!(record, ReportRecord::Name { .. }));
        records
    }

    pub(crate) fn report_with_names(&mut self, nexus: &NexusId) -> Vec<ReportRecord> {
        let cdb = Cdb::SharingIn { service_action: 0, first: 0, allocation_length: 1 << 16 };
        Report::parse(&self.run(nexus, cdb, &[]).data_in).unwrap().records
    }
}

pub(crate) fn register(key: u8) -> Parameters {
    Parameters::Register { key: [key; 16], registers_reads: true, before: None }
}

pub(crate) fn lock(request: u64, resource: Resource, mode: Mode) -> Parameters {
    let locks = vec![Lock { resource, mode: Some(mode), grant: 0 }];
    Parameters::Lock { request, transaction: 0, is_reclaim: false, locks }
}
