//! The target's side of a connection under a script: login (or done beforehand), then anything in the full feature
//! phase, with commands answered late, wrongly ordered or never.
//!
//! Whatever comes, what goes out is whole PDUs that a target sends, with StatSN in order; commands have at most the
//! data they ask for, and their names are never used twice.

#![no_main]

use std::collections::{HashSet, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::{Buffer, BufferPool};
use base::clock::Instant;
use base::serial::Serial32;
use fuzz::iscsi_peer::{Listener, asked_data_out, pdu_bytes};
use fuzz::iscsi_script::{Fixes, Item, Script, Setup, pattern};
use iscsi::chap::{Challenge, Credentials, Secret};
use iscsi::framing::Digests;
use iscsi::limits::{CHAP_CHALLENGE_BYTES, DATA_OUT_BYTES_MAX};
use iscsi::negotiation::Digest;
use iscsi::pdu::*;
use iscsi::target::{
    AccessList, AccessRule, Authentication, CloseReason, Connection, Event, LinkId, LoginEvent, Outcome, Session,
    TargetDescription, TargetParameters, TargetPortal, TaskId, TaskManagementId,
};
use iscsi::text::Keys;
use libfuzzer_sys::fuzz_target;

const TARGET: &str = "iqn.2026-01.io.forebay:disk";
const FIRST_CMD_SN: Serial32 = Serial32(u32::MAX - 1);
/// A driver stops reading from a peer that does not take its answers.
const TRANSMIT_BYTES_MAX: usize = 1 << 20;

fn credentials(name: &str) -> Credentials {
    Credentials { name: name.to_owned(), secret: Secret::new(format!("secret of {name}")).expect("it is long enough") }
}

fn parameters(setup: Setup) -> TargetParameters {
    let authentication = if setup.has_chap {
        Authentication { accounts: vec![credentials("host")], own: Some(credentials("disk")) }
    } else {
        Authentication::default()
    };
    let description = TargetDescription {
        name: TARGET.to_owned(),
        alias: Some("a disk".to_owned()),
        portals: ["127.0.0.1:3260", "[::]:3260"]
            .map(|text| TargetPortal { address: text.parse().expect("an address"), group: 1 })
            .to_vec(),
        portal_groups: None,
        access: AccessList(vec![AccessRule::any_initiator(authentication.accounts.clone())]),
        own: authentication.own.clone(),
        data_out_of: Arc::new(|_, cdb| asked_data_out(cdb)),
    };
    let pool = BufferPool::new(if setup.is_tight { 16 << 10 } else { 1 << 20 });
    let mut parameters = TargetParameters::new(vec![description], pool);
    parameters.discovery_authentication = authentication;
    parameters.offer.initial_r2t = setup.has_initial_r2t;
    parameters.offer.max_recv_data_segment_length = if setup.is_tight { 1024 } else { 16 << 10 };
    parameters.offer.max_burst_length = 4096;
    parameters.offer.first_burst_length = 2048;
    parameters.command_window = if setup.is_tight { 2 } else { parameters.command_window };
    parameters
}

/// The target's end: a connection that logs in, then a session with that connection.
enum End {
    Login(Box<Connection>),
    Session(Box<Session>, LinkId),
}

impl End {
    fn receive_space(&mut self) -> &mut [u8] {
        match self {
            Self::Login(connection) => connection.receive_space(),
            Self::Session(session, link) => session.receive_space(*link),
        }
    }

    fn handle_received(&mut self, now: Instant, length: usize) {
        match self {
            Self::Login(connection) => connection.handle_received(now, length),
            Self::Session(session, link) => {
                session.handle_received(now, *link, length);
                self.go_on(now);
            }
        }
    }

    fn io_slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        match self {
            Self::Login(connection) => connection.io_slices(out),
            Self::Session(session, link) => session.io_slices(*link, usize::MAX, out),
        }
    }

    fn handle_transmitted(&mut self, now: Instant, length: usize) {
        match self {
            Self::Login(connection) => connection.handle_transmitted(now, length),
            Self::Session(session, link) => {
                session.handle_transmitted(now, *link, length);
                self.go_on(now);
            }
        }
    }

    /// Looks at all that has come, portion by portion.
    fn go_on(&mut self, now: Instant) {
        let Self::Session(session, link) = self else { return };
        while session.is_behind(*link) {
            session.go_on(now, *link);
        }
    }

    fn transmit_bytes(&self) -> usize {
        match self {
            Self::Login(connection) => connection.transmit_bytes(),
            Self::Session(session, link) => session.transmit_bytes(*link),
        }
    }

    fn handle_time(&mut self, now: Instant) {
        let timeout = match self {
            Self::Login(connection) => connection.poll_timeout(),
            Self::Session(session, _) => session.poll_timeout(),
        };
        match self {
            _ if timeout.is_none_or(|at| at > now) => {}
            Self::Login(connection) => connection.handle_timeout(now),
            Self::Session(session, _) => session.handle_timeout(now),
        }
    }

    fn session(&mut self) -> Option<&mut Session> {
        match self {
            Self::Login(_) => None,
            Self::Session(session, _) => Some(session),
        }
    }
}

