//! Key=value text and what is made of it: parse and emit, negotiation of both ends with a stranger and with each
//! other, and CHAP. What is in force is always admissible, two of our own ends agree, and nobody gets in without the
//! secret.

#![no_main]

use fuzz::input::Input;
use iscsi::chap::{Challenge, ChapInitiator, ChapTarget, Credentials, Secret};
use iscsi::limits::{CHAP_CHALLENGE_BYTES, LOGIN_TEXT_BYTES_MAX};
use iscsi::negotiation::{Digest, Negotiated, Negotiator, Offer, SessionType, Stage, TaskReporting};
use iscsi::text::{Keys, TextAssembler, segments};
use libfuzzer_sys::fuzz_target;

const SEGMENT_BYTES: std::ops::RangeInclusive<u32> = 512..=(1 << 24) - 1;

fn check_text(text: &[u8]) -> Option<Keys> {
    let _ = Keys::parse_send_targets(text);
    let keys = Keys::parse(text).ok()?;
    let emitted = keys.emit();
    assert_eq!(Keys::parse(&emitted).as_ref(), Ok(&keys));
    // In pieces, as login PDUs carry it.
    let mut assembler = TextAssembler::new(LOGIN_TEXT_BYTES_MAX);
    let mut whole = None;
    for (piece, continues) in segments(&emitted, 100) {
        whole = assembler.handle_segment(piece, continues).expect("an input is shorter than the limit");
    }
    assert_eq!(whole, Some(emitted));
    Some(keys)
}

fn check_in_force(negotiated: &Negotiated) {
    let Negotiated { first_burst_length, max_burst_length, .. } = *negotiated;
    assert!(first_burst_length <= max_burst_length);
    for length in [
        negotiated.initiator_max_recv_data_segment_length,
        negotiated.target_max_recv_data_segment_length,
        first_burst_length,
        max_burst_length,
    ] {
        assert!(SEGMENT_BYTES.contains(&length), "{length}");
    }
    assert!(negotiated.max_connections > 0 && negotiated.max_outstanding_r2t > 0);
    assert!(negotiated.default_time2wait <= 3600 && negotiated.default_time2retain <= 3600);
    assert!(negotiated.error_recovery_level <= 2 && negotiated.protocol_level <= 31);
}

fn offer(input: &mut Input<'_>, base: Offer) -> Offer {
    let flags = input.u16();
    let has = |bit: u16| flags & 1 << bit != 0;
    let digests = |is_first: bool, is_second: bool| match (is_first, is_second) {
        (false, false) => vec![Digest::None],
        (true, false) => vec![Digest::Crc32c],
        (false, true) => vec![Digest::None, Digest::Crc32c],
        (true, true) => vec![Digest::Crc32c, Digest::None],
    };
    let length = |number: u32| 512 + number % ((1 << 24) - 512);
    Offer {
        header_digest: digests(has(0), has(1)),
        data_digest: digests(has(2), has(3)),
        max_connections: 1 + input.u16() % 65535,
        initial_r2t: has(4),
        immediate_data: has(5),
        max_recv_data_segment_length: length(input.u32()),
        max_burst_length: length(input.u32()),
        first_burst_length: length(input.u32()),
        default_time2wait: input.u16() % 3601,
        default_time2retain: input.u16() % 3601,
        max_outstanding_r2t: 1 + input.u16() % 65535,
        data_pdu_in_order: has(6),
        data_sequence_in_order: has(7),
        error_recovery_level: input.byte() % 3,
        task_reporting: match (has(8), has(9)) {
            (false, _) => base.task_reporting.clone(),
            (true, false) => vec![TaskReporting::Rfc3720],
            (true, true) => vec![TaskReporting::FastAbort, TaskReporting::ResponseFence, TaskReporting::Rfc3720],
        },
        protocol_level: input.byte() % 32,
        ..base
    }
}

