//! A unit that comes under a number where another one was: commands that were sent to that one do nothing to it.

use std::sync::Arc;

use base::serial::Serial32;
use block::memory::MemoryDevice;
use block::{Buffer, Device, Identity, Request, SharedDevice};
use iscsi::pdu::*;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use target::{Target, TargetServer, TargetServerOptions};
use tokio::io::DuplexStream;

mod support;
use support::*;

const GOOD: (u8, u8, u8) = (0, 0, 0);
const POWER_ON: (u8, u8, u8) = (6, 0x29, 0);

/// A disk whose target may be served under number 0 or not.
fn disk(serial: &str) -> (SharedDevice, Target) {
    let identity = Identity { target: NAME.to_owned(), unit: "0".to_owned(), serial: serial.to_owned() };
    let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, identity));
    let luns = LunMap::new();
    luns.insert(0, LogicalUnit::new(Arc::clone(&device), LogicalUnitOptions::default()));
    (device, Target::new(NAME, luns))
}

/// The first bytes of its first four blocks.
fn blocks(device: &SharedDevice) -> [u8; 4] {
    let read = device.submit(Request::read(0, Buffer::zeroed(4 * 512))).try_take().expect("memory answers at once");
    let bytes = read.buffer;
    [0, 1, 2, 3].map(|block| bytes[block * 512])
}

/// Puts a disk in the place of the one that is served, by two reloads.
fn replace(server: &TargetServer, target: Target) {
    server.set_targets(vec![Target::new(NAME, LunMap::new())]);
    server.set_targets(vec![target]);
}

/// A session with a disk, logged in.
async fn logged_in(target: Target) -> (TargetServer, Client<DuplexStream>) {
    let server = TargetServer::new(vec![target], TargetServerOptions::default());
    let (mut client, _) = connect(&server);
    client.log_in(1).await;
    client.settle().await;
    (server, client)
}

/// A session with the first of two disks, which the second has replaced after `before` was done.
async fn replaced(
    before: impl AsyncFnOnce(&mut Client<DuplexStream>),
) -> (SharedDevice, SharedDevice, Client<DuplexStream>) {
    let ((first, theirs), (second, others)) = (disk("first"), disk("second"));
    let (server, mut client) = logged_in(theirs).await;
    before(&mut client).await;
    replace(&server, others);
    (first, second, client)
}

fn write(lba: u32) -> [u8; 10] {
    cdb10(0x2a, lba, 1)
}

/// A write whose data is asked for: where it will be awaited.
async fn announce(client: &mut Client<DuplexStream>) -> TargetTransferTag {
    client.command(9, &write(1), Some(Vec::new()), 512).await;
    let Bhs::ReadyToTransfer(r2t) = client.receive_bhs().await else { panic!("its data is asked for") };
    r2t.target_transfer_tag
}

async fn send_data(client: &mut Client<DuplexStream>, transfer: Option<TargetTransferTag>) {
    let data = DataOut {
        is_final: true,
        lun: 0,
        initiator_task_tag: tag(9),
        target_transfer_tag: transfer,
        exp_stat_sn: Serial32(0),
        data_sn: Serial32(0),
        buffer_offset: 0,
    };
    client.send(&data, vec![7; 512]).await;
}

async fn manage(client: &mut Client<DuplexStream>, function: TaskManagementFunction) {
    let request = TaskManagementRequest {
        is_immediate: true,
        function: Ok(function),
        lun: 0,
        initiator_task_tag: tag(20),
        referenced_task_tag: None,
        cmd_sn: client.cmd_sn,
        exp_stat_sn: client.exp_stat_sn,
        ref_cmd_sn: Serial32(0),
        exp_data_sn: Serial32(0),
    };
    client.send(&request, Vec::new()).await;
}

async fn managed(client: &mut Client<DuplexStream>) -> TaskManagementOutcome {
    match client.receive_bhs().await {
        Bhs::TaskManagementResponse(response) => response.outcome,
        other => panic!("{other:?} is not the answer"),
    }
}

/// RFC 7143 4.2.5.2: the data of a command that was accepted comes when it is asked for, which may be long after.
#[tokio::test]
async fn a_write_that_awaits_its_data_is_not_carried_out_by_the_unit_that_came_meanwhile() {
    let mut transfer = None;
    let (first, second, mut client) = replaced(async |client| transfer = Some(announce(client).await)).await;
    // Another command takes the unit attention, and the next says that it was received.
    client.command(1, &[0; 6], None, 0).await;
    client.acknowledge().await;
    assert_eq!(client.sense_of(&[0; 6], None).await, GOOD);
    send_data(&mut client, transfer).await;
    assert_eq!(client.answered_with_sense().await.1, POWER_ON);
    assert_eq!((blocks(&first), blocks(&second)), ([0; 4], [0; 4]));
    assert_eq!(client.sense_of(&write(2), Some(vec![8; 512])).await, GOOD);
    assert_eq!((blocks(&first), blocks(&second)), ([0; 4], [0, 0, 8, 0]));
}

