//! Pings, rejects, logout, digests.

use base::serial::Serial32;

use super::super::*;
use super::peer::*;
use crate::framing::{DataSegment, FramingError};
use crate::limits::{
    PACE_INTERVAL, PACE_WORK_MAX, REQUEST_DATA_POOL_BYTES, TEXT_REQUEST_BYTES_MAX, TEXT_REQUEST_KEYS_MAX,
};
use crate::pdu::*;
use crate::text::Keys;

fn nop_out(tag: Option<u32>, transfer: Option<TargetTransferTag>) -> NopOut {
    NopOut {
        is_immediate: true,
        lun: 0,
        initiator_task_tag: tag.map(itt),
        target_transfer_tag: transfer,
        cmd_sn: Serial32(100),
        exp_stat_sn: Serial32(0),
    }
}

#[test]
fn pings_are_echoed() {
    let mut peer = Peer::logged_in(parameters(), &[("MaxRecvDataSegmentLength", "512")]);
    peer.send(&nop_out(Some(0x20), None), pattern(1000));
    let pdu = peer.receive_one();
    let Ok(Bhs::NopIn(echo)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
    assert_eq!((echo.initiator_task_tag, echo.target_transfer_tag), (Some(itt(0x20)), None));
    assert_eq!(pdu.data.bytes(), &pattern(1000)[..512], "as much as the initiator takes");
    peer.send(&nop_out(None, None), Vec::new());
    assert!(peer.receive().is_empty());
}

/// Allocating memory for a large ping takes longer than receiving it.
#[test]
fn pings_use_their_buffers_again() {
    let parameters = parameters();
    let pool = parameters.request_data.clone();
    let mut peer = Peer::logged_in(parameters, &[("MaxRecvDataSegmentLength", "65536")]);
    for _ in 0..3 {
        peer.send(&nop_out(Some(0x20), None), pattern(50_000));
        assert_eq!(pool.bytes_out(), 65_536);
        assert_eq!(peer.receive_one().data.bytes(), pattern(50_000));
        assert_eq!(pool.bytes_out(), 0);
    }
}

/// What is beyond has memory of its own, and is echoed like others.
#[test]
fn pings_have_so_many_buffers_that_are_used_again() {
    /// Of one connection: so few that it is itself far from what it may have waiting.
    const PINGS: usize = 8;
    const PING_BYTES: usize = 64 << 10;
    let parameters = parameters();
    let pool = parameters.request_data.clone();
    let keys = [("MaxRecvDataSegmentLength", "65536")];
    let data = pattern(PING_BYTES);
    let peers = REQUEST_DATA_POOL_BYTES / (PINGS * PING_BYTES) + 2;
    let mut peers: Vec<Peer> = (0..peers).map(|_| Peer::logged_in(parameters.clone(), &keys)).collect();
    for peer in &mut peers {
        for _ in 0..PINGS {
            peer.send(&nop_out(Some(0x20), None), data.clone());
        }
    }
    assert_eq!(pool.bytes_out(), REQUEST_DATA_POOL_BYTES);
    for peer in &mut peers {
        let echoes = peer.receive();
        assert_eq!(echoes.len(), PINGS);
        assert!(echoes.iter().all(|echo| echo.data.bytes() == data));
    }
    assert_eq!(pool.bytes_out(), 0);
}

/// A peer can make one transmission long: other sessions have their turn between two portions of
/// it.
#[test]
fn what_comes_at_once_is_looked_at_in_portions() {
    const PINGS: usize = 1000;
    let long_key = [b"X-", &[b'y'; 2000][..], b"=\0"].concat();
    let many_keys = (0..TEXT_REQUEST_KEYS_MAX).map(|number| (format!("X{number}"), "")).collect::<Keys>().emit();
    let texts = |count: u32, text: &[u8]| {
        let mut queue = crate::framing::TransmitQueue::new(crate::framing::Digests::default());
        for number in 0..count {
            let request = TextRequest {
                is_immediate: true,
                is_final: true,
                is_continued: false,
                lun: 0,
                initiator_task_tag: itt(number),
                target_transfer_tag: None,
                cmd_sn: Serial32(100),
                exp_stat_sn: Serial32(0),
            };
            queue.push(&request, &AdditionalHeaders::default(), DataSegment::from(text.to_vec()));
        }
        drain(&mut queue)
    };
    let pings = nop_out(None, None).to_bytes().repeat(PINGS);
    for (bytes, count) in [(pings, PINGS as u64), (texts(30, &long_key), 30), (texts(30, &many_keys), 30)] {
        let mut peer = Peer::logged_in(parameters(), &[]);
        let (before, _) = peer.target.session().pdu_counts();
        peer.target.receive_space()[..bytes.len()].copy_from_slice(&bytes);
        peer.target.handle_received(peer.now, bytes.len());
        let received = |peer: &mut Peer| peer.target.session().pdu_counts().0 - before;
        let mut portions = 1;
        assert!(received(&mut peer) <= count.div_ceil(4), "{} of {count} at once", received(&mut peer));
        while peer.go_on() {
            portions += 1;
        }
        assert_eq!(received(&mut peer), count);
        assert!(portions >= 4, "{portions} portions");
    }
}

/// Sends a PDU repeatedly until the connection rests. Checks that it does so in time, and goes on.
fn flood(peer: &mut Peer, pdu: &[u8]) {
    let begun = peer.now;
    let received = |peer: &mut Peer| peer.target.session().pdu_counts().0 as usize;
    let before = received(peer);
    while !peer.target.receive_space().is_empty() {
        let space = peer.target.receive_space();
        let length = space.len().min(pdu.len() * 100) / pdu.len() * pdu.len();
        assert!(length > 0, "there is room for one");
        space[..length].chunks_exact_mut(pdu.len()).for_each(|place| place.copy_from_slice(pdu));
        peer.target.handle_received(begun, length);
        while peer.target.go_on(begun) {}
        assert!(received(peer) - before <= PACE_WORK_MAX, "it goes on and on");
    }
    let first = received(peer) - before;
    let until = begun + PACE_INTERVAL;
    assert_eq!(peer.target.poll_timeout(), Some(until), "it rests");
    peer.now = until;
    peer.target.handle_timeout(until);
    assert!(!peer.target.receive_space().is_empty() || received(peer) - before > first, "and goes on");
}

/// PDUs without useful work take a small part of the time, however fast they come.
#[test]
fn what_is_no_command_is_looked_at_so_much_in_a_time() {
    let mut unknown = [0; BHS_BYTES];
    unknown[0] = 0x1d;
    let pings = nop_out(None, None).to_bytes();
    let (mut of_no_task, mut outside_the_window) = ([0; BHS_BYTES], [0; BHS_BYTES]);
    (of_no_task[0], of_no_task[1], of_no_task[19]) = (0x05, 0x80, 9);
    of_no_task[20..24].fill(0xff);
    (outside_the_window[0], outside_the_window[1], outside_the_window[24]) = (0x01, 0x80, 0x40);
    for pdu in [unknown, pings, of_no_task, outside_the_window] {
        flood(&mut Peer::logged_in(parameters(), &[]), &pdu);
    }
}

/// The same for useless Data-Out of a command that waits for data: without data, unsolicited,
/// repeated, or after lost data.
#[test]
fn data_out_that_brings_nothing_is_looked_at_so_much_in_a_time() {
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No"), ("ErrorRecoveryLevel", "1")];
    for (keys, is_asked_for, bytes, data_sn) in
        [(&keys[..2], true, 0, 0), (&keys[..2], false, 0, 0), (&keys, true, 16, 0), (&keys, true, 16, 5)]
    {
        let mut peer = Peer::logged_in(parameters(), keys);
        let write = peer.command(0x10, cdb_write(4096), Direction::Write, 4096);
        peer.send(&write, Vec::new());
        let [(transfer, ..)] = r2ts(&peer.receive_bhs())[..] else { panic!("one R2T") };
        let mut pdu = vec![0; BHS_BYTES + bytes];
        (pdu[0], pdu[7], pdu[19], pdu[39]) = (0x05, bytes as u8, 0x10, data_sn);
        pdu[20..24].copy_from_slice(&if is_asked_for { transfer } else { u32::MAX }.to_be_bytes());
        // The first may bring data, or show that some was lost.
        peer.send_bytes(&pdu);
        flood(&mut peer, &pdu);
    }
}

#[test]
fn silence_is_pinged_and_then_ends_the_connection() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    for _ in 0..2 {
        let deadline = peer.target.poll_timeout().expect("it pings");
        peer.sleep(deadline - peer.now);
        let Bhs::NopIn(ping) = peer.receive_bhs()[0] else { panic!("a ping") };
        assert!(ping.target_transfer_tag.is_some() && ping.initiator_task_tag.is_none());
        peer.send(&nop_out(None, ping.target_transfer_tag), Vec::new());
    }
    peer.sleep(crate::limits::PING_INTERVAL);
    peer.sleep(crate::limits::PING_TIMEOUT);
    assert_eq!(peer.close_reason(), CloseReason::PingTimeout);
}

