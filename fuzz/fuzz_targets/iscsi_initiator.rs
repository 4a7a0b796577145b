//! The initiator's side of a connection under a script that plays the target: login (or done beforehand), then
//! anything.
//!
//! Whatever comes, every command ends exactly once or comes back with the session, with its buffer; what goes out is
//! whole PDUs that an initiator sends, and no data beyond what its command announced.

#![no_main]

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Instant;
use base::serial::Serial32;
use fuzz::iscsi_peer::{Listener, pdu_bytes};
use fuzz::iscsi_script::{Fixes, Item, Script, Setup, pattern};
use iscsi::chap::{Challenge, Credentials, Secret};
use iscsi::framing::Digests;
use iscsi::initiator::{ChapLogin, Command, Completed, Connection, ConnectionError, Data, Event, LoginConfig, Outcome};
use iscsi::initiator::{Session, Timing};
use iscsi::limits::CHAP_CHALLENGE_BYTES;
use iscsi::negotiation::{Digest, Negotiator, Offer};
use iscsi::pdu::*;
use iscsi::text::Keys;
use libfuzzer_sys::fuzz_target;

const FIRST_CMD_SN: Serial32 = Serial32(u32::MAX - 1);
const LUN: u64 = 0x0001_0000_0000_0000;
const TRANSFER_BYTES_MAX: u32 = 20_000;
const TIMING: Timing = Timing {
    login_timeout: Duration::from_secs(10),
    keepalive_interval: Duration::from_secs(20),
    keepalive_timeout: Duration::from_secs(5),
    task_management_timeout: Duration::from_secs(3),
};

fn credentials(name: &str) -> Credentials {
    Credentials { name: name.to_owned(), secret: Secret::new(format!("secret of {name}")).expect("it is long enough") }
}

fn config(setup: Setup) -> LoginConfig {
    let digest = |is_wanted: bool| if is_wanted { vec![Digest::Crc32c] } else { vec![Digest::None] };
    let challenge = Challenge { identifier: 7, bytes: [7; CHAP_CHALLENGE_BYTES] };
    LoginConfig {
        initiator_name: "iqn.2026-01.io.forebay:host".to_owned(),
        target_name: (!setup.is_discovery).then(|| "iqn.2026-01.io.forebay:disk".to_owned()),
        isid: Isid::random_format(7, 7),
        tsih: 0,
        cid: 3,
        answers_for: None,
        offer: Offer {
            header_digest: digest(setup.has_header_digest),
            data_digest: digest(setup.has_data_digest),
            initial_r2t: setup.has_initial_r2t,
            max_recv_data_segment_length: if setup.is_tight { 1024 } else { 16 << 10 },
            max_burst_length: 4096,
            first_burst_length: 2048,
            ..Offer::initiator()
        },
        chap: setup
            .has_chap
            .then(|| ChapLogin { own: credentials("host"), target: Some((credentials("disk"), challenge)) }),
    }
}

/// What a command was submitted with.
struct Submitted {
    buffer_bytes: usize,
    length: usize,
    is_read: bool,
}

/// The connection, its driver and its peer.
struct Run {
    setup: Setup,
    session: Session,
    connection: Connection,
    now: Instant,
    to_initiator: VecDeque<u8>,
    listener: Listener,
    digests: Digests,
    stat_sn: Serial32,
    /// Of the tasks and requests seen, oldest first.
    tags: Vec<u32>,
    /// What commands announced to write.
    announced: HashMap<InitiatorTaskTag, u32>,
    login_requests: VecDeque<(LoginRequest, Vec<u8>)>,
    submitted: HashMap<u64, Submitted>,
    token_next: u64,
}

impl Run {
    fn new(setup: Setup) -> Self {
        let now = Instant::START + Duration::from_secs(100);
        let session = Session::new(FIRST_CMD_SN);
        Self {
            setup,
            connection: Connection::new(now, &session, config(setup), TIMING),
            session,
            now,
            to_initiator: VecDeque::new(),
            listener: Listener::new(),
            digests: Digests::default(),
            stat_sn: Serial32(500),
            tags: Vec::new(),
            announced: HashMap::new(),
            login_requests: VecDeque::new(),
            submitted: HashMap::new(),
            token_next: 0,
        }
    }

