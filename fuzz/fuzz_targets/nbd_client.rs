//! The NBD client under a script that plays the server: negotiation (or done beforehand), then anything.
//!
//! Whatever comes, every request that was accepted completes once, or comes back when the connection is given up.

#![no_main]

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;

use base::buffer::Buffer;
use fuzz::nbd_script::{Item, Script, Setup, chunk_bytes, option_reply_bytes, simple_reply_bytes};
use libfuzzer_sys::fuzz_target;
use nbd::Command;
use nbd::client::{Client, ClientOptions, Event};
use nbd::wire::handshake::{BASE_ALLOCATION, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, option, reply};
use nbd::wire::transmission::{Abilities, command};

const SIZE_BYTES: u64 = 64 << 10;
const REQUEST_BYTES_MAX: u32 = 16 << 10;

/// A request as the server saw it.
struct Seen {
    command: u16,
    cookie: u64,
    length: u32,
}

struct Run {
    setup: Setup,
    client: Client<u64>,
    to_client: VecDeque<u8>,
    from_client: VecDeque<u8>,
    has_greeted: bool,
    option: u32,
    seen: Vec<Seen>,
    /// Length of the buffer that must come back, by token.
    submitted: HashMap<u64, usize>,
    token_next: u64,
    is_connected: bool,
    is_over: bool,
}

impl Run {
    fn new(setup: Setup) -> Self {
        let options = ClientOptions { export_name: "disk".into(), wants_structured: setup.is_structured };
        Self {
            setup,
            client: Client::new(options),
            to_client: VecDeque::new(),
            from_client: VecDeque::new(),
            has_greeted: false,
            option: 0,
            seen: Vec::new(),
            submitted: HashMap::new(),
            token_next: 0,
            is_connected: false,
            is_over: false,
        }
    }

    fn negotiate(&mut self) {
        let flags = FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES;
        self.send(&[&b"NBDMAGICIHAVEOPT"[..], &flags.to_be_bytes()].concat());
        if self.setup.is_structured {
            self.send(&option_reply_bytes(option::STRUCTURED_REPLY, reply::ACK, &[]));
            let context = [&1u32.to_be_bytes()[..], BASE_ALLOCATION.as_bytes()].concat();
            self.send(&option_reply_bytes(option::SET_META_CONTEXT, reply::META_CONTEXT, &context));
            self.send(&option_reply_bytes(option::SET_META_CONTEXT, reply::ACK, &[]));
        }
        let abilities = Abilities { can_flush: true, can_fua: true, can_trim: true, ..Abilities::default() };
        let export = [&[0, 0][..], &SIZE_BYTES.to_be_bytes(), &abilities.to_flags().to_be_bytes()].concat();
        self.send(&option_reply_bytes(option::GO, reply::INFO, &export));
        self.send(&option_reply_bytes(option::GO, reply::ACK, &[]));
        assert!(self.is_connected, "a proper handshake succeeds");
    }

    fn step(&mut self, item: &Item) {
        match item {
            Item::Raw(bytes) => self.send(bytes),
            Item::Option { code, data } => self.send(&option_reply_bytes(self.option, code >> 16 | code & 0xff, data)),
            Item::Request { flags, command, offset, length } => self.submit(*flags, *command, *offset, *length),
            Item::Answer { index, kind, chunk, payload } => self.answer(*index, *kind, *chunk, payload),
            Item::Leave => self.client.disconnect(),
        }
    }

    fn submit(&mut self, flags: u16, kind: u8, offset: u32, length: u32) {
        let (offset, length) = (u64::from(offset) % SIZE_BYTES, 1 + length % REQUEST_BYTES_MAX);
        let fua = flags & 1 != 0;
        let mut room = Buffer::empty();
        let command = match u16::from(kind) % 8 {
            command::READ | command::DISC => {
                room = Buffer::zeroed(length as usize);
                Command::Read { offset, length }
            }
            command::WRITE => Command::Write { offset, buffer: Buffer::zeroed(length as usize), fua },
            command::FLUSH => Command::Flush,
            command::TRIM => Command::Trim { offset, length, fua },
            command::CACHE => Command::Cache { offset, length },
            command::WRITE_ZEROES => {
                Command::WriteZeroes { offset, length, fua, may_discard: flags & 2 == 0, only_if_fast: flags & 4 != 0 }
            }
            _ => Command::BlockStatus { offset, length, only_first: flags & 8 != 0 },
        };
        let token = self.token_next;
        self.token_next += 1;
        let kept = room.len();
        match self.client.submit(command, room, token) {
            Ok(()) => assert!(self.submitted.insert(token, kept).is_none()),
            Err((_, _, returned)) => assert_eq!(returned, token),
        }
        self.settle();
    }