/// The connection, its driver and its peer.
struct Run {
    setup: Setup,
    target: End,
    /// Nothing more is received.
    is_closed: bool,
    /// Responses may come again when they are asked for.
    may_repeat: bool,
    now: Instant,
    to_target: VecDeque<u8>,
    listener: Listener,
    digests: Digests,
    stat_sn: Option<Serial32>,
    cmd_sn: Serial32,
    transfer_tags: Vec<u32>,
    tasks: Vec<TaskId>,
    names: HashSet<TaskId>,
    functions: Vec<TaskManagementId>,
    wants_session: bool,
}

impl Run {
    fn new(setup: Setup) -> Self {
        let challenge = Challenge { identifier: 7, bytes: [7; CHAP_CHALLENGE_BYTES] };
        let now = Instant::START;
        let local = Some("127.0.0.1:3260".parse().expect("an address"));
        Self {
            setup,
            target: End::Login(Box::new(Connection::new(Arc::new(parameters(setup)), challenge, local, now))),
            is_closed: false,
            may_repeat: false,
            now,
            to_target: VecDeque::new(),
            listener: Listener::new(),
            digests: Digests::default(),
            stat_sn: None,
            cmd_sn: FIRST_CMD_SN,
            transfer_tags: Vec::new(),
            tasks: Vec::new(),
            names: HashSet::new(),
            functions: Vec::new(),
            wants_session: false,
        }
    }

    fn log_in(&mut self) {
        let digest = |is_wanted: bool| if is_wanted { "CRC32C" } else { "None" };
        let mut keys: Keys = [
            ("InitiatorName", "iqn.2026-01.io.forebay:host"),
            ("HeaderDigest", digest(self.setup.has_header_digest)),
            ("DataDigest", digest(self.setup.has_data_digest)),
        ]
        .into_iter()
        .collect();
        if self.setup.is_discovery {
            keys.push("SessionType", "Discovery");
        } else {
            keys.push("TargetName", TARGET);
            keys.push("InitialR2T", if self.setup.has_initial_r2t { "Yes" } else { "No" });
            // Unsaid, the target would ask for another exchange, because it cannot take the defaults.
            keys.push("MaxBurstLength", "4096");
            keys.push("FirstBurstLength", "2048");
        }
        let request = LoginRequest {
            is_continued: false,
            current_stage: LoginStage::OperationalNegotiation,
            transit_to: Some(LoginStage::FullFeaturePhase),
            version_max: 0,
            version_min: 0,
            isid: Isid::random_format(1, 1),
            tsih: 0,
            initiator_task_tag: InitiatorTaskTag::new(1).expect("not the reserved value"),
            cid: 3,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial32(0),
        };
        self.send(&pdu_bytes(Fixes::default(), request.to_bytes(), &[], &keys.emit(), self.digests));
        assert!(self.wants_session, "a proper login is asked about");
        self.accept(9);
        assert!(self.target.session().is_some_and(|session| !session.is_closed()), "a proper login succeeds");
    }

    fn accept(&mut self, tsih: u16) {
        if !std::mem::take(&mut self.wants_session) {
            return;
        }
        let End::Login(connection) = &mut self.target else { return };
        let challenge = Challenge { identifier: 0, bytes: [0; CHAP_CHALLENGE_BYTES] };
        let spare = Connection::new(Arc::new(parameters(self.setup)), challenge, None, self.now);
        let connection = std::mem::replace(&mut **connection, spare);
        let (session, link) = Session::begin(self.now, connection, tsih.max(1)).expect("it asked for a session");
        self.may_repeat = session.request().negotiated.error_recovery_level > 0;
        self.target = End::Session(Box::new(session), link);
        // The response to the login goes out before digests are in force, and everything after it with them.
        self.transmit(usize::MAX);
        self.settle();
    }