/// A ping waits behind queued data: while the initiator takes that, it is alive.
#[test]
fn a_slow_initiator_is_not_a_dead_one() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    peer.read(0x10, 1 << 20);
    let command = peer.started();
    peer.complete(command.task, good(&pattern(1 << 20)));
    for _ in 0..20 {
        peer.sleep(crate::limits::PING_INTERVAL - std::time::Duration::from_secs(1));
        peer.target.handle_transmitted(peer.now, 1000);
        assert!(!peer.target.is_closed());
    }
    peer.sleep(crate::limits::PING_INTERVAL);
    peer.sleep(crate::limits::PING_TIMEOUT);
    assert_eq!(peer.close_reason(), CloseReason::PingTimeout);
}

#[test]
fn what_makes_no_sense_is_rejected_with_its_header() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    let mut unknown = [0; BHS_BYTES];
    unknown[0] = 0x1d;
    peer.send_bytes(&unknown);
    let pdu = peer.receive_one();
    assert_eq!(reject_reason(&pdu.header.bhs.unwrap()), RejectReason::CommandNotSupported);
    assert_eq!(pdu.data.bytes(), unknown);
    let kind = SnackType::Status { begin: Serial32(0), run_length: 0 };
    peer.send(&SnackRequest { kind, lun: 0, exp_stat_sn: Serial32(0) }, Vec::new());
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::SnackReject);
    peer.send(
        &ReadyToTransfer::parse(&{
            let mut raw = [0; BHS_BYTES];
            (raw[0], raw[47]) = (0x31, 1);
            raw
        })
        .unwrap(),
        Vec::new(),
    );
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::ProtocolError);
    assert!(!peer.target.is_closed());
}

