//! SCSI commands: data both ways, residuals, failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::buffer::BufferPool;
use base::serial::Serial32;
use scsi::Cdb;

use super::super::*;
use super::peer::*;
use crate::pdu::*;

#[test]
fn a_read_ends_with_status_on_its_data() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    peer.read(0x10, 512);
    let command = peer.started();
    assert_eq!((command.lun, command.cdb, command.data_in_bytes_max), (0, Cdb::parse(&CDB_READ), 512));
    peer.complete(command.task, good(&pattern(512)));
    let pdu = peer.receive_one();
    assert_eq!(pdu.data.bytes(), pattern(512));
    let Ok(Bhs::DataIn(data)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
    let status = data.status.expect("status rides on the last data");
    assert_eq!((status.status, status.residual, status.stat_sn), (0, Residual::None, Serial32(1)));
    assert_eq!((data.exp_cmd_sn, data.max_cmd_sn), (Serial32(101), Serial32(228)));
    peer.complete(command.task, good(&[]));
    assert!(peer.receive().is_empty(), "a task ends once");
}

#[test]
fn long_data_is_cut_by_the_initiators_segment_and_burst() {
    let keys = [("MaxRecvDataSegmentLength", "4096"), ("MaxBurstLength", "10240"), ("FirstBurstLength", "10240")];
    let mut peer = Peer::logged_in(parameters(), &keys);
    peer.read(0x10, 24_000);
    let command = peer.started();
    peer.complete(command.task, good(&pattern(24_000)));
    let pdus = peer.receive();
    let mut whole = Vec::new();
    let mut shape = Vec::new();
    for (index, pdu) in pdus.iter().enumerate() {
        let Ok(Bhs::DataIn(data)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
        assert_eq!((data.buffer_offset as usize, data.data_sn), (whole.len(), Serial32(index as u32)));
        whole.extend_from_slice(pdu.data.bytes());
        shape.push((pdu.data.bytes().len(), data.is_final, data.status.is_some()));
    }
    assert_eq!(whole, pattern(24_000));
    let (more, end) = (false, true);
    assert_eq!(
        shape,
        [
            (4096, more, false),
            (4096, more, false),
            (2048, end, false),
            (4096, more, false),
            (4096, more, false),
            (2048, end, false),
            (3520, end, true),
        ]
    );
}

#[test]
fn residuals_tell_what_was_expected_and_what_came() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    for (expected, presented, sent, residual) in
        [(512, 36, 36, Residual::Underflow(476)), (512, 1000, 512, Residual::Overflow(488))]
    {
        peer.read(0x10, expected);
        let command = peer.started();
        peer.complete(command.task, good(&pattern(presented)));
        let pdu = peer.receive_one();
        let Ok(Bhs::DataIn(data)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
        assert_eq!(data.status.unwrap().residual, residual);
        assert_eq!(pdu.data.bytes(), &pattern(presented)[..sent]);
    }
    let command = peer.command(0x11, CDB_READ, Direction::None, 0);
    peer.send(&command, Vec::new());
    let command = peer.started();
    peer.complete(command.task, good(&pattern(512)));
    let Bhs::ScsiResponse(response) = peer.receive_bhs()[0] else { panic!("nothing may be sent as data") };
    assert_eq!(response.residual, Residual::Overflow(512));
}

#[test]
fn sense_data_comes_in_a_response() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    peer.read(0x10, 512);
    let command = peer.started();
    let mut sense = vec![0; 18];
    (sense[0], sense[2], sense[12]) = (0x70, 5, 0x20);
    peer.complete(command.task, Outcome { status: 2, sense: sense.clone(), ..Outcome::default() });
    let pdu = peer.receive_one();
    assert_eq!(failure_of(&pdu), (2, 0x20, 0));
    assert_eq!(pdu.data.bytes()[..2], [0, 18]);
    let Ok(Bhs::ScsiResponse(response)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
    assert_eq!((response.residual, response.exp_data_sn), (Residual::Underflow(512), Serial32(0)));
}

#[test]
fn immediate_data_starts_a_command_at_once() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    let command = peer.command(0x10, cdb_write(512), Direction::Write, 512);
    peer.send(&command, pattern(512));
    let command = peer.started();
    assert_eq!(&command.data_out[..], pattern(512));
    peer.complete(command.task, Outcome::default());
    let Bhs::ScsiResponse(response) = peer.receive_bhs()[0] else { panic!("a response was expected") };
    assert_eq!(
        (response.response, response.residual),
        (ServiceResponse::CommandCompleted { status: 0 }, Residual::None)
    );
}

