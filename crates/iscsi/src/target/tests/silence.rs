//! Peers that stop in the middle of an exchange hold their resources for as long as a ping takes to
//! fail, and no longer.

use std::time::Duration;

use super::super::*;
use super::peer::*;
use crate::framing::{DataSegment, TransmitQueue};
use crate::pdu::*;

/// Longer than a ping and its timeout.
const LONG: Duration = Duration::from_secs(600);

/// Lets time pass in steps until the session is over.
fn wait_for_the_end(peer: &mut Peer) -> CloseReason {
    let end = peer.now + LONG;
    while !peer.target.is_closed() {
        assert!(peer.now < end, "a silent peer holds its session for ever");
        peer.sleep(Duration::from_secs(1));
    }
    peer.close_reason()
}

/// Bytes of one Data-Out that answers `transfer`.
fn data_out_bytes(transfer: u32, length: usize) -> Vec<u8> {
    let header = DataOut {
        is_final: true,
        lun: 0,
        initiator_task_tag: itt(0x10),
        target_transfer_tag: TargetTransferTag::new(transfer),
        exp_stat_sn: base::serial::Serial32(0),
        data_sn: base::serial::Serial32(0),
        buffer_offset: 0,
    };
    let mut queue = TransmitQueue::new(Default::default());
    queue.push(&header, &AdditionalHeaders::default(), DataSegment::from(pattern(length)));
    drain(&mut queue)
}

#[test]
fn a_peer_that_stops_in_the_middle_of_a_data_out_is_given_up() {
    for cut in [1, 47, 48, 60, 2000] {
        let mut peer = Peer::logged_in(parameters(), &[("InitialR2T", "Yes"), ("ImmediateData", "No")]);
        let write = peer.command(0x10, cdb_write(4096), Direction::Write, 4096);
        peer.send(&write, Vec::new());
        let [(transfer, _, length)] = r2ts(&peer.receive_bhs())[..] else { panic!("one R2T") };
        let bytes = data_out_bytes(transfer, length as usize);
        peer.send_bytes(&bytes[..cut]);
        assert_eq!(wait_for_the_end(&mut peer), CloseReason::PingTimeout, "after {cut} bytes");
        assert!(peer.events.iter().all(|event| !matches!(event, Event::Command(_))), "nothing was executed");
    }
}

#[test]
fn a_peer_that_does_not_answer_its_r2ts_is_given_up_with_its_tasks() {
    let mut peer = Peer::logged_in(parameters(), &[("InitialR2T", "Yes"), ("ImmediateData", "No")]);
    for tag in 0x10..0x20 {
        let write = peer.command(tag, cdb_write(4096), Direction::Write, 4096);
        peer.send(&write, Vec::new());
    }
    assert!(!peer.receive().is_empty(), "R2Ts");
    assert_eq!(wait_for_the_end(&mut peer), CloseReason::PingTimeout);
}

/// PDUs without data are a sign of life, and no data.
#[test]
fn a_peer_that_sends_data_out_without_data_holds_its_buffers_no_longer_than_a_silent_one() {
    let mut peer = Peer::logged_in(parameters(), &[("InitialR2T", "Yes"), ("ImmediateData", "No")]);
    let write = peer.command(0x10, cdb_write(4096), Direction::Write, 4096);
    peer.send(&write, Vec::new());
    let [(transfer, ..)] = r2ts(&peer.receive_bhs())[..] else { panic!("one R2T") };
    let end = peer.now + LONG;
    let mut data_sn = 0;
    while !peer.target.is_closed() {
        assert!(peer.now < end, "empty Data-Out holds a buffer for ever");
        peer.data_out(0x10, Some(transfer), 0, data_sn, false, &[]);
        data_sn += 1;
        peer.sleep(Duration::from_secs(1));
    }
    assert_eq!(peer.close_reason(), CloseReason::Protocol("the data of a write does not come"));
}

/// Data of other commands does not count for it.
#[test]
fn a_command_whose_data_does_not_come_ends_its_connection_however_much_comes_for_others() {
    let mut peer = Peer::logged_in(parameters(), &[("InitialR2T", "Yes"), ("ImmediateData", "No")]);
    let forgotten = peer.command(0x10, cdb_write(4096), Direction::Write, 4096);
    peer.send(&forgotten, Vec::new());
    assert_eq!(r2ts(&peer.receive_bhs()).len(), 1);
    let end = peer.now + 2 * LONG;
    while !peer.target.is_closed() {
        assert!(peer.now < end, "it holds its buffer for ever");
        let write = peer.command(0x20, cdb_write(64 << 10), Direction::Write, 64 << 10);
        peer.send(&write, Vec::new());
        let [(transfer, ..)] = r2ts(&peer.receive_bhs())[..] else { panic!("one R2T") };
        peer.data_out(0x20, Some(transfer), 0, 0, true, &pattern(64 << 10));
        let task = peer.started().task;
        peer.complete(task, Outcome::default());
        assert!(matches!(peer.receive_bhs()[..], [Bhs::ScsiResponse(_)]));
        peer.sleep(Duration::from_secs(10));
    }
    assert_eq!(peer.close_reason(), CloseReason::Protocol("the data of a write does not come"));
}

#[test]
fn a_text_negotiation_held_open_ends_with_its_silent_peer() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    let request = TextRequest {
        is_immediate: true,
        is_final: false,
        is_continued: true,
        lun: 0,
        initiator_task_tag: itt(0x30),
        target_transfer_tag: None,
        cmd_sn: peer.cmd_sn,
        exp_stat_sn: base::serial::Serial32(0),
    };
    peer.send(&request, b"SendTar".to_vec());
    assert_eq!(wait_for_the_end(&mut peer), CloseReason::PingTimeout);
}
