use super::*;
use crate::sharing::lock::{GRANT_MAX, LOCK_BYTES};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn locks() -> Vec<Lock> {
    vec![
        Lock { resource: Resource::File(0), mode: Some(Mode::IntentionExclusive), grant: 0 },
        Lock { resource: Resource::Group(0, 0x0102), mode: Some(Mode::Exclusive), grant: 0 },
    ]
}

fn given_back() -> Vec<Lock> {
    vec![
        Lock { resource: Resource::Group(7, 3), mode: None, grant: GRANT_MAX },
        Lock { resource: Resource::Metadata(9), mode: Some(Mode::MetadataShared), grant: 5 },
    ]
}

fn all_parameters() -> Vec<(Parameters, &'static str)> {
    let key = *b"0123456789abcdef";
    let before = Some(LifeBefore { client: 0x1_0000_0002, proof: [0xbb; 32] });
    vec![
        (
            Parameters::Register { key, registers_reads: true, before },
            "3031323334353637383961626364656601000000000000000000000100000002\
             bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
        ),
        (Parameters::Renew { taken: 3 }, "0000000000000003"),
        (Parameters::Leave, ""),
        (
            Parameters::Lock { request: 4, transaction: 5, is_reclaim: true, locks: locks() },
            "000000000000000400000005010000020103000000000000000000000000000000000000000000000205000000000000\
             00000000000000000000000000000102",
        ),
        (
            Parameters::Unlock { transaction: 0, locks: given_back() },
            "000000000000000202ffffffffffffff0000000000000007000000000000000300000000000000050000000000000009\
             0000000000000000",
        ),
        (
            Parameters::Acknowledge { taken: 6, callback: 7, answer: CallbackAnswer::GettingOn },
            "000000000000000600000000000000070200000000000000",
        ),
        (Parameters::Begin { transaction: 8, birth: 9 }, "00000008000000000000000000000009"),
        (Parameters::End { transaction: 10 }, "0000000a00000000"),
        (Parameters::Open { file: 11, is_write: true }, "000000000000000b0300000000000000"),
        (Parameters::Close { file: 11, is_write: false }, "000000000000000b0100000000000000"),
        (Parameters::Fence { client: 12 }, "000000000000000c"),
        (Parameters::Cancel { request: 13 }, "000000000000000d"),
    ]
}

fn all_messages() -> Vec<(MessageBody, &'static str)> {
    let lock = Lock { resource: Resource::Metadata(2), mode: None, grant: 3 };
    vec![
        (
            MessageBody::Registered { lease_ms: 10_000, grace_ms: 1, key: [0xaa; 16], proof: [0xbb; 32] },
            "00000000000000000000271000000001aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\
             bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
        ),
        (
            MessageBody::Granted { request: 1, transaction: 2, locks: given_back() },
            "01000000000000000000000000000001000000020000000202ffffffffffffff00000000000000070000000000000003\
             000000000000000500000000000000090000000000000000",
        ),
        (MessageBody::Queued { request: 1 }, "02000000000000000000000000000001"),
        (
            MessageBody::Refused { request: 1, reason: Reason::Deadlock, index: 4 },
            "030000000000000000000000000000010001000400000000",
        ),
        (
            MessageBody::CallBack { callback: 1, lock, deadline_ms: 5 },
            "0400000000000000000000000000000100ff000000000003000000000000000200000000000000000000000500000000",
        ),
        (
            MessageBody::Purge { callback: 1, first_block: 2, block_count: 3, deadline_ms: 4 },
            "05000000000000000000000000000001000000000000000200000000000000030000000400000000",
        ),
        (MessageBody::LastClose { file: 1 }, "06000000000000000000000000000001"),
        (MessageBody::Begun { transaction: 1, birth: 2 }, "070000000000000000000001000000000000000000000002"),
    ]
}

#[test]
fn parameter_lists_are_these_bytes_and_no_shorter_or_longer_ones() {
    for (parameters, golden) in all_parameters() {
        let list = parameters.emit();
        assert_eq!(hex(&list), golden, "{parameters:?}");
        let action = parameters.action();
        assert_eq!(Parameters::parse(action, &list), Ok(parameters));
        for length in 0..list.len() {
            assert!(Parameters::parse(action, &list[..length]).is_err(), "{action} with {length} bytes");
        }
        let end = WrongByte(list.len() as u16);
        assert_eq!(Parameters::parse(action, &[&list[..], &[0]].concat()), Err(end), "{action} with one more");
    }
}

