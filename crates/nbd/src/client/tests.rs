//! The client by bytes, and against our own server.

use std::sync::Arc;

use super::*;
use crate::error::{ErrorCode, Failure};
use crate::limits::{CLIENT_REQUESTS_MAX, PAYLOAD_BYTES_MAX};
use crate::server::{self, Export, Reply, Server};
use crate::{Abilities, BlockSize, StatusExtent};
use proptest::prelude::*;

fn export() -> Export {
    Export {
        name: "disk".into(),
        description: "a test disk".into(),
        size_bytes: 1 << 20,
        block_size: BlockSize { min: 512, preferred: 4096, payload_max: PAYLOAD_BYTES_MAX },
        abilities: Abilities {
            can_flush: true,
            can_fua: true,
            can_trim: true,
            can_write_zeroes: true,
            ..Abilities::default()
        },
    }
}

fn options(wants_structured: bool) -> ClientOptions {
    ClientOptions { export_name: "disk".into(), wants_structured }
}

fn feed(client: &mut Client<u32>, mut bytes: &[u8], cut: usize) -> Vec<Event<u32>> {
    let mut events = Vec::new();
    loop {
        events.extend(std::iter::from_fn(|| client.poll_event()));
        let space = client.receive_space();
        let count = space.len().min(bytes.len()).min(cut);
        if count == 0 {
            return events;
        }
        space[..count].copy_from_slice(&bytes[..count]);
        client.handle_received(count);
        bytes = &bytes[count..];
    }
}

/// A server that answers from memory, driven by hand.
struct Disk {
    server: Server,
    bytes: Vec<u8>,
}

impl Disk {
    fn new() -> Self {
        let bytes = (0..1u32 << 20).map(|index| if index < 8192 { 0 } else { (index / 512) as u8 }).collect();
        Self { server: Server::new(Arc::new(export())), bytes }
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        loop {
            while let Some(event) = self.server.poll_event() {
                match event {
                    server::Event::BufferNeeded { length } => self.server.provide_buffer(Buffer::zeroed(length)),
                    server::Event::Request(ticket, command) => {
                        let reply = self.carry_out(command);
                        self.server.complete(ticket, reply);
                    }
                    server::Event::TlsBegins => panic!("this server has no TLS"),
                    server::Event::Negotiated { .. } | server::Event::Answered | server::Event::Disconnected => {}
                    server::Event::Failed(error) => panic!("{error}"),
                }
            }
            let space = self.server.receive_space();
            let count = space.len().min(bytes.len());
            if count == 0 {
                return;
            }
            space[..count].copy_from_slice(&bytes[..count]);
            self.server.handle_received(count);
            bytes = &bytes[count..];
        }
    }

    fn carry_out(&mut self, command: Command) -> Reply {
        match command {
            Command::Read { offset, length } => {
                Reply::Data(Buffer::copy_of(&self.bytes[offset as usize..][..length as usize]))
            }
            Command::Write { offset, buffer, .. } => {
                self.bytes[offset as usize..][..buffer.len()].copy_from_slice(&buffer);
                Reply::Done
            }
            Command::BlockStatus { .. } => Reply::Status(vec![
                StatusExtent { length_bytes: 8192, is_hole: true, is_zero: true },
                StatusExtent { length_bytes: 4096, is_hole: false, is_zero: false },
            ]),
            Command::Trim { .. } => Reply::Failed(ErrorCode::InputOutput.into()),
            _ => Reply::Done,
        }
    }
}

/// Passes bytes to and fro until neither side sends more.
fn exchange(client: &mut Client<u32>, disk: &mut Disk, cut: usize) -> Vec<Event<u32>> {
    let mut events = Vec::new();
    loop {
        let to_client = disk.server.transmit().drain();
        events.extend(feed(client, &to_client, cut));
        let to_server = client.transmit().drain();
        disk.feed(&to_server);
        if to_client.is_empty() && to_server.is_empty() {
            return events;
        }
    }
}

