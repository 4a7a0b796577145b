//! The server by bytes: the messages of a client, and the replies.

use super::*;
use crate::error::Failure;
use crate::limits::{OPTION_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::wire::handshake::{
    BASE_ALLOCATION, GoRequest, MetaContextRequest, emit_option, info, option, reply as option_reply,
};
use crate::wire::transmission::{REQUEST_MAGIC, RequestRaw, command, command_flag};
use crate::{Abilities, BlockSize, StatusExtent};
use proptest::prelude::*;
use zerocopy::byteorder::big_endian::U32;

const SIZE_BYTES: u64 = 1 << 20;

fn export() -> Export {
    Export {
        name: "disk".into(),
        description: "a test disk".into(),
        size_bytes: SIZE_BYTES,
        block_size: BlockSize { min: 512, preferred: 4096, payload_max: PAYLOAD_BYTES_MAX },
        abilities: Abilities {
            can_flush: true,
            can_fua: true,
            can_trim: true,
            can_write_zeroes: true,
            can_multi_conn: true,
            can_cache: true,
            can_fast_zero: true,
            ..Abilities::default()
        },
    }
}

/// A server whose greeting was received.
fn greeted(export: Export) -> Server {
    let mut server = Server::new(Arc::new(export));
    let greeting = server.transmit.drain();
    assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
    server
}

/// Feeds `bytes` in pieces of at most `cut`, polling after each; every write gets a buffer of 0xa5.
fn feed_cut(server: &mut Server, mut bytes: &[u8], cut: usize) -> Vec<Event> {
    let mut events = Vec::new();
    loop {
        while let Some(event) = server.poll_event() {
            match event {
                Event::BufferNeeded { length } => {
                    let mut buffer = Buffer::zeroed(length);
                    buffer.fill(0xa5);
                    server.provide_buffer(buffer);
                }
                Event::Answered => {}
                event => events.push(event),
            }
        }
        let space = server.receive_space();
        let count = space.len().min(bytes.len()).min(cut);
        if count == 0 {
            return events;
        }
        let (now, rest) = bytes.split_at(count);
        space[..count].copy_from_slice(now);
        server.handle_received(count);
        bytes = rest;
    }
}

fn feed(server: &mut Server, bytes: &[u8]) -> Vec<Event> {
    feed_cut(server, bytes, usize::MAX)
}

fn option_bytes(option: u32, emit_data: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    emit_option(option, &mut out, emit_data);
    out
}

fn go_bytes(name: &str) -> Vec<u8> {
    option_bytes(option::GO, |out| GoRequest { name, requests: vec![info::BLOCK_SIZE] }.emit(out))
}

/// The option replies in `bytes`: (option, reply, data).
fn option_replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let end = 20 + number(16) as usize;
        replies.push((number(8), number(12), bytes[20..end].to_vec()));
        bytes = &bytes[end..];
    }
    replies
}

fn reply_types(server: &mut Server) -> Vec<u32> {
    option_replies(&server.transmit.drain()).into_iter().map(|(_, reply, _)| reply).collect()
}

fn negotiated(export: Export, is_structured: bool) -> Server {
    let mut server = greeted(export);
    let mut bytes = vec![0, 0, 0, 3];
    if is_structured {
        bytes.extend(option_bytes(option::STRUCTURED_REPLY, |_| {}));
        let context = MetaContextRequest { name: "", queries: vec![BASE_ALLOCATION] };
        bytes.extend(option_bytes(option::SET_META_CONTEXT, |out| context.emit(out)));
    }
    bytes.extend(go_bytes("disk"));
    let events = feed(&mut server, &bytes);
    assert!(matches!(events[..], [Event::Negotiated { is_structured: told }] if told == is_structured), "{events:?}");
    server.transmit.drain();
    server
}

fn request(command: u16, flags: u16, offset: u64, length: u32) -> Vec<u8> {
    let raw = RequestRaw {
        magic: U32::new(REQUEST_MAGIC),
        flags: U16::new(flags),
        command: U16::new(command),
        cookie: U64::new(0xc0ff_ee00),
        offset: U64::new(offset),
        length: U32::new(length),
    };
    raw.as_bytes().to_vec()
}