    /// Plays a target until the initiator is in.
    fn log_in(&mut self) -> Result<(), ConnectionError> {
        let digest = |is_wanted: bool| if is_wanted { vec![Digest::Crc32c] } else { vec![Digest::None] };
        let mut negotiator = Negotiator::target(Offer {
            header_digest: digest(self.setup.has_header_digest),
            data_digest: digest(self.setup.has_data_digest),
            max_recv_data_segment_length: 2048,
            ..Offer::target()
        });
        for _ in 0..2 {
            self.transmit(usize::MAX);
            let (request, text) = self.login_requests.pop_front().expect("an initiator asks until it is in");
            let keys = Keys::parse(&text).expect("our own text");
            let mut answers = negotiator.handle(request.current_stage.into(), &keys).expect("our own keys");
            if keys.get("AuthMethod").is_some() {
                answers.push("AuthMethod", "None");
                answers.push("TargetPortalGroupTag", "1");
            } else {
                answers.append(negotiator.propose());
            }
            let response = LoginResponse {
                is_continued: false,
                current_stage: request.current_stage,
                transit_to: request.transit_to,
                version_max: 0,
                version_active: 0,
                isid: request.isid,
                tsih: if request.transit_to == Some(LoginStage::FullFeaturePhase) { 9 } else { 0 },
                initiator_task_tag: request.initiator_task_tag,
                stat_sn: self.take_stat_sn(),
                exp_cmd_sn: FIRST_CMD_SN,
                max_cmd_sn: FIRST_CMD_SN.plus(if self.setup.is_tight { 1 } else { 31 }),
                status: LoginStatus::SUCCESS,
            };
            self.send(&pdu_bytes(Fixes::default(), response.to_bytes(), &[], &answers.emit(), self.digests))?;
        }
        assert_eq!(*self.session.negotiated(), negotiator.negotiated(), "a proper login succeeds");
        Ok(())
    }

    fn take_stat_sn(&mut self) -> Serial32 {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.next();
        stat_sn
    }

    fn step(&mut self, item: &Item) -> Result<(), ConnectionError> {
        match item {
            Item::Raw(bytes) => return self.send(bytes),
            Item::Pdu { fixes, tag_index, bhs, ahs, data } => {
                let bhs = self.fixed(*fixes, *tag_index, *bhs);
                return self.send(&pdu_bytes(*fixes, bhs, ahs, data, self.digests));
            }
            Item::Wait(milliseconds) => {
                self.now = self.now + Duration::from_millis(u64::from(*milliseconds));
                if self.connection.poll_timeout(&self.session).is_some_and(|at| at <= self.now) {
                    self.connection.handle_timeout(self.now, &mut self.session)?;
                }
            }
            Item::Transmit(bytes) => self.transmit(usize::from(*bytes)),
            Item::Driver { action, detail, amount, .. } => self.drive(*action, *detail, *amount),
        }
        self.settle()
    }

    /// Fills in what a target knows. The tags a script names may be of tasks that are over.
    fn fixed(&mut self, fixes: Fixes, tag_index: u8, mut bhs: RawBhs) -> RawBhs {
        if fixes.has(Fixes::NUMBERS) {
            let stat_sn = self.take_stat_sn();
            bhs[24..28].copy_from_slice(&stat_sn.0.to_be_bytes());
            let seen = FIRST_CMD_SN.plus(self.announced.len() as u32);
            bhs[28..32].copy_from_slice(&seen.0.to_be_bytes());
            bhs[32..36].copy_from_slice(&seen.plus(if self.setup.is_tight { 1 } else { 31 }).0.to_be_bytes());
        }
        if fixes.has(Fixes::TAG)
            && let Some(last) = self.tags.len().checked_sub(1)
        {
            let tag = self.tags[last - usize::from(tag_index) % (last + 1)];
            bhs[16..20].copy_from_slice(&tag.to_be_bytes());
        }
        bhs
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        self.to_initiator.extend(bytes);
        self.settle()
    }

    fn settle(&mut self) -> Result<(), ConnectionError> {
        loop {
            self.poll();
            if !self.setup.is_slow {
                self.transmit(usize::MAX);
                self.poll();
            }
            let limit = if self.setup.read_bytes == 0 { usize::MAX } else { self.setup.read_bytes.into() };
            let space = self.connection.receive_space();
            let length = space.len().min(self.to_initiator.len()).min(limit);
            if length == 0 {
                return Ok(());
            }
            space.iter_mut().zip(self.to_initiator.drain(..length)).for_each(|(place, byte)| *place = byte);
            self.connection.handle_received(self.now, &mut self.session, length)?;
        }
    }

    fn poll(&mut self) {
        while let Some(completed) = self.session.poll_completed() {
            self.check_completed(&completed);
        }
        while let Some(event) = self.connection.poll_event() {
            if let Event::LoggedIn(logged_in) = event {
                let is_crc = |digest: Digest| digest == Digest::Crc32c;
                let negotiated = &logged_in.negotiated;
                self.digests =
                    Digests { header: is_crc(negotiated.header_digest), data: is_crc(negotiated.data_digest) };
                assert!(!self.setup.has_chap, "a target without the secret is not believed");
                // What was said during the login has no digests, and all of it was heard.
                self.transmit_as_login();
                self.listener.set_digests(self.digests);
            }
        }
    }

