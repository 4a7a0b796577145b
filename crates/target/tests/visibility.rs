//! What an initiator can find and reach: portal groups, discovery, LUN masks, and commands that
//! could bypass them.

use std::sync::Arc;

use base::buffer::BufferPool;
use base::serial::Serial32;
use block::Identity;
use block::memory::MemoryDevice;
use iscsi::chap::{Credentials, Secret};
use iscsi::limits::NEWS_MAX;
use iscsi::pdu::*;
use iscsi::target::{AccessRule, Authentication, NamePattern, TargetPortal};
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap, NexusId};
use scsi::extended_copy::{Segment, emit_list};
use target::{LunMask, MaskedLun, Target, TargetServer, TargetServerOptions};
use tokio::io::{AsyncRead, AsyncWrite};

mod support;
use support::*;

fn in_group(group: u16, address: &str) -> TargetPortal {
    TargetPortal { address: address.parse().expect("it is an address"), group }
}

fn named(name: &str, portal_groups: Option<Vec<u16>>) -> Target {
    let target = ram_target(&BufferPool::new(READ_BUFFERS_BYTES));
    Target { name: name.to_owned(), portal_groups, ..target }
}

/// RFC 7143 4.2.6, 11.13.5: a session stays in one portal group.
#[tokio::test]
async fn a_connection_through_another_portal_group_cannot_be_included() {
    let portals = vec![in_group(1, "127.0.0.1:0"), in_group(1, "[::1]:0"), in_group(2, "127.0.0.1:0")];
    let options = TargetServerOptions { portals, shards: 1, ..Default::default() };
    let server = TargetServer::new(vec![named(NAME, None)], options);
    let listening = Listening::start(&server);
    let mut first = listening.connect(0).await;
    let keys = [("TargetName", NAME), ("MaxConnections", "4")];
    let tsih = first.try_log_in(1, 0, &keys).await.tsih;
    let mut second = listening.connect(1).await;
    second.cid = 1;
    assert_eq!(second.try_log_in(1, tsih, &keys).await.status, LoginStatus::SUCCESS, "another portal of the group");
    let mut third = listening.connect(2).await;
    third.cid = 2;
    assert_eq!(third.try_log_in(1, tsih, &keys).await.status, LoginStatus::CANNOT_INCLUDE_IN_SESSION);
    assert!(third.receive().await.is_none());
    let mut stranger = listening.connect(0).await;
    (stranger.cid, stranger.initiator_name) = (3, "iqn.2026-01.io.example:stranger");
    let status = stranger.try_log_in(1, tsih, &keys).await.status;
    assert_eq!(status, LoginStatus::SESSION_DOES_NOT_EXIST, "to others it is not there");
    // Without the TSIH it is a session of its own, and the first goes on: the same ISID in another
    // group is another nexus.
    let mut fourth = listening.connect(2).await;
    assert_ne!(fourth.log_in(1).await.tsih, tsih);
    first.settle().await;
    drop((first, second, third, fourth));
    listening.stop().await;
}

/// All that a discovery session receives, in lines.
async fn discovered<S: AsyncRead + AsyncWrite + Unpin>(client: &mut Client<S>, asked: &str) -> Vec<String> {
    let request = TextRequest {
        is_immediate: true,
        is_final: true,
        is_continued: false,
        lun: 0,
        initiator_task_tag: tag(2),
        target_transfer_tag: None,
        cmd_sn: client.cmd_sn,
        exp_stat_sn: Serial32(0),
    };
    client.send(&request, format!("SendTargets={asked}\0").into_bytes()).await;
    let pdu = client.receive().await.expect("the target answers");
    assert!(matches!(pdu.header.bhs, Ok(Bhs::TextResponse(_))), "{:?}", pdu.header.bhs);
    let text = String::from_utf8(pdu.data.bytes().to_vec()).expect("it is text");
    text.split_terminator('\0').map(str::to_owned).collect()
}