    fn step(&mut self, item: &Item) {
        match item {
            Item::Raw(bytes) => self.send(bytes),
            Item::Pdu { fixes, tag_index, bhs, ahs, data } => {
                let bhs = self.fixed(*fixes, *tag_index, *bhs);
                self.send(&pdu_bytes(*fixes, bhs, ahs, data, self.digests));
            }
            Item::Wait(milliseconds) => {
                self.now = self.now + Duration::from_millis(u64::from(*milliseconds));
                self.target.handle_time(self.now);
            }
            Item::Transmit(bytes) => self.transmit(usize::from(*bytes)),
            Item::Driver { action, index, detail, amount } => self.drive(*action, *index, *detail, *amount),
        }
        self.settle();
    }

    fn fixed(&mut self, fixes: Fixes, tag_index: u8, mut bhs: RawBhs) -> RawBhs {
        let opcode = Opcode::of(&bhs);
        if fixes.has(Fixes::NUMBERS) && opcode != Some(Opcode::DataOut) {
            bhs[24..28].copy_from_slice(&self.cmd_sn.0.to_be_bytes());
            if bhs[0] & 0x40 == 0 {
                self.cmd_sn = self.cmd_sn.next();
            }
        }
        if fixes.has(Fixes::TAG)
            && let Some(count) = self.transfer_tags.len().checked_sub(1)
        {
            let tag = self.transfer_tags[count - usize::from(tag_index) % (count + 1)];
            bhs[20..24].copy_from_slice(&tag.to_be_bytes());
        }
        bhs
    }

    fn send(&mut self, bytes: &[u8]) {
        self.to_target.extend(bytes);
        self.settle();
    }

    /// Lets the target have what there is, and does what it says.
    fn settle(&mut self) {
        loop {
            self.poll_events();
            if !self.setup.is_slow {
                self.transmit(usize::MAX);
            }
            if self.is_closed || self.to_target.is_empty() || self.target.transmit_bytes() > TRANSMIT_BYTES_MAX {
                return;
            }
            let limit = if self.setup.read_bytes == 0 { usize::MAX } else { self.setup.read_bytes.into() };
            let space = self.target.receive_space();
            let length = space.len().min(self.to_target.len()).min(limit);
            if length == 0 {
                return;
            }
            space.iter_mut().zip(self.to_target.drain(..length)).for_each(|(place, byte)| *place = byte);
            self.target.handle_received(self.now, length);
        }
    }

    fn poll_events(&mut self) {
        if let End::Login(connection) = &mut self.target {
            while let Some(event) = connection.poll_event() {
                match event {
                    LoginEvent::SessionRequested(request) => {
                        assert!(
                            !self.setup.has_chap || request.authenticated_name.is_some(),
                            "nobody gets in unproved"
                        );
                        self.wants_session = true;
                    }
                    LoginEvent::Closed(reason) => {
                        assert!(!reason.to_string().is_empty() && connection.is_closed());
                        self.is_closed = true;
                    }
                }
            }
        }
        while let Some(event) = self.target.session().and_then(Session::poll_event) {
            match event {
                Event::Command(command) => {
                    assert!(self.names.insert(command.task), "a task has one name");
                    assert!(command.data_out.len() <= DATA_OUT_BYTES_MAX as usize);
                    self.tasks.push(command.task);
                }
                Event::DataHeld(_) => unreachable!("no unit here is shared"),
                Event::TaskManagement(function) => self.functions.push(function.id),
                Event::Logout | Event::CommandsCleared(_) => {}
                Event::LinkClosed(_, reason) | Event::Closed(reason) => {
                    assert!(!reason.to_string().is_empty());
                    self.is_closed = true;
                }
            }
        }
    }