fn logout(reason: LogoutReason, cid: u16) -> LogoutRequest {
    LogoutRequest {
        is_immediate: true,
        reason,
        initiator_task_tag: itt(0x30),
        cid,
        cmd_sn: Serial32(100),
        exp_stat_sn: Serial32(0),
    }
}

#[test]
fn logout_is_answered_and_ends_everything() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    for (reason, cid, outcome) in [
        (LogoutReason::CloseConnection, 77, LogoutOutcome::CidNotFound),
        (LogoutReason::RemoveForRecovery, 3, LogoutOutcome::RecoveryNotSupported),
        (LogoutReason::CloseSession, 0, LogoutOutcome::Closed),
    ] {
        assert!(!peer.target.is_closed());
        peer.send(&logout(reason, cid), Vec::new());
        let Bhs::LogoutResponse(response) = peer.receive_bhs()[0] else { panic!("a logout response") };
        assert_eq!(response.outcome, outcome);
    }
    assert_eq!(peer.close_reason(), CloseReason::Logout);
    assert!(matches!(peer.events.pop(), Some(Event::Logout)));
}

#[test]
fn an_initiator_asked_to_log_out_gets_no_new_commands() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    peer.read(0x10, 512);
    let command = peer.started();
    peer.target.request_logout(peer.now, 2);
    let Bhs::AsyncMessage(message) = peer.receive_bhs()[0] else { panic!("an asynchronous message") };
    assert_eq!(message.event, AsyncEvent::LogoutRequest { logout_within_seconds: 2 });
    peer.read(0x11, 512);
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::WaitingForLogout);
    peer.complete(command.task, good(&pattern(512)));
    assert!(matches!(peer.receive_bhs()[0], Bhs::DataIn(_)), "what was under way ends well");
}