#[test]
fn every_service_action_has_its_row_and_its_list() {
    let of = |code| crate::cdb::table::rows_of(code).iter().filter_map(|row| row.service_action).collect::<Vec<_>>();
    let lists: Vec<u8> = all_parameters().into_iter().map(|(parameters, _)| parameters.action()).collect();
    assert_eq!(of(0xc4), lists);
    assert_eq!(of(0xc3), [action_in::REPORT]);
    assert!(
        (0..=u8::MAX).filter(|action| !lists.contains(action)).all(|action| Parameters::parse(action, &[]).is_err())
    );
}

#[test]
fn messages_are_these_bytes_and_no_shorter_or_longer_ones() {
    for (body, golden) in all_messages() {
        let message = Message { lun: 0x0001_0000_0000_0000, client: 0x1_0000_0002, number: 7, body };
        let bytes = message.emit();
        assert_eq!(hex(&bytes[..24]), "000100000000000000000001000000020000000000000007");
        assert_eq!(hex(&bytes[24..]), golden, "{message:?}");
        assert_eq!(Message::parse(&bytes), Ok(message));
        for length in 0..bytes.len() {
            assert!(Message::parse(&bytes[..length]).is_err(), "{length} bytes");
        }
        assert!(Message::parse(&[&bytes[..], &[0]].concat()).is_err());
    }
}

#[test]
fn the_longest_message_is_one_of_granted_locks() {
    let locks = vec![given_back()[0]; 64];
    let granted =
        Message { lun: 0, client: 1, number: 1, body: MessageBody::Granted { request: 1, transaction: 0, locks } };
    assert_eq!(granted.emit().len(), message::message_bytes_max(64));
}

#[test]
fn a_count_of_what_is_not_there_takes_no_room() {
    let mut list = Parameters::Lock { request: 1, transaction: 0, is_reclaim: false, locks: locks() }.emit();
    list[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    assert_eq!(Parameters::parse(action_out::LOCK, &list), Err(WrongByte(list.len() as u16)));
    let body = MessageBody::Granted { request: 1, transaction: 0, locks: locks() };
    let mut message = Message { lun: 0, client: 1, number: 1, body }.emit();
    for count in [1_000_000, u32::MAX] {
        message[44..48].copy_from_slice(&count.to_be_bytes());
        assert_eq!(Message::parse(&message), Err(WrongByte(message.len() as u16)));
    }
    let mut report = Report::default().emit();
    report[..4].copy_from_slice(&(12 + 48 * 1_000_000_u32).to_be_bytes());
    assert_eq!(Report::parse(&report), Err(WrongByte(report.len() as u16)));
}

#[test]
fn what_is_reserved_is_refused_at_its_byte() {
    let cases = [
        // A client without a life before has no proof.
        (Parameters::Register { key: [0; 16], registers_reads: false, before: None }, vec![16, 17, 23, 32, 63]),
        (Parameters::Acknowledge { taken: 0, callback: 0, answer: CallbackAnswer::Done }, vec![16, 17, 23]),
        (Parameters::Begin { transaction: 0, birth: 0 }, vec![4, 7]),
        (Parameters::End { transaction: 0 }, vec![4, 7]),
        (Parameters::Open { file: 0, is_write: false }, vec![8, 9, 15]),
        (Parameters::Lock { request: 0, transaction: 0, is_reclaim: false, locks: locks() }, vec![12, 13, 16, 17, 32]),
        (Parameters::Unlock { transaction: 0, locks: given_back() }, vec![4, 5, 8, 9]),
    ];
    for (parameters, bytes) in cases {
        for at in bytes {
            let mut list = parameters.emit();
            list[at] = 0x80;
            assert_eq!(Parameters::parse(parameters.action(), &list), Err(WrongByte(at as u16)), "{parameters:?}");
        }
    }
    let no_mode = Lock { mode: None, ..locks()[0] };
    let list = Parameters::Lock { request: 0, transaction: 0, is_reclaim: false, locks: vec![no_mode] }.emit();
    assert_eq!(Parameters::parse(action_out::LOCK, &list), Err(WrongByte(17)), "it asks for no mode");
    let of_grant = Lock { grant: 1, ..locks()[0] };
    let list = Parameters::Lock { request: 0, transaction: 0, is_reclaim: false, locks: vec![of_grant] }.emit();
    assert_eq!(Parameters::parse(action_out::LOCK, &list), Err(WrongByte(18)), "it has no grant yet");
    let metadata = Lock { resource: Resource::Metadata(1), ..given_back()[0] };
    let mut list = Parameters::Unlock { transaction: 0, locks: vec![metadata] }.emit();
    list[8 + LOCK_BYTES - 1] = 1;
    assert_eq!(Parameters::parse(action_out::UNLOCK, &list), Err(WrongByte(24)), "only groups have a group");
}

/// Parsing of damaged lists and messages never panics, and an accepted one is parsed the same
/// again.
#[test]
fn bytes_at_random_are_understood_one_way_or_refused() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let lists: Vec<(u8, Vec<u8>)> =
        all_parameters().into_iter().map(|(parameters, _)| (parameters.action(), parameters.emit())).collect();
    let messages: Vec<Vec<u8>> =
        all_messages().into_iter().map(|(body, _)| Message { lun: 0, client: 1, number: 1, body }.emit()).collect();
    let damage = |bytes: &[u8], random: &mut dyn FnMut() -> u64| {
        let mut bytes = bytes.to_vec();
        for _ in 0..random() % 4 {
            let at = random() as usize % bytes.len().max(1);
            match (bytes.get_mut(at), random() % 3) {
                (Some(byte), 0) => *byte = random() as u8,
                (Some(byte), 1) => *byte ^= 1 << (random() % 8),
                _ => bytes.truncate(at),
            }
        }
        bytes
    };
    for _ in 0..20_000 {
        let (action, list) = &lists[random() as usize % lists.len()];
        let list = damage(list, &mut random);
        if let Ok(parameters) = Parameters::parse(*action, &list) {
            let again = Parameters::parse(*action, &parameters.emit());
            assert_eq!(again, Ok(parameters));
        }
        let message = damage(&messages[random() as usize % messages.len()], &mut random);
        if let Ok(parsed) = Message::parse(&message) {
            assert_eq!(parsed.emit(), message);
        }
        let _ = Report::parse(&message);
        let _ = Support::parse(&message);
    }
}