#[test]
fn unsolicited_data_then_bursts_in_order() {
    let keys =
        [("InitialR2T", "No"), ("FirstBurstLength", "1024"), ("MaxBurstLength", "2048"), ("MaxOutstandingR2T", "2")];
    let mut peer = Peer::logged_in(parameters(), &keys);
    let data = pattern(8000);
    let mut command = peer.command(0x10, cdb_write(8000), Direction::Write, 8000);
    command.is_final = false;
    peer.send(&command, data[..512].to_vec());
    peer.data_out(0x10, None, 512, 0, true, &data[512..1024]);
    let mut outstanding = r2ts(&peer.receive_bhs());
    assert_eq!(outstanding.iter().map(|r2t| (r2t.1, r2t.2)).collect::<Vec<_>>(), [(1024, 2048), (3072, 2048)]);
    let mut seen = Vec::new();
    while !outstanding.is_empty() {
        let (tag, offset, length) = outstanding.remove(0);
        seen.push((offset, length));
        let (start, middle, end) = (offset as usize, offset as usize + 100, (offset + length) as usize);
        peer.data_out(0x10, Some(tag), offset, 0, false, &data[start..middle]);
        assert!(peer.events.is_empty());
        peer.data_out(0x10, Some(tag), offset + 100, 1, true, &data[middle..end]);
        outstanding.extend(r2ts(&peer.receive_bhs()));
    }
    assert_eq!(seen, [(1024, 2048), (3072, 2048), (5120, 2048), (7168, 832)]);
    assert_eq!(&peer.started().data_out[..], data);
}

#[test]
fn no_more_is_asked_for_than_the_cdb_wants() {
    let mut peer = Peer::logged_in(parameters(), &[("ImmediateData", "No")]);
    let command = peer.command(0x10, cdb_write(512), Direction::Write, 1024);
    peer.send(&command, Vec::new());
    let (tag, offset, length) = r2ts(&peer.receive_bhs())[0];
    assert_eq!((offset, length), (0, 512));
    peer.data_out(0x10, Some(tag), 0, 0, true, &pattern(512));
    let command = peer.started();
    assert_eq!(command.data_out.len(), 512);
    peer.complete(command.task, Outcome::default());
    let Bhs::ScsiResponse(response) = peer.receive_bhs()[0] else { panic!("a response was expected") };
    assert_eq!(response.residual, Residual::Underflow(512));
}

#[test]
fn an_initiator_that_brings_less_than_the_cdb_wants_is_told() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    let command = peer.command(0x10, cdb_write(1024), Direction::Write, 512);
    peer.send(&command, pattern(512));
    let command = peer.started();
    assert_eq!(command.data_out.len(), 512);
    peer.complete(command.task, Outcome::default());
    let Bhs::ScsiResponse(response) = peer.receive_bhs()[0] else { panic!("a response was expected") };
    assert_eq!(response.residual, Residual::Overflow(512));
}