/// The error of the only reply there is, zero for success.
fn simple_error(server: &mut Server) -> u32 {
    let bytes = server.transmit.drain();
    let reply: [u8; 16] = bytes.try_into().expect("one simple reply");
    assert_eq!(reply[..4], [0x67, 0x44, 0x66, 0x98]);
    assert_eq!(reply[8..], 0xc0ff_ee00u64.to_be_bytes());
    u32::from_be_bytes(reply[4..8].try_into().unwrap())
}

#[test]
fn golden_handshake() {
    let mut server = greeted(export());
    let mut client = vec![0, 0, 0, 3];
    client.extend(b"IHAVEOPT\0\0\0\x07\0\0\0\x08\0\0\0\0\0\x01\0\x03");
    let events = feed_cut(&mut server, &client, 1);
    assert!(matches!(events[..], [Event::Negotiated { is_structured: false }]));
    let mut golden = Vec::new();
    golden.extend(b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0c\0\0\0\0\0\0\0\x10\0\0\x0d\x6d");
    golden.extend(b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0e\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0");
    golden.extend(b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0");
    assert_eq!(server.transmit.drain(), golden);
}

#[test]
fn export_name_is_padded_unless_declined() {
    for (client_flags, length) in [(1, 134), (3, 10)] {
        let mut server = greeted(export());
        let mut bytes = vec![0, 0, 0, client_flags];
        bytes.extend(option_bytes(option::EXPORT_NAME, |out| out.extend(b"disk")));
        let events = feed(&mut server, &bytes);
        assert!(matches!(events[..], [Event::Negotiated { .. }]));
        let answer = server.transmit.drain();
        assert_eq!(answer.len(), length);
        assert_eq!(answer[..10], [0, 0, 0, 0, 0, 0x10, 0, 0, 0x0d, 0x6d]);
    }
    let mut server = greeted(export());
    let mut bytes = vec![0, 0, 0, 3];
    bytes.extend(option_bytes(option::EXPORT_NAME, |out| out.extend(b"other")));
    assert!(matches!(feed(&mut server, &bytes)[..], [Event::Failed(ProtocolError::UnknownExport(_))]));
}

#[test]
fn every_option_has_its_answer() {
    use option_reply::{ACK, ERR_INVALID, ERR_POLICY, ERR_TOO_BIG, ERR_UNKNOWN, ERR_UNSUP, INFO, META_CONTEXT, SERVER};
    let data = |bytes: &'static [u8]| move |out: &mut Vec<u8>| out.extend(bytes);
    let asked_for_all = GoRequest { name: "disk", requests: vec![0, 1, 2, 3, 99] };
    let wildcard = MetaContextRequest { name: "disk", queries: vec!["base:"] };
    let foreign = MetaContextRequest { name: "disk", queries: vec!["qemu:dirty-bitmap"] };
    let elsewhere = MetaContextRequest { name: "other", queries: vec![BASE_ALLOCATION] };
    let mut server = greeted(export());
    feed(&mut server, &[0, 0, 0, 3]);
    for (bytes, replies) in [
        (option_bytes(option::LIST, |_| {}), vec![SERVER, ACK]),
        (option_bytes(option::LIST, data(b"x")), vec![ERR_INVALID]),
        (option_bytes(option::STARTTLS, |_| {}), vec![ERR_POLICY]),
        (option_bytes(option::EXTENDED_HEADERS, |_| {}), vec![ERR_UNSUP]),
        (option_bytes(4711, data(b"abc")), vec![ERR_UNSUP]),
        (option_bytes(option::INFO, |out| asked_for_all.emit(out)), vec![INFO, INFO, INFO, INFO, ACK]),
        (option_bytes(option::INFO, data(b"\0\0\0\x09disk")), vec![ERR_INVALID]),
        (go_bytes("other"), vec![ERR_UNKNOWN]),
        (option_bytes(option::SET_META_CONTEXT, |out| wildcard.emit(out)), vec![ERR_INVALID]),
        (option_bytes(option::STRUCTURED_REPLY, |_| {}), vec![ACK]),
        (option_bytes(option::SET_META_CONTEXT, |out| wildcard.emit(out)), vec![ACK]),
        (option_bytes(option::LIST_META_CONTEXT, |out| wildcard.emit(out)), vec![META_CONTEXT, ACK]),
        (option_bytes(option::SET_META_CONTEXT, |out| foreign.emit(out)), vec![ACK]),
        (option_bytes(option::SET_META_CONTEXT, |out| elsewhere.emit(out)), vec![ERR_UNKNOWN]),
        (option_bytes(option::LIST, |out| out.resize(out.len() + OPTION_BYTES_MAX + 1, 7)), vec![ERR_TOO_BIG]),
        (option_bytes(4711, |out| out.resize(out.len() + 100_000, 7)), vec![ERR_TOO_BIG]),
    ] {
        assert!(feed_cut(&mut server, &bytes, 1000).is_empty());
        assert_eq!(reply_types(&mut server), replies, "to {:?}", &bytes[..bytes.len().min(40)]);
    }
    assert!(matches!(feed(&mut server, &option_bytes(option::ABORT, |_| {}))[..], [Event::Disconnected]));
    assert_eq!(reply_types(&mut server), [ACK]);
}

#[test]
fn a_server_that_goes_away_says_so() {
    let mut server = greeted(export());
    server.begin_shutdown();
    let mut bytes = vec![0, 0, 0, 3];
    bytes.extend(go_bytes("disk"));
    assert!(feed(&mut server, &bytes).is_empty());
    assert_eq!(reply_types(&mut server), [option_reply::ERR_SHUTDOWN]);
    let mut server = negotiated(export(), false);
    server.begin_shutdown();
    assert!(feed(&mut server, &request(command::READ, 0, 0, 512)).is_empty());
    assert_eq!(simple_error(&mut server), 108);
}

#[test]
fn garbage_closes() {
    for bytes in [&[0, 0, 0, 4][..], b"\0\0\0\x03GET / HTTP/1.1\r\n", b"\0\0\0\0IHAVEOPT\0\0\0\x03\0\0\0\0"] {
        let mut server = greeted(export());
        assert!(matches!(feed(&mut server, bytes)[..], [Event::Failed(_)]), "{bytes:?}");
        assert!(server.receive_space().is_empty());
    }
    let mut server = negotiated(export(), true);
    assert!(matches!(feed(&mut server, &[0xff; 28])[..], [Event::Failed(ProtocolError::Magic { .. })]));
}

#[test]
fn refused_requests_get_the_documents_errors() {
    use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, REQ_ONE};
    let read_only = Export { abilities: Abilities { is_read_only: true, ..export().abilities }, ..export() };
    let bare = Export { abilities: Abilities::default(), ..export() };
    let end = SIZE_BYTES;
    for (export, command, flags, offset, length, error) in [
        (export(), command::READ, 0, 0, 0, 22),
        (export(), command::READ, 0, end - 512, 1024, 22),
        (export(), command::READ, 0, u64::MAX - 511, 512, 22),
        (export(), command::READ, DF, 0, 512, 22),
        (export(), command::READ, REQ_ONE, 0, 512, 22),
        (Export { size_bytes: 1 << 30, ..export() }, command::READ, 0, 0, PAYLOAD_BYTES_MAX + 512, 75),
        (Export { size_bytes: 1 << 30, ..export() }, command::CACHE, 0, 0, PAYLOAD_BYTES_MAX + 512, 75),
        (export(), command::WRITE, 0, end, 512, 28),
        (export(), command::WRITE, NO_HOLE, 0, 512, 22),
        (export(), command::WRITE, 0, 0, 0, 22),
        (read_only.clone(), command::WRITE, 0, 0, 70_000, 1),
        (read_only.clone(), command::TRIM, 0, 0, 512, 1),
        (read_only, command::WRITE_ZEROES, 0, 0, 512, 1),
        (export(), command::WRITE_ZEROES, 0, end - 512, 1024, 28),
        (export(), command::TRIM, 0, end - 512, 1024, 22),
        (bare.clone(), command::TRIM, 0, 0, 512, 22),
        (bare.clone(), command::CACHE, 0, 0, 512, 22),
        (bare.clone(), command::WRITE_ZEROES, 0, 0, 512, 22),
        (
            Export { abilities: Abilities { can_write_zeroes: true, ..Abilities::default() }, ..bare },
            command::WRITE_ZEROES,
            FAST_ZERO,
            0,
            512,
            22,
        ),
        (export(), command::FLUSH, 0, 512, 0, 22),
        (export(), command::FLUSH, 0, 0, 512, 22),
        (export(), command::BLOCK_STATUS, 0, 0, 512, 22),
        (export(), 8, 0, 0, 512, 22),
        (export(), 999, FUA, 0, 0, 22),
    ] {
        let mut server = negotiated(export, false);
        let mut bytes = request(command, flags, offset, length);
        if command == command::WRITE {
            bytes.resize(bytes.len() + length as usize, 0xbb);
        }
        assert!(feed_cut(&mut server, &bytes, 4097).is_empty(), "command {command} at {offset} for {length}");
        assert_eq!(simple_error(&mut server), error, "command {command} at {offset} for {length}");
        assert!(matches!(feed(&mut server, &request(command::FLUSH, FUA, 0, 0))[..], [Event::Request(..)]));
    }
}

#[test]
fn a_write_arrives_whole_however_it_is_cut() {
    let payload: Vec<u8> = (0..65_536u32).map(|index| (index * 7) as u8).collect();
    for cut in [1, 27, 4096, 20_000, usize::MAX] {
        let mut server = negotiated(export(), false);
        let mut bytes = request(command::WRITE, command_flag::FUA, 4096, payload.len() as u32);
        bytes.extend(&payload);
        bytes.extend(request(command::FLUSH, 0, 0, 0));
        let events = feed_cut(&mut server, &bytes, cut);
        let [
            Event::Request(ticket, Command::Write { offset: 4096, buffer, fua: true }),
            Event::Request(_, Command::Flush),
        ] = <[Event; 2]>::try_from(events).expect("two requests")
        else {
            panic!("not what was sent")
        };
        assert_eq!(buffer[..], payload[..]);
        assert_eq!(server.outstanding(), 2);
        server.complete(ticket, Reply::Done);
        assert_eq!(simple_error(&mut server), 0);
        assert_eq!(server.outstanding(), 1);
    }
}

#[test]
fn no_message_is_taken_while_a_write_waits_for_its_buffer() {
    let mut server = negotiated(export(), false);
    let mut bytes = request(command::WRITE, 0, 0, 512);
    bytes.extend([7; 512]);
    server.receive_space()[..bytes.len()].copy_from_slice(&bytes);
    server.handle_received(bytes.len());
    assert!(matches!(server.poll_event(), Some(Event::BufferNeeded { length: 512 })));
    assert!(server.poll_event().is_none());
    server.provide_buffer(Buffer::zeroed(512));
    let event = server.poll_event();
    assert!(matches!(&event, Some(Event::Request(_, Command::Write { buffer, .. })) if buffer[..] == [7; 512]));
}

fn read_ticket(server: &mut Server, flags: u16) -> Ticket {
    match feed(server, &request(command::READ, flags, 4096, 1024)).pop() {
        Some(Event::Request(ticket, Command::Read { offset: 4096, length: 1024 })) => ticket,
        other => panic!("{other:?} is no read"),
    }
}

#[test]
fn golden_read_replies() {
    let mut server = negotiated(export(), false);
    let ticket = read_ticket(&mut server, 0);
    server.complete(ticket, Reply::Data(Buffer::copy_of(&[7; 1024])));
    let reply = server.transmit.drain();
    assert_eq!(reply[..16], *b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\xc0\xff\xee\0");
    assert_eq!(reply[16..], [7; 1024]);

    let mut server = negotiated(export(), true);
    let ticket = read_ticket(&mut server, command_flag::DF);
    server.complete(ticket, Reply::Data(Buffer::copy_of(&[7; 1024])));
    let reply = server.transmit.drain();
    assert_eq!(reply[..28], *b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\xc0\xff\xee\0\0\0\x04\x08\0\0\0\0\0\0\x10\0");
    assert_eq!(reply[28..], [7; 1024]);

    let ticket = read_ticket(&mut server, 0);
    server.complete(ticket, Reply::Data(Buffer::zeroed(1024)));
    let hole = b"\x66\x8e\x33\xef\0\x01\0\x02\0\0\0\0\xc0\xff\xee\0\0\0\0\x0c\0\0\0\0\0\0\x10\0\0\0\x04\0";
    assert_eq!(server.transmit.drain(), hole);

    let ticket = read_ticket(&mut server, 0);
    let failure = Failure { code: ErrorCode::InputOutput, message: "bad sector".into() };
    server.complete(ticket, Reply::Failed(failure));
    let error = b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\xc0\xff\xee\0\0\0\0\x10\0\0\0\x05\0\x0abad sector";
    assert_eq!(server.transmit.drain(), error);
}

#[test]
fn block_status_is_cut_to_what_was_asked() {
    let data = StatusExtent { length_bytes: 4096, is_hole: false, is_zero: false };
    let hole = StatusExtent { length_bytes: 1 << 20, is_hole: true, is_zero: true };
    let tail_two = b"\0\0\0\x01\0\0\x10\0\0\0\0\0\0\0\x10\0\0\0\0\x03";
    let tail_one = b"\0\0\0\x01\0\0\x10\0\0\0\0\0";
    let tail_unknown = b"\0\0\0\x01\0\0\x20\0\0\0\0\0";
    for (flags, extents, tail) in [
        (0, vec![data, hole], &tail_two[..]),
        (command_flag::REQ_ONE, vec![data, hole], tail_one),
        (0, vec![], tail_unknown),
    ] {
        let mut server = negotiated(export(), true);
        let event = feed(&mut server, &request(command::BLOCK_STATUS, flags, 0, 8192)).pop();
        let Some(Event::Request(ticket, Command::BlockStatus { .. })) = event else { panic!("{event:?}") };
        server.complete(ticket, Reply::Status(extents));
        let reply = server.transmit.drain();
        assert_eq!(reply[..8], *b"\x66\x8e\x33\xef\0\x01\0\x05");
        assert_eq!(reply[16..20], (tail.len() as u32).to_be_bytes());
        assert_eq!(reply[20..], *tail);
    }
}

#[test]
fn after_a_goodbye_what_is_outstanding_is_still_answered() {
    let mut server = negotiated(export(), false);
    let ticket = read_ticket(&mut server, 0);
    assert!(matches!(feed(&mut server, &request(command::DISC, 0, 0, 0))[..], [Event::Disconnected]));
    server.complete(ticket, Reply::Failed(ErrorCode::NoMemory.into()));
    assert_eq!(simple_error(&mut server), 12);
}

proptest! {
    /// Any bytes, before and after the handshake: events or an error, and never more work than there are bytes.
    #[test]
    fn random_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        cut in 1usize..64,
        is_structured in any::<bool>(),
    ) {
        feed_cut(&mut greeted(export()), &bytes, cut);
        feed_cut(&mut negotiated(export(), is_structured), &bytes, cut);
    }

    /// Sound headers with arbitrary fields reach much further than random bytes do.
    #[test]
    fn random_requests_and_options_never_panic(
        requests in prop::collection::vec((0u16..10, any::<u16>(), 0u64..SIZE_BYTES + 4096, 0u32..70_000), 0..12),
        options in prop::collection::vec((0u32..13, prop::collection::vec(any::<u8>(), 0..40)), 0..12),
        is_structured in any::<bool>(),
    ) {
        let mut server = greeted(export());
        feed(&mut server, &[0, 0, 0, 3]);
        for (option, data) in options {
            feed(&mut server, &option_bytes(option, |out| out.extend(data)));
        }
        let mut server = negotiated(export(), is_structured);
        for (command, flags, offset, length) in requests {
            let mut bytes = request(command, flags & 0x3f, offset & !511, length & !511);
            if command == command::WRITE {
                bytes.resize(bytes.len() + (length & !511) as usize, 1);
            }
            for event in feed(&mut server, &bytes) {
                if let Event::Request(ticket, _) = event {
                    server.complete(ticket, Reply::Failed(ErrorCode::InputOutput.into()));
                }
            }
            if command != command::DISC && server.is_negotiated() {
                prop_assert!(!server.transmit.drain().is_empty(), "every request is answered");
            }
        }
    }
}

fn with_tls(policy: TlsPolicy) -> Server {
    let mut server = Server::new(Arc::new(export())).with_tls(policy);
    server.transmit.drain();
    feed(&mut server, &[0, 0, 0, 3]);
    server
}

fn starttls() -> Vec<u8> {
    option_bytes(option::STARTTLS, |_| {})
}

#[test]
fn where_tls_is_required_only_who_has_it_is_told_anything() {
    let mut server = with_tls(TlsPolicy::Required);
    let mut bytes = option_bytes(option::LIST, |_| {});
    bytes.extend(go_bytes("disk"));
    bytes.extend(option_bytes(option::STRUCTURED_REPLY, |_| {}));
    assert!(feed(&mut server, &bytes).is_empty());
    assert_eq!(reply_types(&mut server), [option_reply::ERR_TLS_REQD; 3]);
    assert!(matches!(feed(&mut server, &starttls())[..], [Event::TlsBegins]));
    assert_eq!(reply_types(&mut server), [option_reply::ACK]);
    assert!(server.receive_space().is_empty(), "what comes now is not for this machine");
    server.secured();
    assert!(matches!(feed(&mut server, &go_bytes("disk"))[..], [Event::Negotiated { is_structured: false }]));
    let mut old = with_tls(TlsPolicy::Required);
    let events = feed(&mut old, &option_bytes(option::EXPORT_NAME, |out| out.extend(b"disk")));
    assert!(matches!(events[..], [Event::Failed(ProtocolError::WithoutTls)]), "{events:?}");
}

#[test]
fn where_tls_is_allowed_both_are_served_and_it_begins_once() {
    let mut server = with_tls(TlsPolicy::Allowed);
    assert!(matches!(feed(&mut server, &go_bytes("disk"))[..], [Event::Negotiated { .. }]));
    let mut server = with_tls(TlsPolicy::Allowed);
    feed(&mut server, &starttls());
    server.transmit.drain();
    server.secured();
    assert!(feed(&mut server, &starttls()).is_empty());
    assert_eq!(reply_types(&mut server), [option_reply::ERR_INVALID]);
    let mut server = with_tls(TlsPolicy::Off);
    assert!(feed(&mut server, &starttls()).is_empty());
    assert_eq!(reply_types(&mut server), [option_reply::ERR_POLICY]);
}

/// Bytes that an attacker on the path puts before or behind the STARTTLS of an honest client must
/// not be taken for the client's own.
#[test]
fn what_came_in_the_clear_does_not_count_under_tls() {
    let mut server = with_tls(TlsPolicy::Allowed);
    feed(&mut server, &option_bytes(option::STRUCTURED_REPLY, |_| {}));
    feed(&mut server, &starttls());
    server.transmit.drain();
    server.secured();
    assert!(matches!(feed(&mut server, &go_bytes("disk"))[..], [Event::Negotiated { is_structured: false }]));
    let mut server = with_tls(TlsPolicy::Allowed);
    let events = feed(&mut server, &[starttls(), go_bytes("disk")].concat());
    assert!(matches!(events[..], [Event::Failed(ProtocolError::Malformed(_))]), "{events:?}");
}

#[test]
fn a_client_that_knows_the_export_sends_requests_at_once_and_follows_its_size() {
    let mut server = Server::transmitting(Arc::new(export()));
    assert!(server.transmit.drain().is_empty(), "nobody is greeted");
    let beyond = request(command::READ, 0, SIZE_BYTES, 512);
    assert!(feed(&mut server, &beyond).is_empty(), "it is refused");
    server.transmit.drain();
    server.resize(SIZE_BYTES + 512);
    let events = feed(&mut server, &beyond);
    assert!(matches!(events[..], [Event::Request(_, Command::Read { offset: SIZE_BYTES, length: 512 })]), "{events:?}");
}
