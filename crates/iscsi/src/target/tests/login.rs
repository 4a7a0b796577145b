//! The login phase and discovery.

use base::clock::Instant;
use base::serial::Serial32;

use super::super::*;
use super::peer::*;
use crate::chap::{ChapInitiator, Credentials, Secret};
use crate::framing::ReceivedPdu;
use crate::limits::{LOGIN_TEXT_BYTES_MAX, TEXT_KEY_CHARACTERS_MAX, TEXT_VALUE_BYTES_MAX};
use crate::negotiation::Digest;
use crate::pdu::*;
use crate::text::Keys;

#[test]
fn a_login_without_authentication_takes_one_exchange() {
    let mut peer = Peer::logged_in(parameters(), &[("MaxBurstLength", "65536"), ("InitialR2T", "No")]);
    let session = peer.target.session().request().clone();
    assert_eq!(session.initiator_name, INITIATOR);
    assert_eq!(session.target_name.as_deref(), Some(TARGET));
    assert_eq!((session.tsih, session.cid, session.negotiated.max_burst_length), (9, 3, 65536));
    assert!(!session.negotiated.initial_r2t);
    assert!(peer.receive().is_empty());
}

#[test]
fn security_then_operational_stage() {
    let mut peer = Peer::new(parameters());
    let keys = [("InitiatorName", INITIATOR), ("TargetName", TARGET), ("AuthMethod", "CHAP,None")];
    let stage = LoginStage::SecurityNegotiation;
    let pdus = peer.login_step(stage, Some(LoginStage::OperationalNegotiation), &keys);
    let Ok(Bhs::LoginResponse(response)) = pdus[0].header.bhs else { panic!("{:?}", pdus[0].header.bhs) };
    assert_eq!(response.transit_to, Some(LoginStage::OperationalNegotiation));
    let answers = Keys::parse(pdus[0].data.bytes()).unwrap();
    assert_eq!(answers.get("AuthMethod"), Some("None"));
    assert_eq!(answers.get("TargetPortalGroupTag"), Some("1"));
    assert_eq!(answers.get("TargetAlias"), Some("a disk"));
    peer.log_in(&[("HeaderDigest", "CRC32C,None")]);
    assert_eq!(peer.target.session().request().negotiated.header_digest, Digest::Crc32c);
}

fn with_chap() -> TargetParameters {
    let mut parameters = parameters();
    let secret = Secret::new("alice's secret").unwrap();
    let accounts = vec![Credentials { name: "alice".to_owned(), secret }];
    parameters.targets[0].access = AccessList(vec![AccessRule::any_initiator(accounts)]);
    parameters
}

/// Goes through CHAP until it ends. Returns the last response.
fn chap(peer: &mut Peer, name: &str, secret: &str) -> LoginResponse {
    let secret = Secret::new(secret).unwrap();
    let mut initiator = ChapInitiator::new(Credentials { name: name.to_owned(), secret }, None);
    let stage = LoginStage::SecurityNegotiation;
    let next = Some(LoginStage::OperationalNegotiation);
    let keys = [("InitiatorName", INITIATOR), ("TargetName", TARGET), ("AuthMethod", "CHAP,None")];
    let pdus = peer.login_step(stage, next, &keys);
    let Ok(Bhs::LoginResponse(first)) = pdus[0].header.bhs else { panic!("{:?}", pdus[0].header.bhs) };
    assert_eq!(first.transit_to, None, "not before the proof");
    let offer = initiator.offer();
    let pdus = peer.login_step(stage, next, &offer.iter().collect::<Vec<_>>());
    let asked = Keys::parse(pdus[0].data.bytes()).unwrap();
    let proof = initiator.handle(&asked).unwrap();
    let pdus = peer.login_step(stage, next, &proof.iter().collect::<Vec<_>>());
    let Ok(Bhs::LoginResponse(last)) = pdus[0].header.bhs else { panic!("{:?}", pdus[0].header.bhs) };
    last
}

