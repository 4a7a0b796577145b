//! The NBD server under a script that plays the client: negotiation (or done beforehand), then anything, with requests
//! answered late and in any order.
//!
//! Whatever comes, commands are inside the export and on its blocks, and every request of the script is answered
//! exactly once.

#![no_main]

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;

use base::buffer::Buffer;
use fuzz::nbd_script::{Item, Script, Setup, option_bytes, request_bytes};
use libfuzzer_sys::fuzz_target;
use nbd::Command;
use nbd::ErrorCode;
use nbd::limits::PAYLOAD_BYTES_MAX;
use nbd::server::{Event, Export, Reply, Server, Ticket};
use nbd::wire::handshake::{BASE_ALLOCATION, BlockSize, GoRequest, MetaContextRequest, option};
use nbd::wire::transmission::{Abilities, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, StatusExtent, command};

const SIZE_BYTES: u64 = 64 << 10;
const BLOCK_BYTES: u64 = 512;

fn export(setup: Setup) -> Export {
    Export {
        name: "disk".into(),
        description: "a disk".into(),
        size_bytes: SIZE_BYTES,
        block_size: BlockSize { min: BLOCK_BYTES as u32, preferred: 4096, payload_max: PAYLOAD_BYTES_MAX },
        abilities: Abilities {
            is_read_only: setup.is_read_only,
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

struct Run {
    setup: Setup,
    server: Server,
    to_server: VecDeque<u8>,
    from_server: Vec<u8>,
    tickets: Vec<(Ticket, Command)>,
    /// Requests of the script, their command and length, by cookie.
    asked: HashMap<u64, (u16, u32)>,
    cookie_next: u64,
    /// Whether the stream to the server has no bytes but whole messages of the script's.
    is_orderly: bool,
    is_over: bool,
    is_leaving: bool,
}

impl Run {
    fn new(setup: Setup) -> Self {
        Self {
            setup,
            server: Server::new(Arc::new(export(setup))),
            to_server: VecDeque::new(),
            from_server: Vec::new(),
            tickets: Vec::new(),
            asked: HashMap::new(),
            cookie_next: 1,
            is_orderly: setup.is_negotiated,
            is_over: false,
            is_leaving: false,
        }
    }

    fn negotiate(&mut self) {
        self.send(&3u32.to_be_bytes());
        let mut data = Vec::new();
        if self.setup.is_structured {
            self.send(&option_bytes(option::STRUCTURED_REPLY, &[]));
            MetaContextRequest { name: "disk", queries: vec![BASE_ALLOCATION] }.emit(&mut data);
            self.send(&option_bytes(option::SET_META_CONTEXT, &data));
            data.clear();
        }
        GoRequest { name: "disk", requests: vec![3] }.emit(&mut data);
        self.send(&option_bytes(option::GO, &data));
        assert!(self.server.is_negotiated(), "a proper handshake succeeds");
        self.from_server.clear();
    }

    fn step(&mut self, item: &Item) {
        match item {
            Item::Raw(bytes) => {
                self.is_orderly = false;
                self.send(bytes);
            }
            Item::Option { code, data } => {
                self.is_orderly = false;
                self.send(&option_bytes(*code, data));
            }
            Item::Request { flags, command, offset, length } => {
                self.request(*flags, u16::from(*command), u64::from(*offset), *length);
            }
            Item::Answer { index, kind, payload, .. } => self.answer(*index, *kind, payload),
            Item::Leave => {
                self.is_leaving = true;
                self.server.begin_shutdown();
            }
        }
    }

    fn request(&mut self, flags: u16, command: u16, offset: u64, length: u32) {
        // Most numbers of the fuzzer would be far outside.
        let (offset, length) = match flags & 0x8000 {
            0 => (offset % (SIZE_BYTES + BLOCK_BYTES) / BLOCK_BYTES * BLOCK_BYTES, length % 64 * BLOCK_BYTES as u32),
            _ => (offset, length),
        };
        let cookie = self.cookie_next;
        self.cookie_next += 1;
        if command == command::DISC {
            self.is_orderly = false;
        }
        self.asked.insert(cookie, (command, length));
        let mut bytes = request_bytes(flags & 0x7fff, command, cookie, offset, length);
        if command == command::WRITE {
            if u64::from(length) > SIZE_BYTES {
                self.is_orderly = false;
            } else {
                bytes.resize(bytes.len() + length as usize, cookie as u8);
            }
        }
        self.send(&bytes);
    }

    fn answer(&mut self, index: u8, kind: u8, payload: &[u8]) {
        if self.tickets.is_empty() {
            return;
        }
        let (ticket, command) = self.tickets.swap_remove(usize::from(index) % self.tickets.len());
        let reply = match (kind % 8, command) {
            (0, _) => Reply::Failed(ErrorCode::ALL[payload.len() % ErrorCode::ALL.len()].into()),
            (_, Command::Read { length, .. }) => {
                let mut buffer = Buffer::zeroed(length as usize);
                buffer.fill(kind & 1);
                Reply::Data(buffer)
            }
            (_, Command::BlockStatus { .. }) => {
                let extents = payload.chunks(2).map(|pair| StatusExtent {
                    length_bytes: (1 + u32::from(pair[0])) * BLOCK_BYTES as u32,
                    is_hole: pair.len() > 1,
                    is_zero: kind & 1 != 0,
                });
                Reply::Status(extents.collect())
            }
            _ => Reply::Done,
        };
        self.server.complete(ticket, reply);
        self.transmit();
    }

    fn send(&mut self, bytes: &[u8]) {
        self.to_server.extend(bytes);
        let limit = if self.setup.read_bytes == 0 { usize::MAX } else { self.setup.read_bytes.into() };
        loop {
            self.poll();
            self.transmit();
            let space = self.server.receive_space();
            let length = space.len().min(self.to_server.len()).min(limit);
            if length == 0 {
                return;
            }
            space.iter_mut().zip(self.to_server.drain(..length)).for_each(|(place, byte)| *place = byte);
            self.server.handle_received(length);
        }
    }

    fn poll(&mut self) {
        while let Some(event) = self.server.poll_event() {
            assert!(!self.is_over, "after the end no event comes");
            match event {
                Event::Negotiated { .. } | Event::Answered => {}
                Event::TlsBegins => self.server.secured(),
                Event::BufferNeeded { length } => {
                    assert!(length as u64 <= SIZE_BYTES && !self.setup.is_read_only);
                    self.server.provide_buffer(Buffer::zeroed(length));
                }
                Event::Request(ticket, command) => {
                    self.check_command(&command);
                    self.tickets.push((ticket, command));
                }
                Event::Disconnected | Event::Failed(_) => {
                    // Requests are in order until the script itself breaks it.
                    assert!(!self.is_orderly, "orderly requests end no connection");
                    self.is_over = true;
                }
            }
        }
        assert_eq!(self.server.outstanding(), self.tickets.len());
    }

    fn check_command(&self, command: &Command) {
        let (offset, length) = match command {
            Command::Read { offset, length } | Command::Trim { offset, length, .. } => (*offset, *length),
            Command::Cache { offset, length } | Command::WriteZeroes { offset, length, .. } => (*offset, *length),
            Command::BlockStatus { offset, length, .. } => (*offset, *length),
            Command::Write { offset, buffer, .. } => (*offset, buffer.len() as u32),
            Command::Flush => return,
        };
        // Any bytes: whoever carries it out makes whole blocks of it.
        assert!(length > 0 && offset + u64::from(length) <= SIZE_BYTES);
        let writes = matches!(command, Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. });
        assert!(!(writes && self.setup.is_read_only), "a read-only export is not written");
    }

    fn transmit(&mut self) {
        loop {
            let mut slices = [IoSlice::new(&[]); 4];
            let count = self.server.transmit().io_slices(&mut slices);
            let before = self.from_server.len();
            slices[..count].iter().for_each(|slice| self.from_server.extend_from_slice(slice));
            let sent = self.from_server.len() - before;
            if sent == 0 {
                return;
            }
            self.server.transmit().handle_transmitted(sent);
        }
    }

    /// Takes every answer from the stream: whole, and each of a request that has none yet.
    fn check_answers(&mut self) {
        let from_server = std::mem::take(&mut self.from_server);
        let mut bytes = from_server.as_slice();
        fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> &'a [u8; N] {
            let (taken, rest) = bytes.split_first_chunk::<N>().expect("answers are whole");
            *bytes = rest;
            taken
        }
        while !bytes.is_empty() {
            let magic = u32::from_be_bytes(*take(&mut bytes));
            let (is_last, cookie, payload_bytes) = match magic {
                SIMPLE_REPLY_MAGIC => {
                    let error = u32::from_be_bytes(*take(&mut bytes));
                    let cookie = u64::from_be_bytes(*take(&mut bytes));
                    let (command, length) = self.asked[&cookie];
                    let has_payload = error == 0 && command == command::READ;
                    assert!(!(has_payload && self.setup.is_structured), "reads are answered structured then");
                    (true, cookie, if has_payload { length } else { 0 })
                }
                STRUCTURED_REPLY_MAGIC => {
                    assert!(self.setup.is_structured);
                    let flags = u16::from_be_bytes(*take(&mut bytes));
                    let _kind = u16::from_be_bytes(*take(&mut bytes));
                    let cookie = u64::from_be_bytes(*take(&mut bytes));
                    (flags & 1 != 0, cookie, u32::from_be_bytes(*take(&mut bytes)))
                }
                _ => panic!("{magic:#x} begins no answer"),
            };
            bytes = bytes.get(payload_bytes as usize..).expect("answers are whole");
            assert!(self.asked.contains_key(&cookie), "an answer to what was asked, once");
            if is_last {
                self.asked.remove(&cookie);
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let script = Script::parse(bytes);
    let mut run = Run::new(script.setup);
    run.transmit();
    if script.setup.is_negotiated {
        run.negotiate();
    }
    for item in &script.items {
        run.step(item);
    }
    while !run.tickets.is_empty() {
        run.answer(0, 1, &[1, 2, 3]);
        run.send(&[]);
    }
    assert_eq!(run.server.outstanding(), 0);
    if run.is_orderly {
        run.check_answers();
        assert!(run.asked.is_empty(), "every request is answered");
    }
});