/// SAM-5 5.14: each is told of the power-on, until the initiator has acknowledged that it was told (ExpStatSN).
#[tokio::test]
async fn all_that_was_sent_before_the_initiator_knew_of_a_new_unit_is_refused() {
    let (first, second, mut client) = replaced(async |_| {}).await;
    // As many as are under way when the first of them is answered.
    for number in 0..4 {
        client.command(number, &write(number), Some(vec![7; 512]), 512).await;
    }
    let identity = [0x12, 0, 0, 0, 36, 0];
    client.command(4, &identity, None, 36).await;
    for _ in 0..3 {
        assert_eq!(client.answered_with_sense().await.1, POWER_ON);
    }
    client.acknowledge().await;
    client.acknowledge().await;
    assert_eq!((blocks(&first), blocks(&second)), ([0; 4], [0; 4]));
    assert_eq!(client.sense_of(&write(3), Some(vec![8; 512])).await, GOOD);
    assert_eq!(blocks(&second), [0, 0, 0, 8]);
    // From then on it is a unit like any other.
    client.exp_stat_sn = Serial32(0);
    assert_eq!(client.sense_of(&write(2), Some(vec![9; 512])).await, GOOD);
    assert_eq!(blocks(&second), [0, 0, 9, 8]);
}

/// What the initiator knows of the second unit says nothing of the third.
#[tokio::test]
async fn what_was_sent_to_a_unit_that_came_is_not_carried_out_by_the_one_that_came_after_it() {
    let (server, mut client) = logged_in(disk("first").1).await;
    let mut disks = Vec::new();
    for serial in ["second", "third", "fourth"] {
        let (device, target) = disk(serial);
        replace(&server, target);
        for number in 0..3 {
            client.command(number, &write(number), Some(vec![7; 512]), 512).await;
        }
        for _ in 0..3 {
            let (stat_sn, sense) = client.answered_with_sense().await;
            assert_eq!(sense, POWER_ON, "{serial}");
            client.exp_stat_sn = stat_sn.next();
        }
        assert_eq!(client.sense_of(&write(3), Some(vec![8; 512])).await, GOOD);
        disks.push(device);
    }
    assert!(disks.iter().all(|device| blocks(device) == [0, 0, 0, 8]));
}

/// A reset is for the unit that hangs, and not for all that others do at the one that took its place.
#[tokio::test]
async fn a_unit_is_not_reset_because_of_the_one_before_it() {
    let (_, _, mut client) = replaced(async |_| {}).await;
    client.command(1, &[0; 6], None, 0).await;
    assert_eq!(client.answered_with_sense().await.1, POWER_ON);
    let reset = async |client: &mut Client<DuplexStream>| {
        manage(client, TaskManagementFunction::LogicalUnitReset).await;
        managed(client).await
    };
    assert_eq!(reset(&mut client).await, TaskManagementOutcome::LunDoesNotExist);
    client.command(1, &[0; 6], None, 0).await;
    client.acknowledge().await;
    assert_eq!(client.sense_of(&[0; 6], None).await, GOOD, "no reset has been reported");
    assert_eq!(reset(&mut client).await, TaskManagementOutcome::FunctionComplete);
}

/// Who is told that a function was not carried out waits for the commands that it was meant for.
#[tokio::test]
async fn a_write_is_answered_though_a_function_that_was_refused_was_meant_for_it() {
    use TaskManagementFunction::{AbortTaskSet, ClearTaskSet, LogicalUnitReset};
    for function in [AbortTaskSet, ClearTaskSet, LogicalUnitReset] {
        let (_, theirs) = disk("first");
        let server = TargetServer::new(vec![theirs], TargetServerOptions::default());
        let (mut client, _) = connect(&server);
        client.log_in(1).await;
        client.settle().await;
        let transfer = announce(&mut client).await;
        server.set_targets(vec![Target::new(NAME, LunMap::new())]);
        manage(&mut client, function).await;
        send_data(&mut client, Some(transfer)).await;
        assert_eq!(managed(&mut client).await, TaskManagementOutcome::LunDoesNotExist);
        assert_eq!(client.answered_with_sense().await.1, (5, 0x25, 0), "{function}");
    }
}

/// A host that goes round its LUNs is told once of each.
#[tokio::test]
async fn a_host_is_told_once_of_each_of_however_many_units_came() {
    let (device, theirs) = disk("first");
    let server = TargetServer::new(vec![theirs], TargetServerOptions::default());
    let (mut client, _) = connect(&server);
    client.log_in(1).await;
    client.settle().await;
    let luns = LunMap::new();
    for lun in 1..=300 {
        luns.insert(lun, LogicalUnit::new(Arc::clone(&device), LogicalUnitOptions::default()));
    }
    server.set_targets(vec![Target::new(NAME, luns)]);
    for expected in [POWER_ON, GOOD, GOOD] {
        for lun in 1..=300 {
            client.lun = u64::from_be_bytes(scsi::lun::encode(lun).expect("it is a LUN"));
            assert_eq!(client.sense_of(&[0; 6], None).await, expected, "LUN {lun}");
        }
    }
}