#[test]
fn chap_lets_in_who_knows_the_secret() {
    let mut peer = Peer::new(with_chap());
    let response = chap(&mut peer, "alice", "alice's secret");
    assert_eq!(response.transit_to, Some(LoginStage::OperationalNegotiation));
    peer.log_in(&[]);
    assert_eq!(peer.target.session().request().authenticated_name.as_deref(), Some("alice"));
}

#[test]
fn chap_keeps_out_who_does_not() {
    let mut peer = Peer::new(with_chap());
    assert_eq!(chap(&mut peer, "alice", "another secret").status, LoginStatus::AUTHENTICATION_FAILURE);
    assert!(matches!(peer.close_reason(), CloseReason::LoginRefused { .. }));
}

#[test]
fn logins_are_refused_with_the_status_of_the_standard() {
    use LoginStage::{FullFeaturePhase, OperationalNegotiation, SecurityNegotiation};
    let names = [("InitiatorName", INITIATOR), ("TargetName", TARGET)];
    let unknown = [("InitiatorName", INITIATOR), ("TargetName", "iqn.2026-01.io.example:other")];
    let skips_chap = [("InitiatorName", INITIATOR), ("TargetName", TARGET), ("AuthMethod", "None")];
    for (parameters, stage, next, keys, status) in [
        (parameters(), OperationalNegotiation, FullFeaturePhase, &unknown[..], LoginStatus::NOT_FOUND),
        (parameters(), OperationalNegotiation, FullFeaturePhase, &names[..1], LoginStatus::MISSING_PARAMETER),
        (parameters(), OperationalNegotiation, FullFeaturePhase, &names[1..], LoginStatus::MISSING_PARAMETER),
        (parameters(), OperationalNegotiation, SecurityNegotiation, &names[..], LoginStatus::INITIATOR_ERROR),
        (with_chap(), OperationalNegotiation, FullFeaturePhase, &names[..], LoginStatus::AUTHENTICATION_FAILURE),
        (with_chap(), SecurityNegotiation, FullFeaturePhase, &names[..], LoginStatus::AUTHENTICATION_FAILURE),
        (with_chap(), SecurityNegotiation, FullFeaturePhase, &skips_chap[..], LoginStatus::AUTHENTICATION_FAILURE),
    ] {
        let mut peer = Peer::new(parameters);
        let pdus = peer.login_step(stage, Some(next), keys);
        let Ok(Bhs::LoginResponse(response)) = pdus[0].header.bhs else { panic!("{:?}", pdus[0].header.bhs) };
        assert_eq!(response.status, status);
        assert!(peer.target.is_closed());
    }
}

#[test]
fn the_driver_can_refuse_a_session() {
    let mut peer = Peer::new(parameters());
    let keys = [("InitiatorName", INITIATOR), ("TargetName", TARGET)];
    peer.login_step(LoginStage::OperationalNegotiation, Some(LoginStage::FullFeaturePhase), &keys);
    peer.target.refuse_session(peer.now, LoginStatus::OUT_OF_RESOURCES, "full");
    assert_eq!(peer.login_response().0.status, LoginStatus::OUT_OF_RESOURCES);
    assert!(peer.target.is_closed());
}

#[test]
fn a_login_must_end_in_time() {
    let mut peer = Peer::new(parameters());
    let idle = crate::limits::LOGIN_IDLE_TIMEOUT;
    // An initiator that answers in time is still limited by the time of the whole login.
    peer.sleep(idle / 2);
    let keys = [("InitiatorName", INITIATOR), ("TargetName", TARGET)];
    assert_eq!(peer.login_step(LoginStage::SecurityNegotiation, None, &keys).len(), 1);
    assert_eq!(peer.target.poll_timeout(), Some(Instant::START + crate::limits::LOGIN_TIMEOUT));
    peer.sleep(crate::limits::LOGIN_TIMEOUT - idle / 2);
    assert_eq!(peer.close_reason(), CloseReason::LoginTimeout);
}