/// When its header comes, for the buffer of its data: not again when that data is there, nor for the residual.
#[test]
fn what_a_write_with_data_wants_is_found_out_once() {
    let asked = Arc::new(AtomicUsize::new(0));
    let mut parameters = parameters();
    let counted = Arc::clone(&asked);
    parameters.targets[0].data_out_of = Arc::new(move |_, cdb| {
        counted.fetch_add(1, Ordering::Relaxed);
        asked_data_out(cdb)
    });
    let mut peer = Peer::logged_in(parameters, &[]);
    for tag in 0x10..0x13 {
        let command = peer.command(tag, cdb_write(512), Direction::Write, 512);
        peer.send(&command, pattern(512));
        let command = peer.started();
        assert_eq!(command.cdb, Cdb::parse(&cdb_write(512)));
        peer.complete(command.task, Outcome::default());
        peer.receive_one();
    }
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

#[test]
fn data_that_was_not_agreed_on_fails_the_command() {
    let mut peer = Peer::logged_in(parameters(), &[("ImmediateData", "No")]);
    let command = peer.command(0x10, cdb_write(512), Direction::Write, 512);
    peer.send(&command, pattern(512));
    assert_eq!(failure_of(&peer.receive_one()), (2, 0x0c, 0x0c), "unexpected unsolicited data");
    let command = peer.command(0x11, cdb_write(512), Direction::Write, 512);
    peer.send(&command, Vec::new());
    let (tag, ..) = r2ts(&peer.receive_bhs())[0];
    peer.data_out(0x11, Some(tag), 0, 0, true, &pattern(256));
    assert_eq!(failure_of(&peer.receive_one()), (2, 0x0c, 0x0d), "incorrect amount of data");
    let command = peer.command(0x12, cdb_write(512), Direction::Write, 512);
    peer.send(&command, Vec::new());
    let (tag, ..) = r2ts(&peer.receive_bhs())[0];
    peer.data_out(0x12, Some(tag), 0, 27, true, &pattern(512));
    assert_eq!(failure_of(&peer.receive_one()), (2, 0x47, 0x05), "a PDU must have been lost");
    assert!(peer.events.is_empty(), "nothing was executed");
}

#[test]
fn data_for_another_place_ends_the_connection() {
    let mut peer = Peer::logged_in(parameters(), &[("ImmediateData", "No")]);
    let command = peer.command(0x10, cdb_write(512), Direction::Write, 512);
    peer.send(&command, Vec::new());
    let (tag, ..) = r2ts(&peer.receive_bhs())[0];
    peer.data_out(0x10, Some(tag), u32::MAX - 100, 0, true, &pattern(512));
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::ProtocolError);
    assert_eq!(peer.close_reason(), CloseReason::Protocol("Data-Out with a wrong buffer offset"));
}

#[test]
fn without_a_buffer_data_is_asked_for_later() {
    let mut parameters = parameters();
    parameters.pool = BufferPool::new(64 << 10);
    let mut peer = Peer::logged_in(parameters, &[]);
    let mut data = Vec::new();
    for tag in [0x10, 0x11] {
        let command = peer.command(tag, cdb_write(64 << 10), Direction::Write, 64 << 10);
        data = pattern(64 << 10);
        peer.send(&command, data[..512].to_vec());
    }
    let first = r2ts(&peer.receive_bhs());
    assert_eq!(first.len(), 1, "the second waits for a buffer");
    assert!(peer.target.poll_timeout().unwrap() < peer.now + Duration::from_secs(1), "and tries again soon");
    peer.data_out(0x10, Some(first[0].0), 512, 0, true, &data[512..]);
    let command = peer.started();
    assert_eq!(&command.data_out[..], data);
    peer.sleep(Duration::from_millis(5));
    assert!(peer.receive().is_empty());
    let task = command.task;
    drop(command);
    peer.complete(task, Outcome::default());
    let pdus = peer.receive_bhs();
    assert!(matches!(pdus[0], Bhs::ScsiResponse(_)));
    let second = r2ts(&pdus[1..]);
    peer.data_out(0x11, Some(second[0].0), 512, 0, true, &data[512..]);
    assert_eq!(&peer.started().data_out[..], data, "what came with the command is there, too");
}