const WITH_DIGESTS: [(&str, &str); 2] = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")];

#[test]
fn digests_are_made_and_checked() {
    let mut peer = Peer::logged_in(parameters(), &WITH_DIGESTS);
    let command = peer.command(0x10, cdb_write(512), Direction::Write, 512);
    peer.send(&command, pattern(512));
    let command = peer.started();
    peer.complete(command.task, Outcome::default());
    assert!(matches!(peer.receive_bhs()[..], [Bhs::ScsiResponse(_)]));
}

#[test]
fn a_wrong_header_digest_ends_the_connection() {
    let mut peer = Peer::logged_in(parameters(), &WITH_DIGESTS);
    let command = peer.command(0x10, CDB_READ, Direction::Read, 512);
    peer.transmit.push(&command, &AdditionalHeaders::default(), DataSegment::Empty);
    let mut bytes = drain(&mut peer.transmit);
    bytes[9] ^= 1;
    peer.send_bytes(&bytes);
    assert_eq!(peer.close_reason(), CloseReason::Framing(FramingError::HeaderDigest));
}

#[test]
fn a_wrong_data_digest_is_rejected_and_the_task_fails_when_all_data_came() {
    let mut peer = Peer::logged_in(parameters(), &[WITH_DIGESTS[0], WITH_DIGESTS[1], ("ImmediateData", "No")]);
    let command = peer.command(0x10, cdb_write(1024), Direction::Write, 1024);
    peer.send(&command, Vec::new());
    let (tag, ..) = r2ts(&peer.receive_bhs())[0];
    let header = DataOut {
        is_final: false,
        lun: 0,
        initiator_task_tag: itt(0x10),
        target_transfer_tag: TargetTransferTag::new(tag),
        exp_stat_sn: Serial32(0),
        data_sn: Serial32(0),
        buffer_offset: 0,
    };
    peer.transmit.push(&header, &AdditionalHeaders::default(), DataSegment::from(pattern(512)));
    let mut bytes = drain(&mut peer.transmit);
    bytes[100] ^= 1;
    peer.send_bytes(&bytes);
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::DataDigestError);
    peer.data_out(0x10, Some(tag), 512, 1, true, &pattern(512));
    assert_eq!(failure_of(&peer.receive_one()), (2, 0x47, 0x05));
    assert!(peer.events.is_empty());
}

fn text(transfer: Option<TargetTransferTag>, is_continued: bool) -> TextRequest {
    TextRequest {
        is_immediate: true,
        is_final: !is_continued,
        is_continued,
        lun: 0,
        initiator_task_tag: itt(0x50),
        target_transfer_tag: transfer,
        cmd_sn: Serial32(100),
        exp_stat_sn: Serial32(0),
    }
}

/// RFC 7143 11.10.2, 11.10.4: each piece but the last is answered with an empty response whose tag the next one
/// carries.
#[test]
fn a_text_request_may_come_in_pieces() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    let response = |pdu: &crate::framing::ReceivedPdu| match pdu.header.bhs {
        Ok(Bhs::TextResponse(response)) => response,
        ref other => panic!("{other:?} is not a text response"),
    };
    peer.send(&text(None, true), b"MaxRecvDataSeg".to_vec());
    let pdu = peer.receive_one();
    assert!(pdu.data.bytes().is_empty() && !response(&pdu).is_continued);
    let tag = response(&pdu).target_transfer_tag;
    assert!(tag.is_some(), "it goes on");
    peer.send(&text(tag, false), b"mentLength=512\0".to_vec());
    let pdu = peer.receive_one();
    assert_eq!(response(&pdu).target_transfer_tag, None, "that was all");
    peer.read(0x10, 1024);
    let command = peer.started();
    peer.complete(command.task, good(&pattern(1024)));
    assert_eq!(peer.receive().iter().map(|pdu| pdu.data.length).collect::<Vec<_>>(), [512, 512]);
}