fn connected(wants_structured: bool) -> (Client<u32>, Disk) {
    let (mut client, mut disk) = (Client::new(options(wants_structured)), Disk::new());
    let events = exchange(&mut client, &mut disk, 7);
    let [Event::Connected(info)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((info.size_bytes, info.block_size), (1 << 20, export().block_size));
    assert_eq!((info.name.as_str(), info.description.as_str()), ("disk", "a test disk"));
    assert_eq!((info.is_structured, info.has_block_status), (wants_structured, wants_structured));
    assert_eq!(info.abilities, Abilities { can_dont_fragment: wants_structured, ..export().abilities });
    (client, disk)
}

#[test]
fn golden_handshake() {
    let mut client = Client::<u32>::new(options(true));
    feed(&mut client, b"NBDMAGICIHAVEOPT\0\x03", 1);
    assert_eq!(client.transmit.drain(), b"\0\0\0\x03IHAVEOPT\0\0\0\x08\0\0\0\0");
    feed(&mut client, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x08\0\0\0\x01\0\0\0\0", 3);
    assert_eq!(
        client.transmit.drain(),
        b"IHAVEOPT\0\0\0\x0a\0\0\0\x1f\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation"
    );
    // A server without contexts is used without them.
    feed(&mut client, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x0a\x80\0\0\x01\0\0\0\0", 3);
    assert_eq!(client.transmit.drain(), b"IHAVEOPT\0\0\0\x07\0\0\0\x10\0\0\0\x04disk\0\x03\0\x01\0\x02\0\x03");
    let refusal = b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\x80\0\0\x06\0\0\0\x04gone";
    let events = feed(&mut client, refusal, 3);
    let [Event::Failed(error)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(error.to_string(), "the server refuses NBD_OPT_GO: there is no such export: gone");
}

#[test]
fn golden_requests() {
    let (mut client, _disk) = connected(true);
    client
        .submit(Command::Write { offset: 4096, buffer: Buffer::copy_of(&[7; 512]), fua: true }, Buffer::empty(), 0)
        .unwrap();
    let bytes = client.transmit.drain();
    assert_eq!(bytes[..28], *b"\x25\x60\x95\x13\0\x01\0\x01\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\x02\0");
    assert_eq!(bytes[28..], [7; 512]);
    for (command, flags_and_type) in [
        (Command::Flush, b"\0\0\0\x03"),
        (Command::Trim { offset: 0, length: 512, fua: false }, b"\0\0\0\x04"),
        (Command::Cache { offset: 0, length: 512 }, b"\0\0\0\x05"),
        (
            Command::WriteZeroes { offset: 0, length: 512, fua: true, may_discard: false, only_if_fast: true },
            b"\0\x13\0\x06",
        ),
        (Command::BlockStatus { offset: 0, length: 512, only_first: true }, b"\0\x08\0\x07"),
    ] {
        client.submit(command, Buffer::empty(), 0).unwrap();
        assert_eq!(client.transmit.drain()[4..8], *flags_and_type);
    }
}

#[test]
fn every_command_completes_with_its_answer() {
    for wants_structured in [false, true] {
        for cut in [1, 100, usize::MAX] {
            let (mut client, mut disk) = connected(wants_structured);
            let commands = [
                Command::Read { offset: 0, length: 4096 },
                Command::Read { offset: 8192, length: 40_960 },
                Command::Write { offset: 65_536, buffer: Buffer::copy_of(&[7; 1024]), fua: false },
                Command::Flush,
                Command::Trim { offset: 0, length: 512, fua: false },
                Command::Read { offset: 1 << 40, length: 512 },
                Command::BlockStatus { offset: 0, length: 65_536, only_first: false },
            ];
            for (token, command) in commands.into_iter().enumerate() {
                let length = if let Command::Read { length, .. } = command { length as usize } else { 0 };
                client.submit(command, Buffer::copy_of(&vec![0xa5; length]), token as u32).unwrap();
            }
            let mut completed: Vec<_> = exchange(&mut client, &mut disk, cut)
                .into_iter()
                .map(|event| match event {
                    Event::Completed(completed) => completed,
                    other => panic!("{other:?}"),
                })
                .collect();
            completed.sort_by_key(|completed| completed.token);
            let results: Vec<_> =
                completed.iter().map(|completed| completed.result.as_ref().map_err(|failure| failure.code)).collect();
            let status = if wants_structured { Ok(&()) } else { Err(ErrorCode::Invalid) };
            let (done, failed) = (Ok(&()), |code| Err(code));
            let expected = [done, done, done, done, failed(ErrorCode::InputOutput), failed(ErrorCode::Invalid), status];
            assert_eq!(results, expected);
            assert_eq!(completed[0].buffer[..], [0; 4096]);
            assert_eq!(completed[1].buffer[..], disk.bytes[8192..8192 + 40_960]);
            assert_eq!(disk.bytes[65_536..66_560], [7; 1024]);
            assert_eq!(completed[6].extents.len(), if wants_structured { 2 } else { 0 });
            assert_eq!(client.outstanding(), 0);
        }
    }
}

/// The reply `chunks` (flags and type, payload) to the first read of a connection: 1024 bytes at 4096.
fn read_reply(chunks: &[(&[u8; 4], &[u8])]) -> Vec<Event<u32>> {
    let (mut client, _disk) = connected(true);
    client.submit(Command::Read { offset: 4096, length: 1024 }, Buffer::copy_of(&[0xa5; 1024]), 3).unwrap();
    let request = client.transmit.drain();
    let mut bytes = Vec::new();
    for (flags_and_type, payload) in chunks {
        bytes.extend(b"\x66\x8e\x33\xef");
        bytes.extend(*flags_and_type);
        bytes.extend(&request[8..16]);
        bytes.extend((payload.len() as u32).to_be_bytes());
        bytes.extend(*payload);
    }
    feed(&mut client, &bytes, 13)
}

fn data_at(offset: u64, count: usize) -> Vec<u8> {
    let mut payload = offset.to_be_bytes().to_vec();
    payload.resize(8 + count, 7);
    payload
}

#[test]
fn chunks_come_in_any_order() {
    let hole = b"\0\0\0\0\0\0\x10\0\0\0\x01\0";
    let (last, middle) = (data_at(4096 + 512, 512), data_at(4096 + 256, 256));
    let events = read_reply(&[(b"\0\0\0\x01", &last), (b"\0\0\0\x02", hole), (b"\0\x01\0\x01", &middle)]);
    let [Event::Completed(completed)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(completed.result, Ok(()));
    assert_eq!(completed.buffer[..256], [0; 256]);
    assert_eq!(completed.buffer[256..], [7; 768]);
}

#[test]
fn an_error_chunk_fails_the_read_and_nothing_else() {
    let data = data_at(4096, 1024);
    let error = b"\0\0\0\x05\0\x03bad\0\0\0\0\0\0\x10\0";
    let events = read_reply(&[(b"\0\0\0\x01", &data), (b"\0\0\x80\x02", error), (b"\0\x01\0\0", b"")]);
    let [Event::Completed(completed)] = &events[..] else { panic!("{events:?}") };
    let failure = Failure { code: ErrorCode::InputOutput, message: "bad".into() };
    assert_eq!(completed.result, Err(failure));
}

#[test]
fn a_server_that_contradicts_itself_is_left() {
    let (whole, half, beyond) = (data_at(4096, 1024), data_at(4096, 512), data_at(4096 + 512, 1024));
    let before = data_at(0, 512);
    for chunks in [
        &[(b"\0\x01\0\0", &b""[..])][..],
        &[(b"\0\x01\0\x01", &half)],
        &[(b"\0\0\0\x01", &half), (b"\0\x01\0\x01", &whole)],
        &[(b"\0\x01\0\x01", &beyond)],
        &[(b"\0\x01\0\x01", &before)],
        &[(b"\0\x01\0\x01", b"\0\0\0\0\0\0\x10\0")],
        &[(b"\0\x01\0\x02", b"\0\0\0\0\0\0\x10\0\xff\xff\xff\xff")],
        &[(b"\0\x01\0\x05", b"\0\0\0\x01\0\0\x10\0\0\0\0\0")],
        &[(b"\0\x01\0\x63", b"")],
        &[(b"\0\0\0\0", b"")],
        &[(b"\0\x01\x80\x01", b"\0\0\0\x05\0\x09bad")],
        &[(b"\0\x01\0\x01", &whole), (b"\0\x01\0\x01", &whole)],
    ] {
        let events = read_reply(chunks);
        assert!(matches!(events.last(), Some(Event::Failed(_))), "{chunks:?}: {events:?}");
    }
}

#[test]
fn what_was_never_sent_is_told_apart() {
    let (mut client, _disk) = connected(false);
    client.submit(Command::Flush, Buffer::empty(), 1).unwrap();
    client.submit(Command::Read { offset: 0, length: 512 }, Buffer::zeroed(512), 2).unwrap();
    client.transmit().handle_transmitted(1);
    let abandoned: Vec<_> =
        client.abandon().into_iter().map(|lost| (lost.token, lost.was_sent, lost.buffer.len())).collect();
    assert_eq!(abandoned, [(1, true, 0), (2, false, 512)]);
    assert!(client.submit(Command::Flush, Buffer::empty(), 3).is_err());
}

#[test]
fn a_client_has_so_many_requests_outstanding_and_no_more() {
    let (mut client, _disk) = connected(false);
    for token in 0..16 << 10 {
        assert!(client.submit(Command::Flush, Buffer::empty(), token).is_ok(), "request {token}");
    }
    assert_eq!(client.outstanding(), CLIENT_REQUESTS_MAX);
    assert!(client.submit(Command::Flush, Buffer::empty(), 0).is_err(), "one too many");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 1usize..64) {
        feed(&mut Client::new(options(true)), &bytes, cut);
        let (mut client, _disk) = connected(true);
        client.submit(Command::Read { offset: 0, length: 512 }, Buffer::zeroed(512), 0).unwrap();
        feed(&mut client, &bytes, cut);
    }

    /// The messages of a real server with one byte changed: they reach every state.
    #[test]
    fn damaged_replies_never_panic(at in any::<prop::sample::Index>(), value in any::<u8>(), cut in 1usize..300) {
        let (mut client, mut disk) = connected(true);
        for offset in [0, 8192] {
            client.submit(Command::Read { offset, length: 1024 }, Buffer::zeroed(1024), 0).unwrap();
        }
        let status = Command::BlockStatus { offset: 0, length: 65_536, only_first: false };
        client.submit(status, Buffer::empty(), 1).unwrap();
        client.submit(Command::Trim { offset: 0, length: 512, fua: false }, Buffer::empty(), 2).unwrap();
        disk.feed(&client.transmit.drain());
        let mut bytes = disk.server.transmit().drain();
        let at = at.index(bytes.len());
        bytes[at] = value;
        feed(&mut client, &bytes, cut);
        client.abandon();
    }
}
