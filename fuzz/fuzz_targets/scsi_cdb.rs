//! Any commands against logical units in RAM: each has exactly one outcome, with sense data exactly when it says so,
//! and no more data-in than its CDB allows. A good read returns what was last written.

#![no_main]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use base::buffer::{Buffer, BufferPool};
use base::executor::Executor;
use block::memory::MemoryDevice;
use block::{Geometry, Identity, SharedDevice};
use fuzz::scsi_script::{Step, parse};
use libfuzzer_sys::fuzz_target;
use logical_unit::{Command, LogicalUnit, LogicalUnitOptions, LunMap, NexusId, Outcome};
use scsi::sharing::{Message, Parameters, Report, Support};
use scsi::{Cdb, CdbBytes, Sense, Status, TaskAttribute, TaskManagementFunction};

const SIZE_BYTES: u64 = 128 << 10;
const BLOCK_BYTES: [u32; 3] = [512, 4096, 512];
/// No command of the fuzzer needs more; the transport would cut it, too.
const DATA_OUT_BYTES_MAX: u64 = 256 << 10;

fn unit(lun: usize) -> Arc<LogicalUnit> {
    let geometry = Geometry { logical_block_bytes: BLOCK_BYTES[lun], ..Geometry::plain(SIZE_BYTES) };
    let device: SharedDevice = Arc::new(MemoryDevice::with_geometry(geometry, Identity::default()));
    let options = LogicalUnitOptions {
        is_read_only: lun == 2,
        is_removable: lun == 1,
        is_thin: lun != 1,
        read_buffers: BufferPool::new(64 << 10),
        ..LogicalUnitOptions::default()
    };
    LogicalUnit::new(device, options)
}

/// Most data-in that a command may return.
fn data_in_bytes_max(cdb: &[u8], block_bytes: u32) -> u64 {
    match Cdb::parse(cdb) {
        Ok(Cdb::Read(transfer)) => u64::from(transfer.blocks.count) * u64::from(block_bytes),
        Ok(cdb) => cdb.parameter_data_bytes().into(),
        Err(_) => 0,
    }
}

/// Parameter lists and messages of shared units: what is understood is what those bytes say.
fn check_sharing(bytes: &[u8]) {
    let Some((&action, list)) = bytes.split_first() else { return };
    if let Ok(parameters) = Parameters::parse(action & 0x0f, list) {
        assert_eq!(Parameters::parse(parameters.action(), &parameters.emit()), Ok(parameters));
    }
    if let Ok(message) = Message::parse(bytes) {
        assert_eq!(message.emit(), bytes);
    }
    let _ = Report::parse(bytes);
    let _ = Support::parse(bytes);
}

fn check_cdb(bytes: &[u8]) {
    let Ok(cdb) = Cdb::parse(bytes) else { return };
    let emitted = cdb.emit();
    assert_eq!(Cdb::parse(&emitted), Ok(cdb));
    // Group numbers and hints may be ignored, but nothing is made up.
    assert!(emitted.iter().zip(bytes).all(|(emitted, byte)| emitted & byte == *emitted), "{bytes:02x?} as {emitted:?}");
}

fn check_outcome(step: &Step, outcome: &Outcome) {
    assert_eq!(outcome.sense.is_some(), outcome.status == Status::CheckCondition);
    if let Some(sense) = outcome.sense {
        let same = Sense::parse(&sense.emit_descriptors()).expect("our own sense data");
        assert!(same.is_same_condition(&sense));
        let same = Sense::parse(&sense.emit_fixed()).expect("our own sense data");
        assert!(same.is_same_condition(&sense));
    }
    let block_bytes = BLOCK_BYTES.get(usize::from(step.lun)).copied().unwrap_or(512);
    let data_in = outcome.data_in.len() as u64;
    assert!(data_in <= data_in_bytes_max(&step.cdb, block_bytes), "{data_in} bytes for {:02x?}", step.cdb);
    if let (Ok(Cdb::Read(_)), Status::Good) = (Cdb::parse(&step.cdb), outcome.status) {
        assert_eq!(data_in, data_in_bytes_max(&step.cdb, block_bytes), "a good read is whole");
    }
}