    fn answer(&mut self, index: u8, kind: u8, chunk: u16, payload: &[u8]) {
        let Some(last) = self.seen.len().checked_sub(1) else { return };
        let Seen { command, cookie, length } = self.seen[last - usize::from(index) % (last + 1)];
        if kind < 128 {
            let mut bytes = simple_reply_bytes(u32::from(kind), cookie);
            if kind == 0 && command == command::READ {
                bytes.resize(bytes.len() + length as usize, 0x5a);
            }
            self.send(&bytes);
        } else {
            // The upper byte has the flags and the bit that marks errors.
            let (flags, kind) = (chunk >> 8 & 1, chunk & 0x8000 | chunk & 0xff);
            let mut payload = payload.to_vec();
            if kind == 1 && payload.len() == 8 {
                payload.resize(8 + length as usize, 0x5a);
            }
            self.send(&chunk_bytes(flags, kind, cookie, &payload));
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.to_client.extend(bytes);
        self.settle();
    }

    fn settle(&mut self) {
        let limit = if self.setup.read_bytes == 0 { usize::MAX } else { self.setup.read_bytes.into() };
        loop {
            self.poll();
            self.transmit();
            let space = self.client.receive_space();
            let length = space.len().min(self.to_client.len()).min(limit);
            if length == 0 {
                return;
            }
            space.iter_mut().zip(self.to_client.drain(..length)).for_each(|(place, byte)| *place = byte);
            self.client.handle_received(length);
        }
    }

    fn poll(&mut self) {
        while let Some(event) = self.client.poll_event() {
            assert!(!self.is_over, "after the end no event comes");
            match event {
                Event::Connected(info) => {
                    assert!(!self.is_connected);
                    self.is_connected = true;
                    assert!(info.block_size.min > 0);
                }
                Event::Completed(completed) => {
                    let kept = self.submitted.remove(&completed.token).expect("a request completes once");
                    assert_eq!(completed.buffer.len(), kept, "a read's buffer comes back");
                }
                Event::Failed(error) => {
                    assert!(!error.to_string().is_empty());
                    self.is_over = true;
                }
            }
        }
        assert_eq!(self.client.outstanding(), self.submitted.len());
    }

    fn transmit(&mut self) {
        loop {
            let mut slices = [IoSlice::new(&[]); 4];
            let count = self.client.transmit().io_slices(&mut slices);
            let before = self.from_client.len();
            slices[..count].iter().for_each(|slice| self.from_client.extend(slice.iter()));
            let sent = self.from_client.len() - before;
            if sent == 0 {
                break;
            }
            self.client.transmit().handle_transmitted(sent);
        }
        while self.hear_one() {}
    }

    /// Takes one message of the client from the stream, if it is whole: flags, an option, or a request.
    fn hear_one(&mut self) -> bool {
        let bytes = self.from_client.make_contiguous();
        let u32_at =
            |at: usize| bytes.get(at..at + 4).map(|four| u32::from_be_bytes([four[0], four[1], four[2], four[3]]));
        let length = if !self.has_greeted {
            if bytes.len() < 4 {
                return false;
            }
            self.has_greeted = true;
            4
        } else if bytes.starts_with(b"IHAVEOPT") {
            let (Some(option), Some(length)) = (u32_at(8), u32_at(12)) else { return false };
            self.option = option;
            16 + length as usize
        } else {
            let Some(length) = u32_at(24) else { return false };
            let command = u16::from_be_bytes([bytes[6], bytes[7]]);
            let mut cookie = [0; 8];
            cookie.copy_from_slice(&bytes[8..16]);
            self.seen.push(Seen { command, cookie: u64::from_be_bytes(cookie), length });
            if command == command::WRITE { 28 + length as usize } else { 28 }
        };
        assert!(length <= self.from_client.len(), "messages are queued whole");
        self.from_client.drain(..length);
        true
    }
}

fuzz_target!(|bytes: &[u8]| {
    let script = Script::parse(bytes);
    let mut run = Run::new(script.setup);
    if script.setup.is_negotiated {
        run.negotiate();
    }
    for item in &script.items {
        run.step(item);
    }
    for abandoned in run.client.abandon() {
        let kept = run.submitted.remove(&abandoned.token).expect("a request comes back once");
        assert_eq!(abandoned.buffer.len(), kept, "a read's buffer comes back");
    }
    assert!(run.submitted.is_empty(), "no request is forgotten");
});
