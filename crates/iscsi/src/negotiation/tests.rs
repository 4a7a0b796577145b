use super::*;
use proptest::prelude::*;

use crate::limits::RECV_DATA_SEGMENT_BYTES;

fn keys(text: &str) -> Keys {
    text.split(' ').filter_map(|pair| pair.split_once('=')).collect()
}

fn answers(target: &mut Negotiator, text: &str) -> String {
    let answers = target.handle(Stage::Operational, &keys(text)).unwrap();
    answers.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// One operational stage between two offers.
fn negotiate(initiator: Offer, target: Offer, session_type: SessionType) -> (Negotiator, Negotiator) {
    let mut initiator = Negotiator::initiator(initiator, session_type);
    let mut target = Negotiator::target(target);
    let session_type = keys(if session_type == SessionType::Normal { "" } else { "SessionType=Discovery" });
    target.handle(Stage::Security, &session_type).unwrap();
    let mut to_initiator = target.handle(Stage::Operational, &initiator.propose()).unwrap();
    to_initiator.append(target.propose());
    let to_target = initiator.handle(Stage::Operational, &to_initiator).unwrap();
    target.handle(Stage::Operational, &to_target).unwrap();
    (initiator, target)
}

#[test]
fn the_defaults_of_the_standard() {
    let defaults = Negotiated::default();
    assert_eq!(defaults.header_digest, Digest::None);
    assert_eq!((defaults.max_connections, defaults.max_outstanding_r2t), (1, 1));
    assert!(defaults.initial_r2t && defaults.immediate_data);
    assert_eq!(defaults.initiator_max_recv_data_segment_length, 8192);
    assert_eq!(defaults.target_max_recv_data_segment_length, 8192);
    assert_eq!((defaults.max_burst_length, defaults.first_burst_length), (262_144, 65_536));
    assert_eq!((defaults.default_time2wait, defaults.default_time2retain), (2, 20));
    assert!(defaults.data_pdu_in_order && defaults.data_sequence_in_order);
    assert_eq!((defaults.error_recovery_level, defaults.protocol_level), (0, 1));
    assert_eq!(defaults.task_reporting, TaskReporting::Rfc3720);
}

#[test]
fn rules_stand_in_the_order_of_their_keys() {
    for (index, key) in KEYS.iter().enumerate() {
        assert_eq!(*key as usize, index);
    }
    assert_eq!(RULES[Key::ProtocolLevel as usize].name, "iSCSIProtocolLevel");
    assert_eq!(RULES[Key::MaxRecvDataSegmentLength as usize].name, "MaxRecvDataSegmentLength");
}

#[test]
fn both_ends_agree() {
    let (initiator, target) = negotiate(
        Offer { data_digest: vec![Digest::Crc32c, Digest::None], ..Offer::initiator() },
        Offer { max_burst_length: 64 << 10, max_recv_data_segment_length: 128 << 10, ..Offer::target() },
        SessionType::Normal,
    );
    let negotiated = initiator.negotiated();
    assert_eq!(negotiated, target.negotiated());
    assert_eq!((negotiated.header_digest, negotiated.data_digest), (Digest::None, Digest::Crc32c));
    assert_eq!((negotiated.max_burst_length, negotiated.first_burst_length), (64 << 10, 64 << 10));
    assert_eq!(negotiated.target_max_recv_data_segment_length, 128 << 10);
    assert_eq!(negotiated.initiator_max_recv_data_segment_length, RECV_DATA_SEGMENT_BYTES);
    assert!(!negotiated.initial_r2t && negotiated.immediate_data);
    assert_eq!((negotiated.protocol_level, negotiated.default_time2wait), (2, 0));
    assert!(!initiator.awaits_answers() && !target.awaits_answers());
}

#[test]
fn a_target_takes_the_first_digest_it_supports() {
    let mut target = Negotiator::target(Offer::target());
    assert_eq!(
        answers(&mut target, "HeaderDigest=X5,CRC32C,None DataDigest=None,CRC32C"),
        "HeaderDigest=CRC32C DataDigest=None"
    );
    let mut target = Negotiator::target(Offer { header_digest: vec![Digest::Crc32c], ..Offer::target() });
    assert_eq!(answers(&mut target, "HeaderDigest=None"), "HeaderDigest=Reject");
}

/// Found by the fuzzer: a target with a shorter burst than the default never let a second connection in at once.
#[test]
fn a_connection_that_joins_is_not_asked_about_the_session() {
    let offer = Offer { max_burst_length: 4096, header_digest: vec![Digest::Crc32c], ..Offer::target() };
    let proposals = |is_joining: bool| {
        let mut target = Negotiator::target(offer.clone());
        if is_joining {
            target.join_session();
        }
        target.propose().iter().map(|(key, _)| key.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(proposals(true), ["HeaderDigest", "MaxRecvDataSegmentLength"]);
    assert!(proposals(false).contains(&"MaxBurstLength".to_owned()));
}

/// RFC 7143 6.2, the example of Irrelevant.
#[test]
fn the_standards_example_of_irrelevant() {
    let mut target = Negotiator::target(Offer { initial_r2t: true, immediate_data: false, ..Offer::target() });
    assert_eq!(
        answers(&mut target, "FirstBurstLength=4192 InitialR2T=No ImmediateData=Yes"),
        "InitialR2T=Yes ImmediateData=No FirstBurstLength=Irrelevant"
    );
}

#[test]
fn what_is_out_of_range_unknown_or_obsolete_gets_its_constant() {
    let mut target = Negotiator::target(Offer::target());
    assert_eq!(
        answers(
            &mut target,
            "MaxBurstLength=511 MaxConnections=0 ErrorRecoveryLevel=7 DataPDUInOrder=maybe MaxOutstandingR2T=1~4 \
             IFMarker=No OFMarkInt=2048 X-com.example.key=1 Whatever=2 X#NodeArchitecture=a"
        ),
        "MaxConnections=Reject MaxBurstLength=Reject ErrorRecoveryLevel=Reject DataPDUInOrder=Reject \
         MaxOutstandingR2T=Reject IFMarker=Reject OFMarkInt=Reject X-com.example.key=NotUnderstood \
         Whatever=NotUnderstood"
    );
    assert_eq!(target.negotiated(), Negotiated::default());
}

#[test]
fn protocol_errors() {
    use NegotiationError as E;
    for (stage, text, error) in [
        (Stage::Security, "MaxBurstLength=512", E::WrongStage("MaxBurstLength".into())),
        (Stage::Operational, "AuthMethod=None", E::WrongStage("AuthMethod".into())),
        (Stage::Operational, "SendTargets=All", E::WrongStage("SendTargets".into())),
        (Stage::Operational, "TargetAlias=a", E::WrongSender("TargetAlias".into())),
        (Stage::Operational, "MaxBurstLength=Reject", E::ReservedValue("MaxBurstLength".into())),
        (
            Stage::Operational,
            "MaxRecvDataSegmentLength=1",
            E::BadValue { key: "MaxRecvDataSegmentLength".into(), value: "1".into() },
        ),
    ] {
        assert_eq!(Negotiator::target(Offer::target()).handle(stage, &keys(text)), Err(error), "{text}");
    }
    let mut target = Negotiator::target(Offer::target());
    target.handle(Stage::Operational, &keys("MaxBurstLength=512 InitiatorName=a")).unwrap();
    for (text, key) in [("MaxBurstLength=512", "MaxBurstLength"), ("InitiatorName=b", "InitiatorName")] {
        assert_eq!(target.handle(Stage::Operational, &keys(text)), Err(E::Repeated(key.into())));
    }
}

/// A client may send many texts, each of which is within its own limit.
#[test]
fn a_negotiation_has_so_many_keys_in_all_its_texts_and_no_more() {
    let mut target = Negotiator::target(Offer::target());
    let text = |from: usize, to: usize| -> Keys { (from..to).map(|number| (format!("X-a{number}"), "1")).collect() };
    let half = TEXT_KEYS_MAX / 2;
    for (from, to) in [(0, half), (half, TEXT_KEYS_MAX)] {
        assert_eq!(target.handle(Stage::Operational, &text(from, to)).unwrap().len(), half);
    }
    let one_more = target.handle(Stage::Operational, &text(TEXT_KEYS_MAX, TEXT_KEYS_MAX + 1));
    assert_eq!(one_more, Err(NegotiationError::TooManyKeys));
}

/// libiscsi does this when it offers CHAP and the target does not require it.
#[test]
fn who_and_what_for_may_be_said_again_but_not_changed() {
    let mut target = Negotiator::target(Offer::target());
    let said = "InitiatorName=a TargetName=b SessionType=Normal";
    target.handle(Stage::Security, &keys(said)).unwrap();
    assert_eq!(target.handle(Stage::Operational, &keys(said)), Ok(keys("")));
    for (changed, key) in [("SessionType=Discovery", "SessionType"), ("TargetName=c", "TargetName")] {
        let refused = target.handle(Stage::Operational, &keys(changed));
        assert_eq!(refused, Err(NegotiationError::Repeated(key.into())));
    }
}

#[test]
fn answers_must_follow_the_selection_rule() {
    for answer in [
        "MaxBurstLength=2000000", // Minimum: above the proposal
        "DefaultTime2Wait=0",     // Maximum: below it
        "ImmediateData=Yes",      // AND: No was proposed
        "HeaderDigest=CRC32C",    // List: not proposed
        "MaxConnections=NotUnderstood",
    ] {
        let offer = Offer {
            default_time2wait: 3,
            immediate_data: false,
            header_digest: vec![Digest::None],
            ..Offer::initiator()
        };
        let mut initiator = Negotiator::initiator(offer, SessionType::Normal);
        initiator.propose();
        let result = initiator.handle(Stage::Operational, &keys(answer));
        assert!(matches!(result, Err(NegotiationError::BadAnswer { .. })), "{answer}");
    }
}

#[test]
fn older_targets_need_not_know_newer_keys() {
    let mut initiator = Negotiator::initiator(Offer::initiator(), SessionType::Normal);
    initiator.propose();
    let answer = keys("iSCSIProtocolLevel=NotUnderstood TaskReporting=NotUnderstood InitialR2T=Irrelevant");
    assert_eq!(initiator.handle(Stage::Operational, &answer), Ok(Keys::new()));
    assert_eq!((initiator.negotiated().protocol_level, initiator.negotiated().initial_r2t), (1, true));
}

#[test]
fn a_target_speaks_up_where_the_default_is_not_admissible_to_it() {
    let mut target = Negotiator::target(Offer { immediate_data: false, ..Offer::target() });
    target.handle(Stage::Operational, &keys("MaxBurstLength=512")).unwrap();
    let proposals = target.propose();
    assert_eq!(proposals.get("ImmediateData"), Some("No"));
    assert_eq!(proposals.get("MaxBurstLength"), None);
    assert_eq!(proposals.get("MaxRecvDataSegmentLength"), Some("262144"));
    assert!(target.awaits_answers());
    assert!(target.propose().is_empty());
    target.handle(Stage::Operational, &keys("ImmediateData=No")).unwrap();
    assert!(!target.negotiated().immediate_data);
}

#[test]
fn a_target_of_defaults_only_declares() {
    let mut target = Negotiator::target(Offer::target());
    assert_eq!(
        target.propose().iter().map(|(key, _)| key.to_owned()).collect::<Vec<_>>(),
        ["MaxRecvDataSegmentLength"]
    );
    assert!(!target.awaits_answers());
}

#[test]
fn a_discovery_session_negotiates_only_what_matters() {
    let (initiator, target) = negotiate(Offer::initiator(), Offer::target(), SessionType::Discovery);
    assert_eq!(initiator.negotiated(), target.negotiated());
    assert_eq!(target.negotiated().session_type, SessionType::Discovery);
    let mut target = Negotiator::target(Offer::target());
    assert_eq!(answers(&mut target, "SessionType=Discovery MaxConnections=4"), "MaxConnections=Irrelevant");
}

#[test]
fn private_keys_are_lists_both_ends_know() {
    let private = |values: &[&str]| {
        vec![("X-io.forebay.Test".to_owned(), values.iter().map(|value| (*value).to_owned()).collect())]
    };
    let (initiator, target) = negotiate(
        Offer { private: private(&["2", "1"]), ..Offer::initiator() },
        Offer { private: private(&["1"]), ..Offer::target() },
        SessionType::Normal,
    );
    assert_eq!(initiator.private("X-io.forebay.Test"), Some("1"));
    assert_eq!(target.private("X-io.forebay.Test"), Some("1"));
    let (initiator, _) =
        negotiate(Offer { private: private(&["2"]), ..Offer::initiator() }, Offer::target(), SessionType::Normal);
    assert_eq!(initiator.private("X-io.forebay.Test"), None);
}

#[test]
fn a_segment_length_may_be_declared_anew_in_the_full_feature_phase() {
    let mut target = Negotiator::target(Offer::target());
    target.handle(Stage::Operational, &keys("MaxRecvDataSegmentLength=1024")).unwrap();
    target.restart();
    target.handle(Stage::FullFeature, &keys("MaxRecvDataSegmentLength=4096")).unwrap();
    assert_eq!(target.negotiated().initiator_max_recv_data_segment_length, 4096);
}

fn offers() -> impl Strategy<Value = Offer> {
    let numbers = (512..1u32 << 24, 512..1u32 << 24, 512..1u32 << 24, 0..3600u16, 1..65535u16, 0..3u8);
    (numbers, any::<[bool; 6]>()).prop_map(|((segment, burst, first, wait, r2t, level), flags)| Offer {
        header_digest: if flags[4] { vec![Digest::Crc32c, Digest::None] } else { vec![Digest::None] },
        max_recv_data_segment_length: segment,
        max_burst_length: burst,
        first_burst_length: first,
        default_time2wait: wait,
        max_outstanding_r2t: r2t,
        error_recovery_level: level,
        initial_r2t: flags[0],
        immediate_data: flags[1],
        data_pdu_in_order: flags[2],
        data_sequence_in_order: flags[3],
        ..Offer::initiator()
    })
}

proptest! {
    /// Any two offers lead to the same values at both ends, within the proposals of both.
    #[test]
    fn any_two_offers_agree(initiator_offer in offers(), target_offer in offers()) {
        let (initiator, target) = negotiate(initiator_offer.clone(), target_offer.clone(), SessionType::Normal);
        let negotiated = initiator.negotiated();
        prop_assert_eq!(negotiated, target.negotiated());
        let least = initiator_offer.max_burst_length.min(target_offer.max_burst_length);
        prop_assert_eq!(negotiated.max_burst_length, least);
        prop_assert!(negotiated.first_burst_length <= negotiated.max_burst_length);
        prop_assert_eq!(negotiated.initial_r2t, initiator_offer.initial_r2t || target_offer.initial_r2t);
        prop_assert_eq!(negotiated.immediate_data, initiator_offer.immediate_data && target_offer.immediate_data);
    }

    /// Malformed keys lead to an answer or an error, and no value in force ever leaves its range.
    #[test]
    fn nonsense_never_panics(
        pairs in proptest::collection::vec((0..RULES.len() + LOGIN_KEYS.len(), "[0-9A-Za-z,~]{0,12}"), 0..12),
        is_target in any::<bool>(),
    ) {
        let name = |index: usize| RULES.get(index).map_or_else(|| LOGIN_KEYS[index - RULES.len()].0, |rule| rule.name);
        let keys: Keys = pairs.iter().map(|(index, value)| (name(*index), value)).collect();
        let mut negotiator = if is_target {
            Negotiator::target(Offer::target())
        } else {
            Negotiator::initiator(Offer::initiator(), SessionType::Normal)
        };
        negotiator.propose();
        let _ = negotiator.handle(Stage::Operational, &keys);
        let negotiated = negotiator.negotiated();
        prop_assert!((512..1 << 24).contains(&negotiated.max_burst_length));
        prop_assert!((512..1 << 24).contains(&negotiated.initiator_max_recv_data_segment_length));
        prop_assert!(negotiated.max_outstanding_r2t >= 1);
    }
}