    fn check_completed(&mut self, completed: &Completed) {
        let submitted = self.submitted.remove(&completed.token).expect("a command ends once");
        assert_eq!(completed.buffer.len(), submitted.buffer_bytes, "a command's buffer comes back");
        if let Outcome::Status { status, residual, received_bytes, .. } = &completed.outcome {
            assert!(*received_bytes <= submitted.length);
            assert!(submitted.is_read || *received_bytes == 0);
            if *status == 0 && submitted.is_read && matches!(residual, Residual::None) {
                assert_eq!(*received_bytes, submitted.length, "a good read is whole");
            }
        }
    }

    fn drive(&mut self, action: u8, detail: u8, amount: u32) {
        match action % 8 {
            0..=4 => self.submit(action % 8, detail, amount),
            5 => self.connection.logout(&self.session),
            6 if self.setup.is_discovery && self.setup.is_logged_in => self.connection.send_targets(&mut self.session),
            7 => self.connection.reset_logical_unit(self.now, &mut self.session, LUN),
            _ => {}
        }
    }

    fn submit(&mut self, kind: u8, detail: u8, amount: u32) {
        let bytes = (amount % (TRANSFER_BYTES_MAX + 1)) as usize;
        let start = usize::from(detail & 7).min(bytes);
        let data = match kind {
            0 => Data::None,
            1 | 2 => Data::Read(Buffer::zeroed(bytes), start..bytes),
            _ => Data::Write(Buffer::copy_of(&pattern(bytes)), start..bytes),
        };
        let (length, is_read) = (data.length(), matches!(data, Data::Read(..)));
        let buffer_bytes = if kind == 0 { 0 } else { bytes };
        let token = self.token_next;
        self.token_next += 1;
        self.submitted.insert(token, Submitted { buffer_bytes, length, is_read });
        let timeout = Duration::from_millis(500 * u64::from(detail >> 3) + 1);
        let cdb = [0x28, 0, 0, 0, 0, 0, 0, 0, detail, 0, 0, 0, 0, 0, 0, 0];
        let command = Command { token, lun: LUN, cdb, attribute: TaskAttribute::Simple, data, timeout };
        self.session.submit(self.now, command);
    }

    fn transmit(&mut self, bytes_max: usize) {
        while self.connection.takes_commands(&self.session) && self.connection.send_next(&mut self.session) {}
        self.transmit_queued(bytes_max);
    }

    /// Before commands are let into the queue.
    fn transmit_as_login(&mut self) {
        self.transmit_queued(usize::MAX);
    }

    fn transmit_queued(&mut self, mut bytes_max: usize) {
        while bytes_max > 0 {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = self.connection.io_slices(&mut slices);
            let bytes: Vec<u8> =
                slices[..count].iter().flat_map(|slice| slice.iter().copied()).take(bytes_max).collect();
            if bytes.is_empty() {
                assert!(self.connection.is_transmit_empty());
                return;
            }
            self.connection.handle_transmitted(&mut self.session, bytes.len());
            bytes_max -= bytes.len();
            self.hear(&bytes);
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        for pdu in self.listener.hear(bytes) {
            let bhs = pdu.header.bhs.expect("an initiator sends PDUs");
            assert!(bhs.opcode().is_initiators(), "{bhs:?}");
            match bhs {
                Bhs::LoginRequest(request) => {
                    self.login_requests.push_back((request, pdu.data.bytes().to_vec()));
                }
                Bhs::ScsiCommand(command) => {
                    let announced = command.expected_data_transfer_length;
                    assert!(pdu.data.bytes().len() <= announced as usize);
                    self.announced.insert(command.initiator_task_tag, announced);
                    self.tags.push(command.initiator_task_tag.get());
                }
                Bhs::DataOut(data) => {
                    let end = data.buffer_offset as usize + pdu.data.bytes().len();
                    assert!(end <= self.announced[&data.initiator_task_tag] as usize, "no data beyond the command's");
                }
                Bhs::TaskManagementRequest(request) => self.tags.push(request.initiator_task_tag.get()),
                Bhs::TextRequest(request) => self.tags.push(request.initiator_task_tag.get()),
                Bhs::LogoutRequest(request) => self.tags.push(request.initiator_task_tag.get()),
                Bhs::NopOut(nop) => self.tags.extend(nop.initiator_task_tag.map(|tag| tag.get())),
                _ => {}
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let script = Script::parse(bytes);
    let mut run = Run::new(script.setup);
    let mut result = Ok(());
    if script.setup.is_logged_in && !script.setup.has_chap {
        result = run.log_in();
        assert_eq!(result, Ok(()));
    }
    for item in &script.items {
        result = result.and_then(|()| run.step(item));
    }
    if let Err(error) = result {
        assert!(!error.to_string().is_empty());
    }
    run.poll();
    for (token, _) in run.session.take_all() {
        assert!(run.submitted.remove(&token).is_some(), "a command ends once");
    }
    assert!(run.submitted.is_empty(), "no command is forgotten");
});