#[test]
fn a_silent_initiator_is_given_up_before_the_time_of_a_login_is_over() {
    let mut peer = Peer::new(parameters());
    assert_eq!(peer.target.poll_timeout(), Some(Instant::START + crate::limits::LOGIN_IDLE_TIMEOUT));
    peer.sleep(crate::limits::LOGIN_IDLE_TIMEOUT);
    assert_eq!(peer.close_reason(), CloseReason::LoginTimeout);
}

#[test]
fn bytes_that_are_no_whole_request_do_not_keep_a_login_alive() {
    let mut peer = Peer::new(parameters());
    for _ in 0..10 {
        peer.sleep(crate::limits::LOGIN_IDLE_TIMEOUT / 10);
        if peer.target.is_closed() {
            break;
        }
        peer.target.receive_space()[0] = 0x43;
        let now = peer.now;
        peer.target.handle_received(now, 1);
    }
    assert_eq!(peer.close_reason(), CloseReason::LoginTimeout);
}

#[test]
fn something_else_than_a_login_ends_the_connection() {
    let mut peer = Peer::new(parameters());
    peer.read(1, 512);
    assert!(matches!(peer.close_reason(), CloseReason::Protocol(_)));
    assert!(peer.receive().is_empty());
}

fn discovery(parameters: TargetParameters) -> Peer {
    let mut peer = Peer::new(parameters);
    peer.log_in(&[("InitiatorName", INITIATOR), ("SessionType", "Discovery")]);
    peer
}

fn send_targets(peer: &mut Peer, value: &str, tag: Option<TargetTransferTag>) -> ReceivedPdu {
    let request = TextRequest {
        is_immediate: true,
        is_final: true,
        is_continued: false,
        lun: 0,
        initiator_task_tag: itt(2),
        target_transfer_tag: tag,
        cmd_sn: peer.cmd_sn,
        exp_stat_sn: Serial32(0),
    };
    let keys: Keys = [("SendTargets", value)].into_iter().collect();
    peer.send(&request, if tag.is_some() { Vec::new() } else { keys.emit() });
    peer.receive_one()
}

#[test]
fn discovery_tells_of_all_targets_and_both_families() {
    let mut peer = discovery(parameters());
    let expected = format!("TargetName={TARGET}\0TargetAddress=127.0.0.1:3260,1\0TargetAddress=[::1]:3260,1\0");
    for value in ["All", TARGET] {
        let pdu = send_targets(&mut peer, value, None);
        assert_eq!(String::from_utf8_lossy(pdu.data.bytes()), expected);
        assert!(matches!(pdu.header.bhs, Ok(Bhs::TextResponse(TextResponse { target_transfer_tag: None, .. }))));
    }
    assert!(send_targets(&mut peer, "iqn.2026-01.io.example:other", None).data.bytes().is_empty());
    peer.read(5, 512);
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::ProtocolError, "no commands in discovery");
}