/// RFC 7143 appendix C: each target with all portals of its groups and their tags, whichever portal
/// is asked; a wildcard is replaced by the address that the initiator reached, where that has its
/// family.
#[tokio::test]
async fn discovery_tells_the_portals_of_each_targets_groups() {
    let portals =
        vec![in_group(1, "127.0.0.1:0"), in_group(1, "[::1]:0"), in_group(2, "127.0.0.1:0"), in_group(3, "0.0.0.0:0")];
    let names = ["a", "b", "c"].map(|last| format!("iqn.2026-01.io.example:{last}"));
    let targets = vec![named(&names[0], Some(vec![1])), named(&names[1], Some(vec![2, 3])), named(&names[2], None)];
    let server = TargetServer::new(targets, TargetServerOptions { portals, shards: 1, ..Default::default() });
    let listening = Listening::start(&server);
    let at = |portal: usize, group: u16| format!("TargetAddress={},{group}", listening.addresses[portal]);
    let wild = format!("TargetAddress=127.0.0.1:{},3", listening.addresses[3].port());
    let expected = |wild: &[String]| {
        let mut lines = vec![format!("TargetName={}", names[0]), at(0, 1), at(1, 1)];
        lines.extend([format!("TargetName={}", names[1]), at(2, 2)]);
        lines.extend_from_slice(wild);
        lines.extend([format!("TargetName={}", names[2]), at(0, 1), at(1, 1), at(2, 2)]);
        lines.extend_from_slice(wild);
        lines
    };
    for (portal, wild) in [(0, vec![wild.clone()]), (2, vec![wild.clone()]), (1, Vec::new())] {
        let mut client = listening.connect(portal).await;
        assert!(client.try_log_in(1, 0, &[("SessionType", "Discovery")]).await.status.is_success());
        assert_eq!(discovered(&mut client, "All").await, expected(&wild), "through portal {portal}");
        let own: Vec<String> = expected(&wild).into_iter().take(3).collect();
        assert_eq!(discovered(&mut client, &names[0]).await, own, "one by its name");
    }
    // A normal session asks for its own target alone.
    let mut client = listening.connect(2).await;
    let name = names[1].as_str();
    assert!(client.try_log_in(1, 0, &[("TargetName", name)]).await.status.is_success());
    let lines = [format!("TargetName={name}"), at(2, 2), wild];
    assert_eq!(discovered(&mut client, "").await, lines);
    drop(client);
    listening.stop().await;
}

#[tokio::test]
async fn who_may_discover_changes_while_serving() {
    let server = TargetServer::new(vec![named(NAME, None)], TargetServerOptions::default());
    let keys = [("SessionType", "Discovery")];
    let status_of = async || connect(&server).0.try_log_in(1, 0, &keys).await.status;
    assert_eq!(status_of().await, LoginStatus::SUCCESS);
    let secret = Secret::new("alice's secret words").expect("it is long enough");
    let accounts = vec![Credentials { name: "alice".to_owned(), secret }];
    server.set_discovery_authentication(Authentication { accounts, own: None });
    assert_eq!(status_of().await, LoginStatus::AUTHENTICATION_FAILURE, "who offers no proof");
    let (mut normal, _) = connect(&server);
    normal.log_in(1).await;
    server.set_discovery_authentication(Authentication::default());
    assert_eq!(status_of().await, LoginStatus::SUCCESS);
    normal.settle().await;
}

/// The NAA name of a logical unit (VPD 83h), read by its owner.
fn naa(luns: &LunMap, lun: u64) -> u64 {
    let owner = NexusId::new("the owner,i,0x1,target,t,0x1");
    luns.add_nexus(&owner);
    let command = logical_unit::Command {
        cdb: scsi::Cdb::parse(&[0x12, 1, 0x83, 0x10, 0, 0]),
        data_out: base::buffer::Buffer::empty(),
        data_in_bytes_max: 4096,
        attribute: scsi::TaskAttribute::Simple,
        task_tag: 1,
    };
    let outcome = luns.execute(&owner, lun, command).try_take().expect("it waits for nothing");
    luns.remove_nexus(&owner);
    let names = scsi::vpd::parse_device_identification(&outcome.data_in).expect("it is such a page");
    let naa = names.iter().find_map(|name| match name {
        scsi::vpd::Designator::Naa(name) => Some(*name),
        _ => None,
    });
    naa.expect("every unit has one")
}

/// Three units.
fn three_units() -> Target {
    let luns = LunMap::new();
    for lun in 0..3 {
        let identity = Identity { target: NAME.to_owned(), unit: lun.to_string(), serial: format!("serial {lun}") };
        let device = Arc::new(MemoryDevice::new(1 << 20, identity));
        luns.insert(lun, LogicalUnit::new(device, LogicalUnitOptions::default()));
    }
    Target::new(NAME, luns)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// EXTENDED COPY of a block from one of `names` to the other, sent to LUN 0.
    async fn copy(&mut self, names: [u64; 2]) -> (u8, u8, u8) {
        let segment = Segment { source: 0, destination: 1, block_count: 1, source_lba: 0, destination_lba: 0 };
        let list = emit_list(None, &names.map(|name| (name, 512)), &[segment]);
        let mut cdb = [0; 16];
        cdb[0] = 0x83;
        cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
        self.sense_of(&cdb, Some(list)).await
    }

    async fn reported_luns(&mut self, select_report: u8) -> Vec<u8> {
        let mut cdb = [0; 16];
        (cdb[0], cdb[2], cdb[9]) = (0xa0, select_report, 128);
        self.command(43, &cdb, None, 128).await;
        let pdu = self.receive().await.expect("REPORT LUNS is answered");
        pdu.data.bytes()[8..].chunks(8).map(|lun| lun[1]).collect()
    }
}

const UNREACHABLE: (u8, u8, u8) = (0x0a, 0x08, 0x04);
const PROTECTED: (u8, u8, u8) = (7, 0x27, 0);