/// Two ends of ours. When neither objects, both hold the same values.
fn negotiate(initiator: Offer, target: Offer, session_type: SessionType) {
    let mut initiator = Negotiator::initiator(initiator, session_type);
    let mut target = Negotiator::target(target);
    if session_type == SessionType::Discovery {
        let keys: Keys =
            [("InitiatorName", "iqn.2026-01.io.forebay:us"), ("SessionType", "Discovery")].into_iter().collect();
        target.handle(Stage::Security, &keys).expect("both keys belong there");
    }
    let mut keys = initiator.propose();
    for _ in 0..6 {
        let Ok(mut answers) = target.handle(Stage::Operational, &keys) else { return };
        answers.append(target.propose());
        if answers.is_empty() {
            break;
        }
        let Ok(next) = initiator.handle(Stage::Operational, &answers) else { return };
        keys = next;
    }
    assert!(!initiator.awaits_answers() && !target.awaits_answers(), "negotiation comes to an end");
    assert_eq!(initiator.negotiated(), target.negotiated());
    check_in_force(&target.negotiated());
}

/// Our end, and a stranger with any keys in any order.
fn stranger(texts: &[&[u8]], mut negotiator: Negotiator) {
    for (index, text) in texts.iter().enumerate() {
        let Some(keys) = check_text(text) else { continue };
        let stage = [Stage::Security, Stage::Operational, Stage::Operational, Stage::FullFeature][index.min(3)];
        if stage == Stage::FullFeature {
            negotiator.restart();
        }
        let result = negotiator.handle(stage, &keys);
        check_in_force(&negotiator.negotiated());
        match result {
            Ok(answers) => assert_eq!(Keys::parse(&answers.emit()).as_ref(), Ok(&answers)),
            Err(_) => return,
        }
        if stage == Stage::Operational {
            negotiator.propose();
        }
    }
}

fn secret(text: &str) -> Credentials {
    let secret = Secret::new(text.as_bytes()).expect("it is long enough");
    Credentials { name: text[..3].to_owned(), secret }
}

fn authenticate(texts: &[&[u8]]) {
    let challenge = Challenge { identifier: 7, bytes: [7; CHAP_CHALLENGE_BYTES] };
    let (us, them) = (secret("one secret of ours"), secret("two: theirs, another"));
    let mut target = ChapTarget::new(vec![us.clone()], Some(them.clone()), challenge);
    let mut initiator = ChapInitiator::new(us, Some((them, challenge)));
    initiator.offer();
    let (mut is_target_over, mut is_initiator_over) = (false, false);
    for keys in texts.iter().filter_map(|text| Keys::parse(text).ok()) {
        is_target_over = is_target_over || target.handle(&keys).is_err();
        is_initiator_over = is_initiator_over || initiator.handle(&keys).is_err();
        assert!(!target.is_done() && target.authenticated_name().is_none(), "who has no secret stays outside");
        assert!(!initiator.is_done(), "a target without the secret is not believed");
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let flags = input.byte();
    let session_type = if flags & 1 != 0 { SessionType::Discovery } else { SessionType::Normal };
    let (ours, theirs) = if flags & 2 != 0 {
        (offer(&mut input, Offer::initiator()), offer(&mut input, Offer::target()))
    } else {
        (Offer::initiator(), Offer::target())
    };
    negotiate(ours.clone(), theirs.clone(), session_type);

    // Texts are parted by two nulls: between keys there is one.
    let rest = input.rest();
    let ends = rest.windows(2).enumerate().filter(|(_, pair)| *pair == [0, 0]).map(|(at, _)| at + 1);
    let mut texts = Vec::new();
    let mut start = 0;
    for end in ends.chain([rest.len()]).take(8) {
        if end > start {
            texts.push(&rest[start..end]);
            start = (end + 1).min(rest.len());
        }
    }
    let mut initiator = Negotiator::initiator(ours, session_type);
    if flags & 4 != 0 {
        initiator.propose();
    }
    stranger(&texts, initiator);
    stranger(&texts, Negotiator::target(theirs));
    authenticate(&texts);
});
