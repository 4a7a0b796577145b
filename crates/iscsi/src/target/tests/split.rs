//! Pairs of connections, one for requests and one for responses (`docs/protocol/split-connections.md`).

use std::io::IoSlice;
use std::sync::Arc;

use base::serial::Serial32;

use super::super::*;
use super::peer::*;
use crate::chap::Challenge;
use crate::framing::{DataSegment, Digests, ReceivedPdu, Receiver, TransmitQueue};
use crate::limits::CHAP_CHALLENGE_BYTES;
use crate::pdu::*;
use crate::split::{ANSWERS_FOR, SPLIT_CONNECTIONS};
use crate::text::Keys;

const SPLITTING: &[(&str, &str)] = &[("MaxConnections", "4"), (SPLIT_CONNECTIONS, "7,1")];

/// CID of the peer's first connection.
const REQUESTS: u16 = 3;
const RESPONSES: u16 = 4;

/// A second connection of the peer's session.
struct Half {
    at: LinkId,
    receiver: Receiver,
}

/// A login for the peer's session with these `keys`, up to the driver's decision.
pub(super) fn log_in(peer: &Peer, cid: u16, keys: &[(&str, &str)]) -> Connection {
    let challenge = Challenge { identifier: 7, bytes: [7; CHAP_CHALLENGE_BYTES] };
    let mut connection = Connection::new(Arc::new(parameters()), challenge, None, peer.now);
    let mut text: Keys = [("InitiatorName", INITIATOR), ("TargetName", TARGET)].into_iter().collect();
    text.append(keys.iter().copied().collect());
    let request = LoginRequest {
        is_continued: false,
        current_stage: LoginStage::OperationalNegotiation,
        transit_to: Some(LoginStage::FullFeaturePhase),
        version_max: 0,
        version_min: 0,
        isid: Isid::random_format(1, 1),
        tsih: 9,
        initiator_task_tag: itt(2),
        cid,
        cmd_sn: peer.cmd_sn,
        exp_stat_sn: Serial32(0),
    };
    let mut queue = TransmitQueue::new(Digests::default());
    queue.push(&request, &AdditionalHeaders::default(), DataSegment::from(text.emit()));
    let bytes = drain(&mut queue);
    let space = connection.receive_space();
    space[..bytes.len()].copy_from_slice(&bytes);
    connection.handle_received(peer.now, bytes.len());
    connection
}

/// The status of a refused login for the peer's session.
fn refusal(peer: &mut Peer, cid: u16, keys: &[(&str, &str)]) -> LoginStatus {
    let connection = log_in(peer, cid, keys);
    let Some(request) = connection.request().cloned() else { return LoginStatus::INITIATOR_ERROR };
    peer.target.session().check_join(&request).expect_err("it is refused").0
}

/// Makes the peer's only connection a request half.
fn split(peer: &mut Peer) -> Half {
    let connection = log_in(peer, RESPONSES, &[(ANSWERS_FOR, "3")]);
    let request = connection.request().cloned().expect("the login comes to its end");
    peer.target.session().check_join(&request).expect("a pair can be made");
    let at = peer.target.session().join(peer.now, connection).expect("it waits for a decision");
    let mut half = Half { at, receiver: Receiver::new(1 << 20) };
    let response = half.receive(peer);
    assert!(matches!(response[..], [Bhs::LoginResponse(LoginResponse { status: LoginStatus::SUCCESS, .. })]));
    half
}

impl Half {
    /// The PDUs that this half receives.
    fn receive_whole(&mut self, peer: &mut Peer) -> Vec<ReceivedPdu> {
        let mut bytes = Vec::new();
        loop {
            let session = peer.target.session();
            let mut slices = [IoSlice::new(&[]); 4];
            let count = session.io_slices(self.at, usize::MAX, &mut slices);
            if count == 0 {
                break;
            }
            slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
            let length = slices[..count].iter().map(|slice| slice.len()).sum();
            session.handle_transmitted(peer.now, self.at, length);
        }
        std::mem::swap(&mut peer.receiver, &mut self.receiver);
        let pdus = peer.parse(&bytes).expect("the target sends whole PDUs");
        std::mem::swap(&mut peer.receiver, &mut self.receiver);
        pdus
    }