#[test]
fn a_long_answer_comes_in_pieces() {
    let mut parameters = parameters();
    let numbered = |number: u32| TargetDescription { name: format!("{TARGET}{number:04}"), ..description() };
    parameters.targets = (0..300).map(numbered).collect();
    let mut peer = discovery(parameters);
    let mut text = Vec::new();
    let mut tag = None;
    for _ in 0..10 {
        let pdu = send_targets(&mut peer, "All", tag);
        text.extend_from_slice(pdu.data.bytes());
        let Ok(Bhs::TextResponse(response)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
        assert!(pdu.data.bytes().len() <= 8192);
        assert_eq!(response.is_continued, response.target_transfer_tag.is_some());
        tag = response.target_transfer_tag;
        if tag.is_none() {
            break;
        }
    }
    let keys = Keys::parse_send_targets(&text).unwrap();
    assert_eq!(keys.iter().filter(|(key, _)| *key == "TargetName").count(), 300);
    let stale = send_targets(&mut peer, "All", TargetTransferTag::new(0x7777));
    assert_eq!(reject_reason(&stale.header.bhs.unwrap()), RejectReason::InvalidPduField);
}

/// RFC 7143 11.13.2: an answer that does not fit in the 8192 bytes of a Login Response goes on in the next ones (C
/// bit), each of which an empty request asks for, and the stage is left with the last.
#[test]
fn a_long_login_answer_comes_in_pieces() {
    let mut peer = Peer::new(parameters());
    let unknown: Vec<String> = (100..600).map(|number| format!("X-a.b{number}")).collect();
    let mut keys = vec![("InitiatorName", INITIATOR), ("TargetName", TARGET)];
    keys.extend(unknown.iter().map(|key| (key.as_str(), "1")));
    let (stage, next) = (LoginStage::OperationalNegotiation, Some(LoginStage::FullFeaturePhase));
    let mut pdus = peer.login_step(stage, next, &keys);
    let mut text = Vec::new();
    let mut piece_count = 0;
    while peer.login_events.is_empty() {
        let pdu = pdus.pop().expect("each request is answered");
        let Ok(Bhs::LoginResponse(response)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
        assert!(response.is_continued && response.transit_to.is_none(), "not before all is said");
        assert!(pdu.data.bytes().len() <= 8192);
        text.extend_from_slice(pdu.data.bytes());
        piece_count += 1;
        pdus = peer.login_step(stage, next, &[]);
    }
    assert!(matches!(peer.login_events.pop(), Some(LoginEvent::SessionRequested(_))));
    peer.target.accept_session(peer.now, 9);
    let pdu = peer.receive_one();
    let Ok(Bhs::LoginResponse(response)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
    assert_eq!((response.is_continued, response.transit_to), (false, next));
    text.extend_from_slice(pdu.data.bytes());
    let answers = Keys::parse(&text).unwrap();
    assert!(piece_count >= 1);
    assert!(unknown.iter().all(|key| answers.get(key) == Some("NotUnderstood")), "every key is answered");
}

/// Sends a text in such pieces. Returns the status of the last answer, and how many pieces were
/// answered.
fn login_in_pieces(text: &[u8], piece_bytes: usize) -> (LoginStatus, usize) {
    let mut peer = Peer::new(parameters());
    let pieces: Vec<_> = text.chunks(piece_bytes).collect();
    let mut status = LoginStatus::SUCCESS;
    for (number, piece) in pieces.iter().enumerate() {
        let is_last = number + 1 == pieces.len();
        let next = is_last.then_some(LoginStage::FullFeaturePhase);
        let pdus = peer.login_text(LoginStage::OperationalNegotiation, next, !is_last, piece.to_vec());
        if let Some(LoginEvent::SessionRequested(_)) = peer.login_events.first() {
            return (LoginStatus::SUCCESS, number + 1);
        }
        let Ok(Bhs::LoginResponse(response)) = pdus[0].header.bhs else { panic!("{:?}", pdus[0].header.bhs) };
        status = response.status;
        if status != LoginStatus::SUCCESS {
            return (status, number + 1);
        }
        assert!(pdus[0].data.bytes().is_empty(), "nothing is said before the text is whole (RFC 7143 6.2)");
    }
    (status, pieces.len())
}

#[test]
fn a_login_text_may_be_split_anywhere_and_has_its_bounds() {
    let names = [("InitiatorName", INITIATOR), ("TargetName", TARGET)].into_iter().collect::<Keys>().emit();
    let with = |more: &str| [&names, more.as_bytes(), b"\0"].concat();
    for piece_bytes in [7, names.len() - 1] {
        assert_eq!(login_in_pieces(&names, piece_bytes).0, LoginStatus::SUCCESS, "pieces of {piece_bytes}");
    }
    let (longest_key, longest_value) = ("k".repeat(TEXT_KEY_CHARACTERS_MAX), "v".repeat(TEXT_VALUE_BYTES_MAX));
    assert_eq!(login_in_pieces(&with(&format!("{longest_key}={longest_value}")), 3000).0, LoginStatus::SUCCESS);
    for beyond in [format!("{longest_key}k=1"), format!("X-a={longest_value}v")] {
        assert_eq!(login_in_pieces(&with(&beyond), 3000).0, LoginStatus::INITIATOR_ERROR, "{} bytes", beyond.len());
    }
    // It is refused at the piece that is too much, however much is announced.
    let (status, pieces) = login_in_pieces(&vec![b'x'; 4 * LOGIN_TEXT_BYTES_MAX], 8192);
    assert_eq!((status, pieces), (LoginStatus::INITIATOR_ERROR, LOGIN_TEXT_BYTES_MAX / 8192 + 1));
}

/// Each of them is in order: keys that are known, and no wish to go on.
#[test]
fn a_login_takes_so_many_exchanges_and_no_more() {
    let mut peer = Peer::new(parameters());
    let names = [("InitiatorName", INITIATOR), ("TargetName", TARGET)];
    for exchange in 1..=33 {
        let keys = if exchange == 1 { &names[..] } else { &[] };
        let pdus = peer.login_step(LoginStage::OperationalNegotiation, None, keys);
        let Ok(Bhs::LoginResponse(response)) = pdus[0].header.bhs else { panic!("{:?}", pdus[0].header.bhs) };
        let expected = if exchange <= 32 { LoginStatus::SUCCESS } else { LoginStatus::INITIATOR_ERROR };
        assert_eq!(response.status, expected, "exchange {exchange}");
    }
}

/// The initiator name appears in logs and on terminals.
#[test]
fn a_name_that_is_none_is_refused() {
    for name in ["", "host", "iqn.2026-01.io.example:a\nlogged in", "iqn.2026-01.io.example:\u{1b}[2J"] {
        let mut peer = Peer::new(parameters());
        let keys = [("InitiatorName", name), ("TargetName", TARGET)];
        let pdus = peer.login_step(LoginStage::OperationalNegotiation, Some(LoginStage::FullFeaturePhase), &keys);
        let Ok(Bhs::LoginResponse(response)) = pdus[0].header.bhs else { panic!("{:?}", pdus[0].header.bhs) };
        assert_eq!(response.status, LoginStatus::INITIATOR_ERROR, "{name:?}");
    }
    let mut peer = Peer::new(parameters());
    let keys = [("InitiatorName", INITIATOR), ("TargetName", "iqn.\u{1b}[2J\nlogged in")];
    peer.login_step(LoginStage::OperationalNegotiation, Some(LoginStage::FullFeaturePhase), &keys);
    let Some(LoginEvent::Closed(CloseReason::LoginRefused { detail, .. })) = peer.login_events.pop() else {
        panic!("there is no such target");
    };
    assert!(!detail.contains(char::is_control), "{detail:?}");
}

/// Keys before this end has sent all of its answer are out of turn.
#[test]
fn keys_between_the_pieces_of_an_answer_end_the_login() {
    let mut peer = Peer::new(parameters());
    let unknown: Vec<String> = (100..600).map(|number| format!("X-a.b{number}")).collect();
    let mut keys = vec![("InitiatorName", INITIATOR), ("TargetName", TARGET)];
    keys.extend(unknown.iter().map(|key| (key.as_str(), "1")));
    let (stage, next) = (LoginStage::OperationalNegotiation, Some(LoginStage::FullFeaturePhase));
    peer.login_step(stage, next, &keys);
    let pdus = peer.login_step(stage, next, &[("MaxBurstLength", "65536")]);
    let Ok(Bhs::LoginResponse(response)) = pdus[0].header.bhs else { panic!("{:?}", pdus[0].header.bhs) };
    assert_eq!(response.status, LoginStatus::INITIATOR_ERROR);
}
