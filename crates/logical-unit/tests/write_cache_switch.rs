//! MODE SELECT that clears WCE: cached data is durable before the answer reports that there is no
//! cache. One that sets it: earlier writes are durable.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use block::memory::MemoryDevice;
use block::{Buffer, Completion, Device, ErrorKind, Geometry, Identity, Operation, OperationKind, Request};
use common::{GatedDevice, Target, memory, transfer};
use futures_util::FutureExt;
use logical_unit::LogicalUnitOptions;
use scsi::cdb::{Blocks, CdbForm, ModeSelect, ModeSense, WriteSame};
use scsi::mode::{self, page};
use scsi::{Cdb, CdbBytes, Sense, TaskAttribute};

/// A device that counts flushes, and fails one on demand.
struct Flushed {
    below: Arc<MemoryDevice>,
    flush_count: AtomicUsize,
    fails_next: AtomicBool,
}

impl Flushed {
    fn flush_count(&self) -> usize {
        self.flush_count.load(Ordering::Acquire)
    }
}

impl Device for Flushed {
    fn geometry(&self) -> Geometry {
        Geometry { is_write_cache_volatile: true, ..self.below.geometry() }
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if request.operation.kind() == OperationKind::Flush {
            self.flush_count.fetch_add(1, Ordering::AcqRel);
            if self.fails_next.swap(false, Ordering::AcqRel) {
                return Completion::ready(request.fail(ErrorKind::Media));
            }
        }
        self.below.submit(request)
    }
}

fn target() -> (Arc<Flushed>, Target) {
    let device =
        Arc::new(Flushed { below: memory(), flush_count: AtomicUsize::new(0), fails_next: AtomicBool::new(false) });
    (Arc::clone(&device), Target::with(device, LogicalUnitOptions::default()))
}

/// MODE SELECT of the caching page, and its list.
fn set_write_cache(is_write_cache_enabled: bool) -> (Cdb, Vec<u8>) {
    let caching = mode::Caching { is_write_cache_enabled, is_read_cache_disabled: false };
    let mut list = mode::emit(CdbForm::Six, &mode::Header::default(), &caching.emit());
    list[0] = 0;
    let parameter_list_length = list.len() as u16;
    let select = ModeSelect { form: CdbForm::Six, is_page_format: true, is_save: false, parameter_list_length };
    (Cdb::ModeSelect(select), list)
}

fn is_write_cache_enabled(target: &Target) -> bool {
    let bytes = target.data(Cdb::ModeSense(ModeSense {
        form: CdbForm::Six,
        page_control: 0,
        page: page::CACHING,
        subpage: 0,
        is_block_descriptor_disabled: true,
        is_long_lba_accepted: false,
        allocation_length: 255,
    }));
    let (_, pages) = mode::parse(CdbForm::Six, &bytes).unwrap();
    mode::Caching::parse(pages).unwrap().is_write_cache_enabled
}

#[test]
fn a_write_cache_that_is_switched_off_is_flushed_before_the_answer_and_only_then() {
    let (device, target) = target();
    let other = target.other("other,i,0x1 target,t,0x1");
    target.write(0, &[7; 512]);
    let (select, off) = set_write_cache(false);
    target.good(select, &off);
    assert_eq!((device.flush_count(), is_write_cache_enabled(&target)), (1, false));
    assert_eq!(other.sense(Cdb::TestUnitReady), Some(Sense::MODE_PARAMETERS_CHANGED));
    target.good(select, &off);
    let (select, on) = set_write_cache(true);
    target.good(select, &on);
    target.good(select, &on);
    assert_eq!((device.flush_count(), is_write_cache_enabled(&target)), (1, true), "nothing else is switched off");
}

#[test]
fn a_write_cache_whose_flush_fails_is_not_switched_off() {
    let (device, target) = target();
    let other = target.other("other,i,0x1 target,t,0x1");
    target.write(0, &[7; 512]);
    let (select, off) = set_write_cache(false);
    device.fails_next.store(true, Ordering::Release);
    target.refuses(select, &off, Sense::WRITE_ERROR);
    assert!(is_write_cache_enabled(&target));
    assert_eq!(other.sense(Cdb::TestUnitReady), None, "nothing has changed that it could be told of");
    target.good(select, &off);
    assert_eq!((device.flush_count(), is_write_cache_enabled(&target)), (2, false));
}

/// A device that holds requests, and records which changes have FUA.
struct Noted {
    below: Arc<GatedDevice>,
    are_durable: Mutex<Vec<bool>>,
}

impl Device for Noted {
    fn geometry(&self) -> Geometry {
        Geometry { is_write_cache_volatile: true, ..self.below.geometry() }
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if let Operation::Write { fua, .. } | Operation::WriteZeroes { fua, .. } = request.operation {
            self.are_durable.lock().unwrap().push(fua);
        }
        self.below.submit(request)
    }
}

/// Its initiator learns of the cache only with a later command.
#[test]
fn what_came_before_the_write_cache_was_switched_on_is_durable_when_it_is_answered() {
    let device = Arc::new(Noted { below: GatedDevice::new(), are_durable: Mutex::default() });
    let target = Target::with(device.clone(), LogicalUnitOptions::default());
    let other = target.other("other,i,0x1 target,t,0x1");
    let (select, off) = set_write_cache(false);
    other.good(select, &off);
    assert_eq!(target.sense(Cdb::TestUnitReady), Some(Sense::MODE_PARAMETERS_CHANGED));
    let start = |cdb: Cdb, data_out: &[u8]| {
        let bytes = CdbBytes::new(&cdb.emit()).unwrap();
        let mut execution = target.start(bytes, Buffer::copy_of(data_out), TaskAttribute::Simple, 1);
        assert!((&mut execution).now_or_never().is_none());
        execution
    };
    let blocks = Blocks::sixteen(0, 1);
    let same = WriteSame { blocks, is_anchor: false, is_unmap: false, has_no_data_out: false };
    let write = || Cdb::Write(transfer(blocks));
    // One request is at the device, the others wait for it.
    let mut executions =
        vec![start(write(), &[7; 512]), start(Cdb::WriteSame(same), &[0; 512]), start(write(), &[8; 512])];
    let (select, on) = set_write_cache(true);
    other.good(select, &on);
    for _ in 0..3 {
        device.below.release();
        executions.retain_mut(|execution| execution.now_or_never().is_none());
    }
    assert!(executions.is_empty());
    assert_eq!(*device.are_durable.lock().unwrap(), [true; 3]);
}
