//! Whose each request to the device is, so that a layer below can give initiators their shares.

mod common;

use std::sync::{Arc, Mutex};

use block::memory::MemoryDevice;
use block::{Completion, Device, Geometry, Identity, OperationKind, Request, Submitter};
use common::{BLOCK_BYTES, Target, identity, transfer};
use logical_unit::{LogicalUnitOptions, NexusId};
use scsi::Cdb;
use scsi::cdb::{Blocks, Verification, WriteSame};
use scsi::extended_copy::{Segment, emit_list};
use scsi::unmap::{self, Descriptor};

const MIB: usize = 1 << 20;

/// A device that records whose requests it gets.
struct Recorded {
    below: MemoryDevice,
    asked: Mutex<Vec<(OperationKind, Submitter)>>,
}

impl Device for Recorded {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        self.asked.lock().unwrap().push((request.operation.kind(), request.submitter));
        self.below.submit(request)
    }
}

fn blocks(bytes: usize) -> Blocks {
    Blocks::sixteen(0, (bytes / BLOCK_BYTES) as u32)
}

/// Commands that move or change data in every way, with their data-out. `name` is that of the unit in lists of copies.
fn commands(name: u64) -> Vec<(Cdb, Vec<u8>)> {
    let verification = Verification { blocks: blocks(MIB), byte_check: 0, is_dpo: false };
    let same = WriteSame { blocks: blocks(MIB), is_unmap: false, is_anchor: false, has_no_data_out: false };
    let segment = Segment { source: 0, destination: 0, block_count: 256, source_lba: 0, destination_lba: 4096 };
    let copy = emit_list(None, &[(name, BLOCK_BYTES as u32)], &[segment]);
    let list = unmap::emit(&[Descriptor { lba: 0, block_count: 8 }]);
    let write = |bytes: usize| (Cdb::Write(transfer(blocks(bytes))), vec![7; bytes]);
    vec![
        (Cdb::Read(transfer(blocks(4096))), Vec::new()),
        (Cdb::Read(transfer(blocks(2 * MIB))), Vec::new()),
        write(4096),
        write(2 * MIB),
        (Cdb::Write(transfer(blocks(4096))), vec![7; 100]),
        (Cdb::Verify(verification), Vec::new()),
        (Cdb::WriteAndVerify(verification), vec![7; MIB]),
        (Cdb::OrWrite(transfer(blocks(4096))), vec![7; 4096]),
        (Cdb::CompareAndWrite { lba: 0, block_count: 1, is_dpo: false, is_fua: false }, vec![7; 2 * BLOCK_BYTES]),
        (Cdb::WriteSame(same), vec![7; BLOCK_BYTES]),
        (Cdb::WriteSame(same), vec![0; BLOCK_BYTES]),
        (Cdb::Unmap { is_anchor: false, parameter_list_length: list.len() as u16 }, list),
        (Cdb::ExtendedCopy { parameter_list_length: copy.len() as u32 }, copy),
    ]
}

#[test]
fn each_request_is_that_of_the_initiators_name_whatever_its_session() {
    let below = MemoryDevice::new(16 * MIB as u64, identity());
    let device = Arc::new(Recorded { below, asked: Mutex::default() });
    let target = Target::with(Arc::clone(&device) as _, LogicalUnitOptions::default());
    let name = common::changing::name(&target);
    let mut of_name = Vec::new();
    for nexus in ["iqn.a:one,i,0x1,iqn.t,t,0x0001", "iqn.A:one,i,0x2,iqn.t,t,0x0001", "iqn.a:two,i,0x1,iqn.t,t,0x0001"]
    {
        let initiator = target.other(nexus);
        let submitter = NexusId::new(nexus).submitter();
        of_name.push(submitter);
        for (cdb, data_out) in commands(name) {
            device.asked.lock().unwrap().clear();
            initiator.good(cdb, &data_out);
            let asked = std::mem::take(&mut *device.asked.lock().unwrap());
            assert!(!asked.is_empty() && asked.iter().all(|(_, whose)| *whose == submitter), "{cdb:?}: {asked:?}");
        }
    }
    assert!(of_name[0] == of_name[1] && of_name[0] != of_name[2]);
    assert_ne!(of_name[0], Submitter::default());
}