#[test]
fn a_report_is_what_was_reported() {
    let lock = given_back()[1];
    let records = vec![
        ReportRecord::Client { client: 1, is_being_fenced: true, lease_left_ms: 2, registrations: 3, untaken: 4 },
        ReportRecord::Grant { client: 1, transaction: 5, lock },
        ReportRecord::Waiting { client: 1, request: 6, lock },
        ReportRecord::Callback { client: 1, callback: 7, deadline_left_ms: 8 },
        ReportRecord::Fenced { client: 9 },
    ];
    let name = "iqn.2026-11.org.example:a-name-of-more-than-one-line,i,0x400001370000";
    let records: Vec<ReportRecord> = records.into_iter().chain(ReportRecord::name_lines(9, name)).collect();
    assert_eq!(Report::names(&records), [(9, name.to_owned())]);
    let report = Report { records, next: Some(5) };
    let bytes = report.emit();
    assert_eq!(bytes.len(), report::HEADER_BYTES + 8 * report::RECORD_BYTES);
    assert_eq!(
        hex(&bytes[..48]),
        "0000018c000000000000000000000005000100000000000200000000000000010000000000000003\
                                   0000000000000004"
    );
    let of_name = hex(&bytes[bytes.len() - 2 * report::RECORD_BYTES..]);
    let golden = [
        "05010000000000000000000000000009",
        &hex(&name.as_bytes()[32..64]),
        "05000000000000000000000000000009",
        "3730303030000000000000000000000000000000000000000000000000000000",
    ];
    assert_eq!(of_name, golden.concat());
    assert_eq!(Report::parse(&bytes), Ok(report));
    assert_eq!(Report::parse(&Report::default().emit()), Ok(Report::default()));
}

#[test]
fn the_page_is_these_bytes_and_nobody_elses() {
    let support = Support {
        is_paper_profile: false,
        locks_max: 64,
        lease_ms: 10_000,
        callback_ms: 10_000,
        callback_ms_max: 60_000,
        hold_ms_min: 20,
        block_bytes: 4096,
        untaken_max: 4096,
        prefetch_registers: true,
        withholds: true,
    };
    let page = support.emit();
    assert_eq!(Support::parse(&page), Ok(Some(support)));
    assert_eq!((page.len(), page[40], &page[41..]), (48, 3, &[0; 7][..]));
    let with = |at: usize, byte: u8| {
        let mut page = page.clone();
        page[at] = byte;
        Support::parse(&page)
    };
    assert_eq!(with(4, b'X'), Ok(None), "another vendor's");
    assert_eq!(with(12, 2), Ok(None), "another version");
    assert!(with(13, 2).is_err() && with(34, 3).is_err() && with(15, 0).is_err());
    assert!(Support::parse(&page[..47]).is_err());
    // A target from before the bit, and one with further bits.
    assert_eq!(with(40, 0), Ok(Some(Support { prefetch_registers: false, withholds: false, ..support })));
    assert_eq!(with(40, 0xff), Ok(Some(support)));
}