    fn receive(&mut self, peer: &mut Peer) -> Vec<Bhs> {
        self.receive_whole(peer).into_iter().map(|pdu| pdu.header.bhs.expect("valid headers")).collect()
    }
}

#[test]
fn a_session_is_split_only_where_both_ends_know_how() {
    for (keys, may_split) in [
        (&[("MaxConnections", "4"), (SPLIT_CONNECTIONS, "1")][..], true),
        (SPLITTING, true),
        (&[("MaxConnections", "4"), (SPLIT_CONNECTIONS, "7")], false),
        (&[("MaxConnections", "1"), (SPLIT_CONNECTIONS, "1")], false),
        (&[("MaxConnections", "4")], false),
    ] {
        let mut peer = Peer::logged_in(parameters(), keys);
        assert_eq!(peer.target.session().request().may_split, may_split, "{keys:?}");
        if !may_split {
            let status = refusal(&mut peer, RESPONSES, &[(ANSWERS_FOR, "3")]);
            let is_alone = keys[0].1 == "1";
            let expected = if is_alone { LoginStatus::TOO_MANY_CONNECTIONS } else { LoginStatus::INITIATOR_ERROR };
            assert_eq!(status, expected, "{keys:?}");
        }
    }
}

#[test]
fn requests_and_responses_go_their_own_ways() {
    let mut peer = Peer::logged_in(parameters(), SPLITTING);
    let mut half = split(&mut peer);
    peer.read(0x10, 512);
    let command = peer.started();
    peer.complete(command.task, good(&pattern(512)));
    assert!(peer.receive().is_empty(), "nothing comes where the request went");
    let [Bhs::DataIn(data)] = half.receive(&mut peer)[..] else { panic!("data and status") };
    assert_eq!(data.initiator_task_tag, itt(0x10));
    assert_eq!(data.status.map(|status| status.stat_sn), Some(Serial32(1)), "the number after the half's own login");

    let asked = 4096;
    let write = peer.command(0x11, cdb_write(asked), Direction::Write, asked);
    let write = ScsiCommand { is_final: true, ..write };
    peer.send(&write, Vec::new());
    let [(tag, 0, length)] = r2ts(&half.receive(&mut peer))[..] else { panic!("one R2T, on the response half") };
    peer.data_out(0x11, Some(tag), 0, 0, true, &pattern(length as usize));
    let command = peer.started();
    assert_eq!(&command.data_out[..], &pattern(asked as usize)[..]);
    peer.complete(command.task, good(&[]));
    assert!(matches!(half.receive(&mut peer)[..], [Bhs::ScsiResponse(_)]));
}

#[test]
fn what_was_not_acknowledged_before_is_by_the_second_login() {
    let mut keys = SPLITTING.to_vec();
    keys.push(("ErrorRecoveryLevel", "1"));
    let mut peer = Peer::logged_in(parameters(), &keys);
    peer.read(0x10, 512);
    let command = peer.started();
    peer.complete(command.task, good(&pattern(512)));
    assert_eq!(peer.receive().len(), 2, "data and a response, which is kept");
    let mut half = split(&mut peer);
    let kind = SnackType::Status { begin: Serial32(1), run_length: 1 };
    let snack = SnackRequest { kind, lun: 0, exp_stat_sn: Serial32(1) };
    peer.send(&snack, Vec::new());
    let answers = half.receive(&mut peer);
    assert_eq!(reject_reason(&answers[0]), RejectReason::ProtocolError, "the old numbers mean nothing any more");
}