/// RFC 7143 11.10.4: without a tag, a text request starts anew, and the open exchange is dropped.
#[test]
fn a_new_text_request_takes_the_place_of_an_open_one() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    peer.send(&text(None, true), b"MaxRecvDataSeg".to_vec());
    let Ok(Bhs::TextResponse(first)) = peer.receive_one().header.bhs else { panic!("a text response") };
    peer.send(&text(None, false), b"MaxRecvDataSegmentLength=512\0".to_vec());
    assert!(matches!(peer.receive_bhs()[..], [Bhs::TextResponse(_)]));
    peer.send(&text(first.target_transfer_tag, false), b"mentLength=1024\0".to_vec());
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::InvalidPduField);
}

/// RFC 7143 6.2: an invalid text changes nothing, and the session goes on.
#[test]
fn a_text_negotiation_that_fails_changes_nothing() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    for wrong in [&b"no equals sign\0"[..], b"SendTargets=\0MaxRecvDataSegmentLength=512\0", b"MaxBurstLength=512\0"] {
        peer.send(&text(None, false), wrong.to_vec());
        assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::ProtocolError, "{wrong:?}");
    }
    peer.read(0x10, 1024);
    let command = peer.started();
    peer.complete(command.task, good(&pattern(1024)));
    assert_eq!(peer.receive().len(), 1, "segments are as long as before");
}

/// The time for a text grows with its keys, and others wait meanwhile.
#[test]
fn a_text_of_many_keys_after_the_login_is_rejected() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    let keys = |count: usize| (0..count).map(|number| (format!("X-{number}"), "")).collect::<Keys>().emit();
    peer.send(&text(None, false), keys(TEXT_REQUEST_KEYS_MAX));
    assert!(matches!(peer.receive_bhs()[..], [Bhs::TextResponse(_)]));
    peer.send(&text(None, false), keys(TEXT_REQUEST_KEYS_MAX + 1));
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::ProtocolError);
}

#[test]
fn a_text_in_pieces_after_the_login_has_so_many_bytes_and_no_more() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    let mut transfer = None;
    for _ in 0..TEXT_REQUEST_BYTES_MAX / 4096 {
        peer.send(&text(transfer, true), vec![b'a'; 4096]);
        let [Bhs::TextResponse(response)] = &peer.receive_bhs()[..] else { panic!("it goes on") };
        transfer = response.target_transfer_tag;
    }
    peer.send(&text(transfer, true), vec![b'a'; 1]);
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::LongOperationReject);
}

/// RFC 7143 11.18: an answer to a ping that was never sent is ignored, and not answered.
#[test]
fn an_answer_to_no_ping_is_ignored() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    peer.send(&nop_out(None, TargetTransferTag::new(0x1234)), Vec::new());
    assert!(peer.receive().is_empty());
    peer.sleep(crate::limits::PING_INTERVAL);
    assert!(matches!(peer.receive_bhs()[..], [Bhs::NopIn(_)]));
    peer.send(&nop_out(None, TargetTransferTag::new(0x1234)), Vec::new());
    peer.sleep(crate::limits::PING_TIMEOUT);
    assert_eq!(peer.close_reason(), CloseReason::PingTimeout);
}

/// The driver sets how often to ping, and how long to wait.
#[test]
fn pings_go_by_the_parameters() {
    let mut parameters = parameters();
    parameters.ping_interval = std::time::Duration::from_secs(1);
    parameters.ping_timeout = std::time::Duration::from_secs(2);
    let mut peer = Peer::logged_in(parameters, &[]);
    peer.sleep(std::time::Duration::from_secs(1));
    assert!(matches!(peer.receive_bhs()[..], [Bhs::NopIn(_)]));
    peer.sleep(std::time::Duration::from_secs(2));
    assert_eq!(peer.close_reason(), CloseReason::PingTimeout);
}