/// A masked unit does not exist for any command, and a read-only one is not written by a copy,
/// either.
#[tokio::test]
async fn a_mask_holds_for_copies_and_reports() {
    let mut target = three_units();
    let names = [0, 1, 2].map(|lun| naa(&target.luns, lun));
    let initiators = vec![NamePattern::new(HOST)];
    target.access.0 = vec![
        AccessRule { initiators, accounts: Vec::new() },
        AccessRule { initiators: vec![NamePattern::new("*")], accounts: Vec::new() },
    ];
    let seen = |lun, of, is_read_only| MaskedLun { lun, of, is_read_only };
    target.masks = vec![
        LunMask { luns: Some(vec![seen(0, 0, false), seen(5, 1, true)]), is_read_only: false },
        LunMask::default(),
    ];
    let server = TargetServer::new(vec![target.clone()], TargetServerOptions::default());
    let (mut owner, _) = connect(&server);
    owner.initiator_name = "iqn.2026-01.io.example:owner";
    owner.log_in(2).await;
    owner.settle().await;
    let (mut client, _) = connect(&server);
    client.log_in(1).await;
    client.settle().await;
    for (select_report, expected) in [(0, vec![0, 5]), (1, Vec::new()), (2, vec![0, 5])] {
        assert_eq!(client.reported_luns(select_report).await, expected, "SELECT REPORT {select_report}");
    }
    assert_eq!(owner.reported_luns(0).await, [0, 1, 2]);
    assert_eq!(client.copy([names[2], names[0]]).await, UNREACHABLE, "hidden, as source");
    assert_eq!(client.copy([names[0], names[2]]).await, UNREACHABLE, "hidden, as destination");
    assert_eq!(client.copy([names[0], names[1]]).await, PROTECTED, "only to be read");
    assert_eq!(client.copy([names[1], names[0]]).await, (0, 0, 0));
    assert_eq!(owner.copy([names[0], names[2]]).await, (0, 0, 0), "to others it is there");
}

/// The targets are made again at every reload, with units that go on: copies reach what the session
/// sees then.
#[tokio::test]
async fn copies_reach_what_a_reload_left_and_brought() {
    let first = three_units();
    let names = [0, 1, 2].map(|lun| naa(&first.luns, lun));
    let of = |luns: &[u64]| {
        let again = LunMap::new();
        luns.iter().for_each(|&lun| again.insert(lun, first.luns.get(lun).expect("it is there")));
        Target::new(NAME, again)
    };
    let server = TargetServer::new(vec![of(&[0, 1])], TargetServerOptions::default());
    let (mut client, _) = connect(&server);
    client.log_in(1).await;
    client.settle().await;
    assert_eq!(client.copy([names[0], names[1]]).await, (0, 0, 0));
    assert_eq!(client.copy([names[0], names[2]]).await, UNREACHABLE);
    server.set_targets(vec![of(&[0, 2])]);
    client.settle().await;
    assert_eq!(client.copy([names[0], names[2]]).await, (6, 0x3f, 0x0e), "it may not know yet what came");
    assert_eq!(client.copy([names[0], names[2]]).await, (0, 0, 0));
    assert_eq!(client.copy([names[0], names[1]]).await, UNREACHABLE);
}

/// More units than a session remembers news of: a copy is refused once, however many came.
#[tokio::test]
async fn a_copy_is_told_once_of_however_many_units_came() {
    let first = three_units();
    let names = [0, 1].map(|lun| naa(&first.luns, lun));
    let server = TargetServer::new(vec![first.clone()], TargetServerOptions::default());
    let (mut client, _) = connect(&server);
    client.log_in(1).await;
    client.settle().await;
    let with_more = |count: u64, from: u64| {
        let again = LunMap::new();
        (0..3).for_each(|lun| again.insert(lun, first.luns.get(lun).expect("it is there")));
        (0..count).for_each(|lun| {
            let identity = Identity { target: NAME.to_owned(), unit: format!("{}", from + lun), serial: String::new() };
            let device = Arc::new(MemoryDevice::new(1 << 16, identity));
            again.insert(3 + lun, LogicalUnit::new(device, LogicalUnitOptions::default()));
        });
        Target::new(NAME, again)
    };
    let changed = (6, 0x3f, 0x0e);
    server.set_targets(vec![with_more(NEWS_MAX as u64 + 1, 3)]);
    client.settle().await;
    assert_eq!(client.copy(names).await, changed);
    assert_eq!(client.copy(names).await, (0, 0, 0));
    // Others in their places.
    server.set_targets(vec![with_more(NEWS_MAX as u64 + 1, 1000)]);
    client.settle().await;
    assert_eq!(client.copy(names).await, changed);
    assert_eq!(client.copy(names).await, (0, 0, 0));
    assert_eq!(client.copy(names).await, (0, 0, 0));
}
