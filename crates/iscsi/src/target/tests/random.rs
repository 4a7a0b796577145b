//! Arbitrary input: no bytes and no PDUs break this side.

use std::time::Duration;

use super::super::*;
use super::peer::*;
use crate::negotiation::Offer;
use crate::pdu::*;
use base::random::Random;
use proptest::prelude::*;

/// Random PDUs: an initiator's opcode, small numbers in important fields, and a data segment now
/// and then.
fn random_pdus(random: &mut Random, count: usize) -> Vec<u8> {
    const OPCODES: [u8; 12] = [0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x10, 0x01, 0x05, 0x01, 0x05];
    let mut bytes = Vec::new();
    for _ in 0..count {
        let mut raw = [0; BHS_BYTES];
        random.fill(&mut raw);
        let immediate = if random.chance(0.3) { 0x40 } else { 0 };
        raw[0] = OPCODES[random.below(OPCODES.len() as u64) as usize] | immediate;
        if random.chance(0.8) {
            raw[8..16].fill(0);
            raw[16..20].copy_from_slice(&(random.below(6) as u32).to_be_bytes());
            raw[20..24].copy_from_slice(&(random.below(4096) as u32).to_be_bytes());
            raw[24..28].copy_from_slice(&(100 + random.below(20) as u32).to_be_bytes());
        }
        if raw[0] & 0x3f == 5 && random.chance(0.8) {
            let tag = if random.chance(0.5) { RESERVED_TAG } else { random.below(40) as u32 };
            raw[20..24].copy_from_slice(&tag.to_be_bytes());
            raw[36..48].fill(0);
            raw[42] = random.below(8) as u8;
        }
        let length = if random.chance(0.5) { random.below(2048) as usize } else { 0 };
        Lengths { ahs_words: if random.chance(0.05) { 2 } else { 0 }, data_segment_bytes: length as u32 }
            .emit(&mut raw);
        bytes.extend_from_slice(&raw);
        if raw[4] == 2 {
            bytes.extend_from_slice(&[0, 5, 2, 0, 0, 0, 2, 0]);
        }
        let padded = length + padding_bytes(length);
        bytes.resize(bytes.len() + padded, 0x42);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes_before_login(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let mut peer = Peer::new(parameters());
        peer.send_bytes(&bytes);
        peer.receive();
    }

    #[test]
    fn any_pdus_after_login(seed in any::<u64>(), initial_r2t in any::<bool>()) {
        let mut random = Random::new(seed);
        let initial_r2t = if initial_r2t { "Yes" } else { "No" };
        let keys = [("InitialR2T", initial_r2t), ("FirstBurstLength", "2048"), ("MaxBurstLength", "2048")];
        let mut peer = Peer::logged_in(parameters(), &keys);
        for _ in 0..20 {
            let bytes = random_pdus(&mut random, 4);
            peer.send_bytes(&bytes);
            for event in std::mem::take(&mut peer.events) {
                match event {
                    Event::Command(command) if random.chance(0.7) => {
                        let outcome = if random.chance(0.5) { good(&pattern(600)) } else { Outcome::default() };
                        peer.complete(command.task, outcome);
                    }
                    Event::TaskManagement(request) => {
                        let outcome = TaskManagementOutcome::FunctionComplete;
                        peer.target.handle_task_management(peer.now, request.id, outcome);
                    }
                    _ => {}
                }
            }
            peer.receive();
            peer.sleep(Duration::from_millis(random.below(2000)));
            prop_assert!(peer.target.task_count() <= 128 + crate::limits::IMMEDIATE_TASKS_MAX);
        }
    }

    /// An initiator's proposals are met or limited, never an error.
    #[test]
    fn any_operational_values_are_negotiated(
        burst in 512u32..1 << 24, first in 512u32..1 << 24, segment in 512u32..1 << 24, r2ts in 1u16..,
    ) {
        let (burst_text, first_text) = (burst.to_string(), first.to_string());
        let (segment_text, r2ts_text) = (segment.to_string(), r2ts.to_string());
        let keys = [
            ("MaxBurstLength", burst_text.as_str()),
            ("FirstBurstLength", &first_text),
            ("MaxRecvDataSegmentLength", &segment_text),
            ("MaxOutstandingR2T", &r2ts_text),
        ];
        let mut peer = Peer::logged_in(parameters(), &keys);
        let negotiated = peer.target.session().request().negotiated;
        prop_assert!(negotiated.first_burst_length <= negotiated.max_burst_length);
        prop_assert!(negotiated.max_burst_length <= burst.min(Offer::target().max_burst_length));
        prop_assert_eq!(negotiated.initiator_max_recv_data_segment_length, segment);
    }
}