#[test]
fn pairs_that_cannot_be_made() {
    let mut peer = Peer::logged_in(parameters(), SPLITTING);
    for (cid, answers_for) in [(RESPONSES, "5"), (REQUESTS, "3"), (RESPONSES, "65536"), (RESPONSES, "x")] {
        let status = refusal(&mut peer, cid, &[(ANSWERS_FOR, answers_for)]);
        assert_eq!(status, LoginStatus::INITIATOR_ERROR, "{cid} for {answers_for}");
    }
    peer.read(0x10, 512);
    assert_eq!(refusal(&mut peer, RESPONSES, &[(ANSWERS_FOR, "3")]), LoginStatus::INITIATOR_ERROR, "a task");
    let command = peer.started();
    peer.complete(command.task, good(&pattern(512)));
    split(&mut peer);
    assert_eq!(refusal(&mut peer, 5, &[(ANSWERS_FOR, "3")]), LoginStatus::INITIATOR_ERROR, "a pair already");
    assert_eq!(refusal(&mut peer, 5, &[(ANSWERS_FOR, "4")]), LoginStatus::INITIATOR_ERROR, "a response half");
}

#[test]
fn both_halves_count() {
    let mut peer = Peer::logged_in(parameters(), &[("MaxConnections", "2"), (SPLIT_CONNECTIONS, "1")]);
    split(&mut peer);
    assert_eq!(refusal(&mut peer, 5, &[]), LoginStatus::TOO_MANY_CONNECTIONS);
}

#[test]
fn a_pair_ends_with_either_half() {
    for breaks_response_half in [false, true] {
        let mut keys = SPLITTING.to_vec();
        keys.push(("ErrorRecoveryLevel", "2"));
        let mut peer = Peer::logged_in(parameters(), &keys);
        let half = split(&mut peer);
        peer.read(0x10, 512);
        let Target::Session(session, requests) = &mut peer.target else { panic!("a session") };
        let lost = if breaks_response_half { half.at } else { *requests };
        session.handle_lost(peer.now, lost);
        let closed: Vec<LinkId> = std::iter::from_fn(|| session.poll_event())
            .filter_map(|event| match event {
                Event::LinkClosed(at, CloseReason::TransportLost) => Some(at),
                _ => None,
            })
            .collect();
        assert_eq!(closed.len(), 2);
        assert!(closed.contains(&half.at) && closed.contains(requests));
        assert!(session.connection_ids().is_empty());
        assert!(!session.is_closed(), "its tasks wait for another connection");
        for at in closed {
            session.release(at);
        }
    }
}

#[test]
fn nothing_is_said_on_a_response_half() {
    let mut peer = Peer::logged_in(parameters(), SPLITTING);
    let half = split(&mut peer);
    let session = peer.target.session();
    assert!(!session.receive_space(half.at).is_empty(), "so that its end is noticed");
    session.handle_received(peer.now, half.at, 1);
    assert!(matches!(peer.close_reason(), CloseReason::Protocol(_)));
}

#[test]
fn a_logout_ends_both_halves() {
    let mut peer = Peer::logged_in(parameters(), SPLITTING);
    let mut half = split(&mut peer);
    let logout = |cid: u16, cmd_sn: Serial32| LogoutRequest {
        is_immediate: true,
        reason: LogoutReason::CloseConnection,
        initiator_task_tag: itt(0x30),
        cid,
        cmd_sn,
        exp_stat_sn: Serial32(1),
    };
    let cmd_sn = peer.cmd_sn;
    peer.send(&logout(RESPONSES, cmd_sn), Vec::new());
    let answers = half.receive(&mut peer);
    let [Bhs::LogoutResponse(LogoutResponse { outcome: LogoutOutcome::CidNotFound, .. })] = answers[..] else {
        panic!("{answers:?}")
    };
    peer.send(&logout(REQUESTS, cmd_sn), Vec::new());
    assert!(matches!(half.receive(&mut peer)[..], [Bhs::LogoutResponse(_)]));
    assert_eq!(peer.close_reason(), CloseReason::Logout);
}