    fn drive(&mut self, action: u8, index: u8, detail: u8, amount: u32) {
        match action % 8 {
            0..=2 if !self.tasks.is_empty() => {
                let task = self.tasks.swap_remove(usize::from(index) % self.tasks.len());
                let data_in = Buffer::copy_of(&pattern((amount % 40_000) as usize));
                let sense = pattern(usize::from(detail >> 1) % 64);
                let status = if detail & 1 == 0 { 0 } else { (amount >> 24) as u8 };
                let outcome = Outcome {
                    status,
                    sense,
                    data_in,
                    data_in_bytes_cut: 0,
                    is_silent: detail == 0xff,
                    news: Vec::new(),
                };
                let now = self.now;
                self.session().handle_completion(now, task, outcome);
            }
            3 if !self.functions.is_empty() => {
                let id = self.functions.swap_remove(usize::from(index) % self.functions.len());
                let outcome =
                    TaskManagementOutcome::from_code(detail).unwrap_or(TaskManagementOutcome::FunctionComplete);
                let now = self.now;
                self.session().handle_task_management(now, id, outcome);
            }
            4 => self.accept(amount as u16),
            5 if std::mem::take(&mut self.wants_session) => {
                if let End::Login(connection) = &mut self.target {
                    connection.refuse_session(self.now, LoginStatus(0x0200 | u16::from(detail)), "the script says so");
                }
            }
            6 => {
                if let Some(session) = self.target.session() {
                    session.request_logout(self.now, 2);
                }
            }
            7 if amount.is_multiple_of(16) => match &mut self.target {
                End::Login(connection) => connection.close(CloseReason::TransportLost),
                End::Session(session, _) => session.close(self.now, CloseReason::TransportLost),
            },
            _ => {}
        }
    }

    fn session(&mut self) -> &mut Session {
        self.target.session().expect("tasks and functions come from a session")
    }

    fn transmit(&mut self, mut bytes_max: usize) {
        while bytes_max > 0 {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = self.target.io_slices(&mut slices);
            let bytes: Vec<u8> =
                slices[..count].iter().flat_map(|slice| slice.iter().copied()).take(bytes_max).collect();
            if bytes.is_empty() {
                assert_eq!(self.target.transmit_bytes(), 0);
                return;
            }
            self.target.handle_transmitted(self.now, bytes.len());
            bytes_max -= bytes.len();
            self.hear(&bytes);
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        for pdu in self.listener.hear(bytes) {
            let bhs = pdu.header.bhs.expect("a target sends PDUs");
            assert!(!bhs.opcode().is_initiators(), "{bhs:?}");
            self.check_stat_sn(&bhs);
            match bhs {
                Bhs::ReadyToTransfer(r2t) => self.transfer_tags.push(r2t.target_transfer_tag.get()),
                Bhs::NopIn(nop) => self.transfer_tags.extend(nop.target_transfer_tag.map(|tag| tag.get())),
                Bhs::LoginResponse(response) if response.transit_to == Some(LoginStage::FullFeaturePhase) => {
                    self.begin_digests(response.status);
                }
                _ => {}
            }
        }
    }

    fn begin_digests(&mut self, status: LoginStatus) {
        if let (LoginStatus::SUCCESS, Some(session)) = (status, self.target.session()) {
            let is_crc = |digest: Digest| digest == Digest::Crc32c;
            let negotiated = &session.request().negotiated;
            self.digests = Digests { header: is_crc(negotiated.header_digest), data: is_crc(negotiated.data_digest) };
            self.listener.set_digests(self.digests);
        }
    }

    /// RFC 7143 4.2.2.2: StatSN grows by one with each status.
    fn check_stat_sn(&mut self, bhs: &Bhs) {
        let stat_sn = match bhs {
            Bhs::LoginResponse(pdu) => pdu.stat_sn,
            Bhs::ScsiResponse(pdu) => pdu.stat_sn,
            Bhs::TaskManagementResponse(pdu) => pdu.stat_sn,
            Bhs::TextResponse(pdu) => pdu.stat_sn,
            Bhs::LogoutResponse(pdu) => pdu.stat_sn,
            Bhs::AsyncMessage(pdu) => pdu.stat_sn,
            Bhs::Reject(pdu) => pdu.stat_sn,
            Bhs::NopIn(pdu) if pdu.initiator_task_tag.is_some() => pdu.stat_sn,
            Bhs::DataIn(pdu) => match pdu.status {
                Some(status) => status.stat_sn,
                None => return,
            },
            _ => return,
        };
        let expected = *self.stat_sn.get_or_insert(stat_sn);
        if self.may_repeat && stat_sn.is_before(expected) {
            return;
        }
        assert_eq!(expected, stat_sn, "{bhs:?}");
        self.stat_sn = Some(stat_sn.next());
    }
}

fuzz_target!(|bytes: &[u8]| {
    let script = Script::parse(bytes);
    let mut run = Run::new(script.setup);
    if script.setup.is_logged_in && !script.setup.has_chap {
        run.log_in();
    }
    for item in &script.items {
        run.step(item);
        if run.is_closed {
            break;
        }
    }
    // Whatever became of it, all that is queued can be sent.
    run.transmit(usize::MAX);
    assert_eq!(run.target.transmit_bytes(), 0);
});