fn command(step: &Step, task_tag: u64) -> Option<Command> {
    let block_bytes = BLOCK_BYTES.get(usize::from(step.lun)).copied().unwrap_or(512);
    let asked =
        Cdb::parse(&step.cdb).map_or(0, |cdb| cdb.class().data_out.bytes(block_bytes)).min(DATA_OUT_BYTES_MAX) as i64;
    let length = (asked + i64::from(step.data_out_delta)).max(0) as usize;
    let mut data_out = Buffer::zeroed(length);
    if !step.data_out.is_empty() {
        data_out.iter_mut().zip(step.data_out.iter().cycle()).for_each(|(byte, from)| *byte = *from);
    }
    Some(Command {
        cdb: Cdb::parse(&CdbBytes::new(&step.cdb)?),
        data_out,
        data_in_bytes_max: u32::MAX,
        attribute: TaskAttribute::from_code(step.attribute & 7).unwrap_or_default(),
        task_tag,
    })
}

/// The content of LUN 0 as writes and reads alone show it; other commands that change it make it unknown.
struct Model(Option<Vec<u8>>);

impl Model {
    fn handle(&mut self, step: &Step, outcome: &Outcome) {
        if let Ok(Cdb::ExtendedCopy { .. }) = Cdb::parse(&step.cdb) {
            // Whichever unit it was sent to, it may have written to this one.
            self.0 = None;
        }
        if step.lun != 0 {
            return;
        }
        let place = |lba: u64, count: u32| {
            let start = lba as usize * 512;
            start..start + count as usize * 512
        };
        match (Cdb::parse(&step.cdb), outcome.status, &mut self.0) {
            (Ok(Cdb::Read(transfer)), Status::Good, Some(content)) => {
                let range = place(transfer.blocks.lba, transfer.blocks.count);
                assert!(outcome.data_in[..] == content[range], "a read returns what was last written");
            }
            (Ok(Cdb::Write(transfer)), Status::Good, Some(content)) if step.data_out_delta >= 0 => {
                let range = place(transfer.blocks.lba, transfer.blocks.count);
                let bytes = step.data_out.iter().copied().cycle().chain(std::iter::repeat(0));
                content[range].iter_mut().zip(bytes).for_each(|(byte, from)| *byte = from);
            }
            (
                Ok(
                    Cdb::Write(_)
                    | Cdb::WriteAndVerify(_)
                    | Cdb::WriteSame(_)
                    | Cdb::CompareAndWrite { .. }
                    | Cdb::OrWrite(_)
                    | Cdb::WriteAtomic(_)
                    | Cdb::Sanitize(_)
                    | Cdb::Unmap { .. },
                ),
                ..,
            ) => self.0 = None,
            _ => {}
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    check_sharing(bytes);
    let steps = parse(bytes);
    let luns = LunMap::new();
    let mut executor = Executor::in_order();
    for lun in 0..BLOCK_BYTES.len() {
        let unit = unit(lun);
        executor.spawn(unit.run());
        luns.insert(lun as u64, unit);
    }
    let nexuses = ["a", "b", "c", "d"].map(NexusId::new);
    nexuses.iter().take(3).for_each(|nexus| luns.add_nexus(nexus));
    let model = Rc::new(RefCell::new(Model(Some(vec![0; SIZE_BYTES as usize]))));
    let ended = Rc::new(RefCell::new(0));
    for (index, step) in steps.iter().enumerate() {
        check_cdb(&step.cdb);
        let nexus = &nexuses[usize::from(step.nexus) % nexuses.len()];
        let (ended, model) = (Rc::clone(&ended), Rc::clone(&model));
        if step.attribute >= 0xf0 {
            let function = TaskManagementFunction::from_code(step.attribute & 0xf);
            let Some(function) = function else {
                *ended.borrow_mut() += 1;
                continue;
            };
            let tag = step.cdb.first().map(|&tag| u64::from(tag));
            let managing = luns.task_management(nexus, function, Some(step.lun.into()), tag);
            executor.spawn(async move {
                managing.await;
                *ended.borrow_mut() += 1;
            });
        } else {
            let Some(command) = command(step, index as u64) else {
                *ended.borrow_mut() += 1;
                continue;
            };
            let execution = luns.execute(nexus, step.lun.into(), command);
            let step = step.clone();
            executor.spawn(async move {
                let outcome = execution.await;
                check_outcome(&step, &outcome);
                model.borrow_mut().handle(&step, &outcome);
                *ended.borrow_mut() += 1;
            });
        }
        executor.run_until_stalled();
    }
    assert_eq!(*ended.borrow(), steps.len(), "every command has an outcome");
});