/// Sends writes of 64 KiB without their data. Returns how many of them get an R2T.
fn write_and_count_r2ts(peer: &mut Peer, count: u32) -> usize {
    for tag in 0..count {
        let command = peer.command(0x10 + tag, cdb_write(64 << 10), Direction::Write, 64 << 10);
        peer.send(&command, Vec::new());
    }
    r2ts(&peer.receive_bhs()).len()
}

#[test]
fn a_session_asks_for_no_more_data_than_its_share() {
    let mut parameters = parameters();
    parameters.session_data_out_bytes = 256 << 10;
    let mut peer = Peer::logged_in(parameters, &[]);
    assert_eq!(write_and_count_r2ts(&mut peer, 8), 4);
}

/// Allocating it takes longer than all other work on a command, and many commands come at once.
#[test]
fn the_memory_for_data_is_made_when_the_data_comes() {
    let parameters = parameters();
    let pool = parameters.pool.clone();
    let mut peer = Peer::logged_in(parameters, &[]);
    assert_eq!(write_and_count_r2ts(&mut peer, 8), 8);
    assert!(pool.bytes_out() >= 8 * (64 << 10), "it counts");
    drop(peer);
    let again: Vec<_> = (0..8).filter_map(|_| pool.try_acquire_beside_others(64 << 10, 0)).collect();
    assert_eq!(again.iter().map(base::buffer::Buffer::made).collect::<Vec<_>>(), [0; 8]);
}

/// The second has less than its share, and yet the rest is not all its own: a third one may come.
#[test]
fn a_session_leaves_some_room_for_data_where_others_have_half_of_it() {
    let mut parameters = parameters();
    parameters.pool = BufferPool::new(1 << 20);
    let (mut first, mut second) = (Peer::logged_in(parameters.clone(), &[]), Peer::logged_in(parameters.clone(), &[]));
    assert_eq!(write_and_count_r2ts(&mut first, 10), 10);
    assert_eq!(write_and_count_r2ts(&mut second, 6), 3, "as much as is left then");
    assert_eq!(write_and_count_r2ts(&mut Peer::logged_in(parameters, &[]), 6), 1);
}

/// Data that a device returned in one large buffer waits in a small one if the initiator wants
/// little of it.
#[test]
fn little_data_does_not_wait_in_a_large_buffer() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    peer.read(0x10, 512);
    let command = peer.started();
    peer.complete(command.task, good(&pattern(1 << 20)));
    let Target::Session(session, at) = &peer.target else { panic!("it has logged in") };
    assert_eq!(session.data_bytes_held(*at), 4096);
    assert_eq!(peer.receive_one().data.bytes(), &pattern(1 << 20)[..512]);
}

/// RFC 7143 13.10, 13.11, 13.14: allowed unsolicited data. Each row: InitialR2T, ImmediateData,
/// immediate bytes, unsolicited bytes after them, and the result for a write of 4096 bytes with
/// FirstBurstLength 1024.
#[test]
fn first_bursts_are_what_was_agreed() {
    #[derive(Debug, PartialEq)]
    enum Then {
        /// The rest is requested from this byte on.
        AskedFrom(u32),
        /// The command fails with this additional sense code.
        Fails(u8, u8),
        /// More than was negotiated: a protocol error, which ends the connection (RFC 7143 7.13).
        Closes,
    }
    use Then::{AskedFrom, Closes, Fails};
    for (initial_r2t, immediate_data, immediate, unsolicited, then) in [
        ("Yes", "No", 0, 0, AskedFrom(0)),
        ("Yes", "Yes", 0, 0, AskedFrom(0)),
        ("Yes", "Yes", 512, 0, AskedFrom(512)),
        ("Yes", "Yes", 1024, 0, AskedFrom(1024)),
        ("Yes", "Yes", 1536, 0, Fails(0x0c, 0x0c)),
        ("Yes", "No", 512, 0, Fails(0x0c, 0x0c)),
        ("No", "Yes", 512, 512, AskedFrom(1024)),
        ("No", "Yes", 512, 256, Fails(0x0c, 0x0d)),
        ("No", "Yes", 0, 1024, AskedFrom(1024)),
        ("No", "Yes", 1024, 0, AskedFrom(1024)),
        ("No", "No", 0, 1024, AskedFrom(1024)),
        ("No", "No", 0, 0, AskedFrom(0)),
        ("No", "No", 512, 0, Fails(0x0c, 0x0c)),
        ("No", "No", 0, 512, Fails(0x0c, 0x0d)),
        ("No", "No", 0, 1536, Closes),
        ("No", "Yes", 512, 1024, Closes),
    ] {
        let row = format!("InitialR2T={initial_r2t} ImmediateData={immediate_data} {immediate}+{unsolicited}");
        let keys = [("InitialR2T", initial_r2t), ("ImmediateData", immediate_data), ("FirstBurstLength", "1024")];
        let mut peer = Peer::logged_in(parameters(), &keys);
        let data = pattern(4096);
        let mut command = peer.command(0x10, cdb_write(4096), Direction::Write, 4096);
        command.is_final = unsolicited == 0;
        peer.send(&command, data[..immediate].to_vec());
        if unsolicited > 0 {
            let bytes = &data[immediate..immediate + unsolicited];
            peer.data_out(0x10, None, immediate as u32, 0, true, bytes);
        }
        let pdu = peer.receive_one();
        let found = match pdu.header.bhs {
            Ok(Bhs::ReadyToTransfer(r2t)) => AskedFrom(r2t.buffer_offset),
            Ok(Bhs::Reject(_)) => Closes,
            _ => {
                let (_, asc, ascq) = failure_of(&pdu);
                Fails(asc, ascq)
            }
        };
        assert_eq!(found, then, "{row}");
        assert!(!peer.events.iter().any(|event| matches!(event, Event::Command(_))), "{row}: nothing was executed");
        assert_eq!(peer.target.is_closed(), then == Closes, "{row}");
    }
}

#[test]
fn acknowledgements_tell_how_many_commands_are_in_flight() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    for (acknowledged, in_flight) in [(1, 1), (2, 1), (2, 2), (2, 3), (5, 1)] {
        let mut command = peer.command(0x10, CDB_READ, Direction::Read, 512);
        command.exp_stat_sn = Serial32(acknowledged);
        peer.send(&command, Vec::new());
        let started = peer.started();
        peer.complete(started.task, good(&pattern(512)));
        peer.receive();
        let Target::Session(session, at) = &peer.target else { panic!("the login is over") };
        assert_eq!(session.unacknowledged_responses(*at), in_flight, "{acknowledged}");
    }
}

/// Data without a buffer is missing, and later data gets none either, though there is room by then.
#[test]
fn data_behind_what_had_no_buffer_ends_nothing_but_its_command() {
    let mut parameters = parameters();
    parameters.pool = BufferPool::new(1 << 20);
    let pool = parameters.pool.clone();
    let keys = [("InitialR2T", "No"), ("FirstBurstLength", "262144"), ("MaxBurstLength", "262144")];
    let mut peer = Peer::logged_in(parameters, &keys);
    let others = pool.try_acquire(1 << 20).expect("all of it");
    let data = pattern(256 << 10);
    let mut command = peer.command(0x10, cdb_write(256 << 10), Direction::Write, 256 << 10);
    command.is_final = false;
    peer.send(&command, data[..8 << 10].to_vec());
    peer.data_out(0x10, None, 8 << 10, 0, false, &data[8 << 10..72 << 10]);
    drop(others);
    peer.data_out(0x10, None, 72 << 10, 1, false, &data[72 << 10..136 << 10]);
    peer.data_out(0x10, None, 136 << 10, 2, false, &data[136 << 10..200 << 10]);
    peer.data_out(0x10, None, 200 << 10, 3, true, &data[200 << 10..]);
    let Bhs::ScsiResponse(response) = peer.receive_bhs()[0] else { panic!("a response was expected") };
    assert_eq!(response.response, ServiceResponse::CommandCompleted { status: 8 });
}
