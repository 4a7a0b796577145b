//! A session of several connections at every error recovery level, under a script: connections join, break and are
//! logged out, data and numbers are lost, repeated and damaged, tasks are aborted, moved and asked for again. What the
//! target's end does must fit what the initiator knows (`fuzz::session_model`). In the end the initiator becomes a good
//! one, and everything it left open comes to its end.

#![no_main]

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::{Buffer, BufferPool};
use base::clock::Instant;
use base::serial::Serial32;
use fuzz::iscsi_peer::{Listener, asked_data_out, pdu_bytes};
use fuzz::iscsi_script::Fixes;
use fuzz::session_model::{Model, content};
use fuzz::session_script::{Kind, Script, Setup, Step, flag};
use iscsi::chap::Challenge;
use iscsi::framing::{Digests, ReceivedPdu};
use iscsi::limits::{CHAP_CHALLENGE_BYTES, COMMAND_WINDOW, IMMEDIATE_TASKS_MAX, SESSION_CONNECTIONS_MAX};
use iscsi::pdu::*;
use iscsi::target::{
    AccessList, CloseReason, Connection, Event, LinkId, LoginEvent, Outcome, Session, TargetDescription,
    TargetParameters, TargetPortal, TaskId, TaskManagementId,
};
use iscsi::text::Keys;
use libfuzzer_sys::fuzz_target;

const TARGET: &str = "iqn.2026-01.io.forebay:disk";
const FIRST_CMD_SN: Serial32 = Serial32(u32::MAX - 1);
const FIRST_CID: u16 = 3;
const FIRST_BURST_BYTES: u32 = 2048;
/// Of logouts that end the session.
const SESSION_LOGOUT_TAG: u32 = 899;
/// A driver stops reading from a peer that does not take its answers.
const TRANSMIT_BYTES_MAX: usize = 1 << 20;
const TAGS: u32 = 24;

fn parameters(setup: Setup) -> TargetParameters {
    let description = TargetDescription {
        name: TARGET.to_owned(),
        alias: None,
        portals: vec![TargetPortal { address: "127.0.0.1:3260".parse().expect("an address"), group: 1 }],
        portal_groups: None,
        access: AccessList::default(),
        own: None,
        data_out_of: Arc::new(|_, cdb| asked_data_out(cdb)),
    };
    let pool = BufferPool::new(if setup.is_tight { 32 << 10 } else { 1 << 20 });
    let mut parameters = TargetParameters::new(vec![description], pool);
    parameters.offer.initial_r2t = setup.has_initial_r2t;
    parameters.offer.max_burst_length = 4096;
    parameters.offer.first_burst_length = FIRST_BURST_BYTES;
    parameters.command_window = if setup.is_tight { 4 } else { 32 };
    parameters
}

/// A connection, seen by the initiator.
struct Link {
    id: LinkId,
    to_target: VecDeque<u8>,
    listener: Listener,
    digests: Digests,
    /// The next StatSN.
    stat_sn: Serial32,
    /// What was acknowledged so far, while `lags`.
    acknowledged: Serial32,
    lags: bool,
    exp_cmd_sn: Serial32,
    max_cmd_sn: Serial32,
    /// Pings of the target.
    pings: VecDeque<TargetTransferTag>,
    /// Nothing more goes to the target.
    is_closed: bool,
}

/// Data that the target wants, or that was announced.
struct Transfer {
    tag: u32,
    serial: u32,
    transfer_tag: Option<TargetTransferTag>,
    link: LinkId,
    at: u32,
    end: u32,
    data_sn: u32,
    /// Bytes of the piece before.
    previous: Option<u32>,
}

/// The session, its driver and its peer.
struct Run {
    setup: Setup,
    parameters: Arc<TargetParameters>,
    session: Session,
    is_closed: bool,
    now: Instant,
    links: Vec<Link>,
    cmd_sn: Serial32,
    /// Numbers that were left out.
    gaps: VecDeque<Serial32>,
    tag_next: u32,
    management_tag_next: u32,
    transfers: Vec<Transfer>,
    tasks: Vec<TaskId>,
    functions: Vec<TaskManagementId>,
    acknowledgement_tags: Vec<(TargetTransferTag, u64)>,
    /// Bits to turn in the next header.
    mutation: Option<(usize, u8)>,
    model: Model,
}

fn challenge() -> Challenge {
    Challenge { identifier: 7, bytes: [7; CHAP_CHALLENGE_BYTES] }
}

fn login_request(tsih: u16, cid: u16, cmd_sn: Serial32) -> LoginRequest {
    LoginRequest {
        is_continued: false,
        current_stage: LoginStage::OperationalNegotiation,
        transit_to: Some(LoginStage::FullFeaturePhase),
        version_max: 0,
        version_min: 0,
        isid: Isid::random_format(1, 1),
        tsih,
        initiator_task_tag: InitiatorTaskTag::new(1).expect("not the reserved value"),
        cid,
        cmd_sn,
        exp_stat_sn: Serial32(0),
    }
}

/// A connection that asked to become a session, or a part of one.
fn log_in(parameters: &Arc<TargetParameters>, setup: Setup, now: Instant, request: &LoginRequest) -> Connection {
    let digest = |is_wanted: bool| if is_wanted { "CRC32C" } else { "None" };
    let level = setup.level.to_string();
    let mut keys: Keys = [
        ("InitiatorName", "iqn.2026-01.io.forebay:host"),
        ("TargetName", TARGET),
        ("HeaderDigest", digest(setup.has_header_digest)),
        ("DataDigest", digest(setup.has_data_digest)),
        ("MaxRecvDataSegmentLength", "1024"),
    ]
    .into_iter()
    .collect();
    if request.tsih == 0 {
        keys.push("ErrorRecoveryLevel", &level);
        keys.push("MaxConnections", "4");
        keys.push("InitialR2T", if setup.has_initial_r2t { "Yes" } else { "No" });
        keys.push("MaxBurstLength", "4096");
        keys.push("FirstBurstLength", "2048");
        keys.push("MaxOutstandingR2T", "2");
        keys.push("DefaultTime2Wait", "0");
        keys.push("DefaultTime2Retain", "20");
        keys.push("TaskReporting", "ResponseFence");
        keys.push("iSCSIProtocolLevel", "2");
    }
    let mut connection = Connection::new(Arc::clone(parameters), challenge(), None, now);
    let bytes = pdu_bytes(Fixes::default(), request.to_bytes(), &[], &keys.emit(), Digests::default());
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let space = connection.receive_space();
        let length = space.len().min(rest.len());
        space[..length].copy_from_slice(&rest[..length]);
        connection.handle_received(now, length);
        rest = &rest[length..];
    }
    let event = connection.poll_event();
    assert!(matches!(event, Some(LoginEvent::SessionRequested(_))), "a proper login is asked about: {event:?}");
    connection
}

impl Run {
    fn new(setup: Setup) -> Self {
        let now = Instant::START;
        let parameters = Arc::new(parameters(setup));
        let connection = log_in(&parameters, setup, now, &login_request(0, FIRST_CID, FIRST_CMD_SN));
        let (session, id) = Session::begin(now, connection, 9).expect("it asked for a session");
        assert_eq!(session.request().negotiated.error_recovery_level, setup.level);
        let mut run = Self {
            setup,
            parameters,
            session,
            is_closed: false,
            now,
            links: Vec::new(),
            cmd_sn: FIRST_CMD_SN,
            gaps: VecDeque::new(),
            tag_next: 0,
            management_tag_next: 1000,
            transfers: Vec::new(),
            tasks: Vec::new(),
            functions: Vec::new(),
            acknowledgement_tags: Vec::new(),
            mutation: None,
            model: Model::default(),
        };
        run.add_link(id);
        run
    }

    /// A connection that is in the full feature phase on the target's side; its login response is still to come.
    fn add_link(&mut self, id: LinkId) {
        self.links.push(Link {
            id,
            to_target: VecDeque::new(),
            listener: Listener::new(),
            digests: Digests::default(),
            stat_sn: Serial32(0),
            acknowledged: Serial32(0),
            lags: false,
            exp_cmd_sn: self.cmd_sn.minus(1 << 20),
            max_cmd_sn: self.cmd_sn.minus(1 << 20),
            pings: VecDeque::new(),
            is_closed: false,
        });
        self.transmit(self.links.len() - 1, usize::MAX);
    }

    fn step(&mut self, step: &Step) {
        let live: Vec<usize> = (0..self.links.len()).filter(|&index| !self.links[index].is_closed).collect();
        let at = live.get(usize::from(step.link) % live.len().max(1)).copied();
        match (step.kind, at) {
            (Kind::Command, Some(at)) => self.command(at, step),
            (Kind::Data, Some(at)) => self.data(at, step),
            (Kind::AllData, _) if !self.transfers.is_empty() => {
                let index = usize::from(step.pick) % self.transfers.len();
                self.all_data(index);
            }
            (Kind::Snack, Some(at)) => self.snack(at, step),
            (Kind::Manage, Some(at)) => self.manage(at, step),
            (Kind::Logout, Some(at)) => self.log_out(at, step),
            (Kind::Ping, Some(at)) => self.ping(at, step),
            (Kind::Join, _) => self.join(FIRST_CID - 1 + u16::from(step.pick % 5)),
            (Kind::Lose, Some(at)) => self.lose(at),
            (Kind::Wait, _) => self.wait(u64::from(step.amount) * if step.has(flag::GAP) { 4 } else { 1 }),
            (Kind::Transmit, Some(at)) => self.transmit(at, usize::from(step.amount)),
            (Kind::Complete, _) if !self.tasks.is_empty() => self.complete(step),
            (Kind::Managed, _) if !self.functions.is_empty() => {
                let id = self.functions.swap_remove(usize::from(step.pick) % self.functions.len());
                self.session.handle_task_management(self.now, id, TaskManagementOutcome::FunctionComplete);
            }
            (Kind::Mutate, _) => self.mutation = Some((usize::from(step.pick) % BHS_BYTES, step.flags)),
            (Kind::Local, Some(_)) => self.act(step),
            (Kind::Acknowledge, Some(at)) => self.links[at].lags = step.has(flag::GAP),
            _ => {}
        }
        self.settle();
    }

    /// The number of a request that is not immediate.
    fn number(&mut self, step: &Step) -> Serial32 {
        if step.has(flag::IMMEDIATE) {
            return self.cmd_sn;
        }
        if step.has(flag::FILL)
            && let Some(gap) = self.gaps.pop_front()
        {
            return gap;
        }
        if step.has(flag::REPEAT) {
            return self.cmd_sn.minus(1 + u32::from(step.pick >> 5));
        }
        if step.has(flag::GAP) && self.gaps.len() < 8 {
            self.gaps.push_back(self.cmd_sn);
            self.cmd_sn = self.cmd_sn.next();
        }
        let taken = self.cmd_sn;
        self.cmd_sn = taken.next();
        taken
    }

    /// Sends a PDU of the initiator's.
    fn send<H: Header>(&mut self, at: usize, header: &H, data: &[u8], flags: u8) {
        let mut bhs = header.to_bytes();
        if let Some((place, bits)) = self.mutation.take()
            && bits != 0
        {
            bhs[place] ^= bits;
            self.model.is_blind = true;
        }
        let link = &mut self.links[at];
        let mut fixes = 0;
        let mut data = data.to_vec();
        if flags & flag::BAD_HEADER != 0 && link.digests.header {
            fixes |= Fixes::BAD_HEADER_DIGEST;
        }
        if flags & flag::BAD_DATA != 0 && link.digests.data && !data.is_empty() {
            // Damaged data is what the digest is for; nobody may ever see it.
            fixes |= Fixes::BAD_DATA_DIGEST;
            data.iter_mut().for_each(|byte| *byte ^= 0xff);
        }
        let bytes = pdu_bytes(Fixes(fixes), bhs, &[], &data, link.digests);
        link.to_target.extend(bytes);
        self.settle();
    }

    fn exp_stat_sn(&mut self, at: usize) -> Serial32 {
        let link = &mut self.links[at];
        if !link.lags {
            link.acknowledged = link.stat_sn;
        }
        link.acknowledged
    }

    fn command(&mut self, at: usize, step: &Step) {
        let tag = self.tag_next % TAGS;
        if !self.model.is_blind && !self.model.is_free(tag) {
            self.tag_next += 1;
            return;
        }
        self.tag_next += 1;
        let is_write = step.has(flag::WRITE);
        let is_immediate = step.has(flag::IMMEDIATE);
        let expected = u32::from(step.amount % 24) * 512;
        let first_burst = if is_write { expected.min(FIRST_BURST_BYTES) } else { 0 };
        let immediate_bytes = first_burst * u32::from(step.amount >> 14) / 3;
        let is_open = step.has(flag::OPEN) && is_write && !self.setup.has_initial_r2t && immediate_bytes < first_burst;
        let cmd_sn = self.number(step);
        let lun = u64::from(step.pick & 1) << 48;
        let serial = self.model.next_serial();
        let mut cdb = [0; 16];
        cdb[0] = if is_write { 0x2a } else { 0x28 };
        cdb[7..9].copy_from_slice(&((expected / 512) as u16).to_be_bytes());
        // What it asks for is nothing to the session.
        cdb[2..6].copy_from_slice(&serial.to_be_bytes());
        let command = ScsiCommand {
            is_immediate,
            is_final: !is_open,
            reads: !is_write && expected > 0,
            writes: is_write && expected > 0,
            attribute: TaskAttribute::Simple,
            lun,
            initiator_task_tag: task_tag(tag),
            expected_data_transfer_length: expected,
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn(at),
            cdb,
        };
        let link = self.links[at].id;
        self.model.note_command(tag, cmd_sn, is_immediate, lun, link, expected, is_write);
        if is_open {
            self.transfers.push(Transfer {
                tag,
                serial,
                transfer_tag: None,
                link,
                at: immediate_bytes,
                end: first_burst,
                data_sn: 0,
                previous: None,
            });
        }
        let data: Vec<u8> = (0..immediate_bytes as usize).map(content).collect();
        self.send(at, &command, &data, step.flags);
    }

    /// One piece of a transfer.
    fn data(&mut self, at: usize, step: &Step) {
        let Some(last) = self.transfers.len().checked_sub(1) else { return };
        let index = usize::from(step.pick) % (last + 1);
        let transfer = &mut self.transfers[index];
        if step.has(flag::FILL)
            && let Some(previous) = transfer.previous.take()
        {
            transfer.at -= previous;
            transfer.data_sn -= 1;
        }
        let length = (1 + u32::from(step.amount % 1024)).min(transfer.end - transfer.at);
        let at = if step.has(flag::IMMEDIATE) { Some(at) } else { self.index_of(self.transfers[index].link) };
        self.send_data(index, at.filter(|_| !step.has(flag::GAP)), length, step);
    }

    /// Sends a piece, unless it is lost on the way, and moves on.
    fn send_data(&mut self, index: usize, at: Option<usize>, length: u32, step: &Step) {
        let transfer = &mut self.transfers[index];
        let (offset, data_sn) = (transfer.at, transfer.data_sn);
        transfer.at += length;
        transfer.data_sn += 1;
        transfer.previous = Some(length);
        let is_over = transfer.at >= transfer.end;
        let header = DataOut {
            is_final: is_over || step.has(flag::OPEN),
            lun: 0,
            initiator_task_tag: task_tag(transfer.tag),
            target_transfer_tag: transfer.transfer_tag,
            exp_stat_sn: Serial32(0),
            data_sn: Serial32(data_sn),
            buffer_offset: offset,
        };
        let is_current = self.model.find(transfer.tag).is_some_and(|used| used.serial == transfer.serial);
        if is_over || !is_current {
            self.transfers.remove(index);
        }
        if let Some(at) = at.filter(|_| is_current || self.model.is_blind) {
            let lun = self.model.find(header.initiator_task_tag.get()).map_or(0, |used| used.lun);
            let header = DataOut { exp_stat_sn: self.exp_stat_sn(at), lun, ..header };
            let data: Vec<u8> = (offset as usize..(offset + length) as usize).map(content).collect();
            self.send(at, &header, &data, step.flags);
        }
    }

    /// All that is left of a transfer, as it should be.
    fn all_data(&mut self, index: usize) {
        let (tag, serial, transfer_tag) =
            (self.transfers[index].tag, self.transfers[index].serial, self.transfers[index].transfer_tag);
        let is_same =
            |transfer: &Transfer| (transfer.tag, transfer.serial, transfer.transfer_tag) == (tag, serial, transfer_tag);
        let proper = Step::new(Kind::Data, 0, 0, 0);
        while let Some(index) = self.transfers.iter().position(is_same) {
            let transfer = &self.transfers[index];
            let length = (transfer.end - transfer.at).min(1000);
            let at = self.index_of(transfer.link);
            self.send_data(index, at, length, &proper);
        }
    }

    /// The index of a connection that lives.
    fn index_of(&self, id: LinkId) -> Option<usize> {
        self.links.iter().position(|link| link.id == id && !link.is_closed)
    }

    fn snack(&mut self, at: usize, step: &Step) {
        let tag = u32::from(step.pick >> 2) % TAGS;
        let base = Serial32(u32::from(step.amount >> 8) % 16);
        let run_length = u32::from(step.amount) % 6;
        let kind = match step.pick % 4 {
            0 => SnackType::DataOrR2t { initiator_task_tag: task_tag(tag), begin: base, run_length },
            1 if step.has(flag::GAP) => SnackType::Status { begin: Serial32(0), run_length: 0 },
            1 => SnackType::Status { begin: self.links[at].acknowledged.plus(base.0), run_length },
            2 => {
                let Some(&(target_transfer_tag, _)) = self.acknowledgement_tags.last() else { return };
                SnackType::DataAck { target_transfer_tag, begin: base }
            }
            _ => SnackType::ResegmentedData { initiator_task_tag: task_tag(tag), snack_tag: 1 + base.0 },
        };
        let lun = match kind {
            SnackType::DataAck { .. } => self.acknowledgement_tags.last().map_or(0, |&(_, lun)| lun),
            _ => self.model.find(tag).map_or(0, |used| used.lun),
        };
        match kind {
            SnackType::Status { .. } => self.model.note_recovery(None),
            _ => self.model.note_recovery(Some(tag)),
        }
        let exp_stat_sn = self.exp_stat_sn(at);
        self.send(at, &SnackRequest { kind, lun, exp_stat_sn }, &[], step.flags);
    }

    fn manage(&mut self, at: usize, step: &Step) {
        use TaskManagementFunction as Function;
        let referenced = u32::from(step.amount) % TAGS;
        let function = Function::from_code(1 + step.pick % 12).expect("there are twelve");
        let names_one = matches!(function, Function::AbortTask | Function::TaskReassign | Function::QueryTask);
        let cmd_sn = self.number(step);
        let used = self.model.find(referenced);
        let mut ref_cmd_sn = used.map_or(Serial32(0), |used| used.cmd_sn);
        if step.has(flag::OPEN)
            && let Some(&gap) = self.gaps.front()
        {
            ref_cmd_sn = gap;
        }
        let lun = if names_one { used.map_or(0, |used| used.lun) } else { u64::from(step.link >> 7) << 48 };
        self.management_tag_next += 1;
        let tag = self.management_tag_next;
        let request = TaskManagementRequest {
            is_immediate: step.has(flag::IMMEDIATE),
            function: Ok(function),
            lun,
            initiator_task_tag: task_tag(tag),
            referenced_task_tag: names_one.then(|| task_tag(referenced)),
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn(at),
            ref_cmd_sn,
            exp_data_sn: Serial32(0),
        };
        if !request.is_immediate {
            self.model.note_cmd_sn(cmd_sn);
        }
        if function == Function::AbortTask {
            self.model.note_cmd_sn(ref_cmd_sn);
        }
        self.model.note_management(tag, function, lun, names_one.then_some(referenced), (FIRST_CMD_SN, cmd_sn));
        self.send(at, &request, &[], step.flags);
    }

    fn log_out(&mut self, at: usize, step: &Step) {
        let cids = self.session.connection_ids();
        // The end of the session is the end of the script: not often.
        let reason = match step.pick % 16 {
            0 => LogoutReason::CloseSession,
            1..8 => LogoutReason::CloseConnection,
            _ => LogoutReason::RemoveForRecovery,
        };
        let ends_session = reason == LogoutReason::CloseSession;
        let request = LogoutRequest {
            is_immediate: step.has(flag::IMMEDIATE),
            reason,
            initiator_task_tag: task_tag(if ends_session { SESSION_LOGOUT_TAG } else { 900 }),
            cid: if step.has(flag::WRITE) {
                FIRST_CID - 1 + step.amount % 5
            } else {
                cids[usize::from(step.amount) % cids.len().max(1)]
            },
            cmd_sn: self.number(step),
            exp_stat_sn: self.exp_stat_sn(at),
        };
        if !request.is_immediate {
            self.model.note_cmd_sn(request.cmd_sn);
        }
        self.send(at, &request, &[], step.flags);
    }

    fn ping(&mut self, at: usize, step: &Step) {
        let cmd_sn = self.number(step);
        if !step.has(flag::IMMEDIATE) {
            self.model.note_cmd_sn(cmd_sn);
        }
        let request = NopOut {
            is_immediate: step.has(flag::IMMEDIATE),
            lun: 0,
            initiator_task_tag: Some(task_tag(901)),
            target_transfer_tag: None,
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn(at),
        };
        let data: Vec<u8> = (0..usize::from(step.amount % 64)).map(content).collect();
        self.send(at, &request, &data, step.flags);
    }

    fn answer_pings(&mut self, at: usize) {
        while let Some(tag) = self.links[at].pings.pop_front() {
            let request = NopOut {
                is_immediate: true,
                lun: 0,
                initiator_task_tag: None,
                target_transfer_tag: Some(tag),
                cmd_sn: self.cmd_sn,
                exp_stat_sn: self.exp_stat_sn(at),
            };
            let link = &mut self.links[at];
            let bytes = pdu_bytes(Fixes::default(), request.to_bytes(), &[], &[], link.digests);
            link.to_target.extend(bytes);
        }
    }

    fn join(&mut self, cid: u16) {
        if self.links.iter().filter(|link| !link.is_closed).count() > usize::from(SESSION_CONNECTIONS_MAX) {
            return;
        }
        let request = login_request(9, cid, self.cmd_sn);
        let mut connection = log_in(&self.parameters, self.setup, self.now, &request);
        let request = connection.request().cloned().expect("it asked");
        if let Err((status, detail)) = self.session.check_join(&request) {
            connection.refuse_session(self.now, status, detail);
            assert!(connection.is_closed() && !detail.is_empty());
            return;
        }
        if let Some(id) = self.session.join(self.now, connection) {
            self.poll_events();
            self.add_link(id);
        }
    }

    fn lose(&mut self, at: usize) {
        let link = &mut self.links[at];
        link.is_closed = true;
        let id = link.id;
        self.model.note_closed(id);
        self.session.handle_lost(self.now, id);
        self.links.remove(at);
    }

    fn wait(&mut self, milliseconds: u64) {
        self.now = self.now + Duration::from_millis(milliseconds);
        let mut turns = 0;
        while self.session.poll_timeout().is_some_and(|at| at <= self.now) {
            self.session.handle_timeout(self.now);
            turns += 1;
            assert!(turns < 100, "a timer that was handled is over");
        }
    }

    fn complete(&mut self, step: &Step) {
        let task = self.tasks.swap_remove(usize::from(step.pick) % self.tasks.len());
        let is_good = !step.has(flag::BAD_DATA);
        let length = if is_good { usize::from(step.amount) % (24 * 512 + 1) } else { 0 };
        let data_in = Buffer::copy_of(&(0..length).map(content).collect::<Vec<u8>>());
        self.model.note_completion(task.initiator_task_tag.get(), length);
        let (status, sense) = if is_good { (0, Vec::new()) } else { (2, vec![0x70; 18]) };
        let outcome = Outcome { status, sense, data_in, data_in_bytes_cut: 0, is_silent: false, news: Vec::new() };
        self.session.handle_completion(self.now, task, outcome);
    }

    fn act(&mut self, step: &Step) {
        let now = self.now;
        match step.pick % 8 {
            6 if step.amount.is_multiple_of(16) => self.session.request_logout(now, 2),
            7 if step.amount.is_multiple_of(16) => self.session.drop_session(now),
            7 if step.amount % 16 == 1 => self.session.close(now, CloseReason::Local),
            _ => {}
        }
    }

    /// Lets the target have what there is, and does what it says.
    fn settle(&mut self) {
        loop {
            self.poll_events();
            let mut has_moved = false;
            for at in 0..self.links.len() {
                if !self.setup.is_slow {
                    self.transmit(at, usize::MAX);
                }
                has_moved |= self.feed(at);
            }
            self.release();
            let window = if self.setup.is_tight { 4 } else { COMMAND_WINDOW as usize };
            let tasks = self.session.task_count();
            assert!(tasks <= window + IMMEDIATE_TASKS_MAX + self.tasks.len(), "{tasks} tasks");
            assert!(self.session.connection_ids().len() <= 4, "no more connections than were agreed");
            if !has_moved {
                return;
            }
        }
    }

    /// The target reads from one connection.
    fn feed(&mut self, at: usize) -> bool {
        if !self.links[at].lags && !self.links[at].pings.is_empty() {
            self.answer_pings(at);
        }
        let link = &mut self.links[at];
        if self.session.is_behind(link.id) {
            self.session.go_on(self.now, link.id);
            self.poll_events();
            return true;
        }
        if link.is_closed || link.to_target.is_empty() || self.session.transmit_bytes(link.id) > TRANSMIT_BYTES_MAX {
            return false;
        }
        let space = self.session.receive_space(link.id);
        let length = space.len().min(link.to_target.len());
        space.iter_mut().zip(link.to_target.drain(..length)).for_each(|(place, byte)| *place = byte);
        if length > 0 {
            self.session.handle_received(self.now, link.id, length);
            self.poll_events();
        }
        length > 0
    }

    fn poll_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            assert!(!self.is_closed, "nothing happens after the end: {event:?}");
            match event {
                Event::DataHeld(_) => unreachable!("no unit here is shared"),
                Event::Command(command) => {
                    self.model.check_begin(&command, FIRST_CMD_SN);
                    self.tasks.push(command.task);
                }
                Event::TaskManagement(function) => self.functions.push(function.id),
                Event::Logout | Event::CommandsCleared(_) => {}
                Event::LinkClosed(id, reason) => {
                    assert!(!reason.to_string().is_empty());
                    self.model.note_closed(id);
                    if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
                        link.is_closed = true;
                    }
                }
                Event::Closed(reason) => {
                    assert!(!reason.to_string().is_empty() && self.session.is_closed());
                    self.is_closed = true;
                    self.links.iter_mut().for_each(|link| link.is_closed = true);
                }
            }
        }
    }

    /// Connections that were closed and have said everything.
    fn release(&mut self) {
        let session = &mut self.session;
        self.links.retain(|link| {
            let is_over = link.is_closed && session.transmit_bytes(link.id) == 0;
            if is_over {
                session.release(link.id);
            }
            !is_over
        });
    }

    fn transmit(&mut self, at: usize, mut bytes_max: usize) {
        let id = self.links[at].id;
        while bytes_max > 0 {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = self.session.io_slices(id, usize::MAX, &mut slices);
            let bytes: Vec<u8> =
                slices[..count].iter().flat_map(|slice| slice.iter().copied()).take(bytes_max).collect();
            if bytes.is_empty() {
                assert_eq!(self.session.transmit_bytes(id), 0);
                return;
            }
            self.session.handle_transmitted(self.now, id, bytes.len());
            bytes_max -= bytes.len();
            for pdu in self.links[at].listener.hear(&bytes) {
                self.hear(at, &pdu);
            }
        }
    }

    fn hear(&mut self, at: usize, pdu: &ReceivedPdu) {
        let bhs = pdu.header.bhs.expect("a target sends PDUs");
        assert!(!bhs.opcode().is_initiators(), "{bhs:?}");
        let id = self.links[at].id;
        let is_new = self.check_numbers(at, &bhs);
        match bhs {
            Bhs::LoginResponse(response) => {
                assert_eq!(response.status, LoginStatus::SUCCESS, "a proper login succeeds");
                let digests = Digests { header: self.setup.has_header_digest, data: self.setup.has_data_digest };
                self.links[at].digests = digests;
                self.links[at].listener.set_digests(digests);
            }
            Bhs::DataIn(data) => {
                let tag = data.initiator_task_tag.get();
                self.model.check_data_in(tag, id, data.buffer_offset as usize, pdu.data.bytes());
                if let Some(tag) = data.target_transfer_tag.filter(|_| data.wants_acknowledgement) {
                    self.acknowledgement_tags.push((tag, data.lun));
                }
                if let Some(status) = data.status.filter(|_| is_new) {
                    self.model.check_response(tag, id, status.status == 0);
                }
            }
            Bhs::ScsiResponse(response) if is_new => {
                let is_good = response.response == ServiceResponse::CommandCompleted { status: 0 };
                self.model.check_response(response.initiator_task_tag.get(), id, is_good);
            }
            Bhs::ReadyToTransfer(r2t) => self.hear_r2t(id, &r2t),
            Bhs::TaskManagementResponse(response) if is_new => {
                self.model.check_management(response.initiator_task_tag.get(), id, response.outcome);
            }
            Bhs::NopIn(nop) => self.links[at].pings.extend(nop.target_transfer_tag),
            Bhs::LogoutResponse(response)
                if response.initiator_task_tag.get() == SESSION_LOGOUT_TAG
                    && response.outcome == LogoutOutcome::Closed =>
            {
                assert!(self.model.is_blind || self.tasks.is_empty(), "a logout waits for the driver");
            }
            _ => {}
        }
    }

    fn hear_r2t(&mut self, id: LinkId, r2t: &ReadyToTransfer) {
        let tag = r2t.initiator_task_tag.get();
        let (offset, length) = (r2t.buffer_offset, r2t.desired_data_transfer_length);
        if !self.setup.is_slow {
            self.model.check_r2t(tag, id, offset as usize, length as usize);
        }
        assert!(length > 0 && length <= 4096, "an R2T asks for something, and for no more than a burst");
        let serial = self.model.find(tag).map_or(0, |used| used.serial);
        // One that came again replaces the first.
        self.transfers.retain(|transfer| transfer.transfer_tag != Some(r2t.target_transfer_tag));
        self.transfers.push(Transfer {
            tag,
            serial,
            transfer_tag: Some(r2t.target_transfer_tag),
            link: id,
            at: offset,
            end: offset + length,
            data_sn: 0,
            previous: None,
        });
    }

    /// RFC 7143 4.2.2.1 and 4.2.2.2: StatSN grows by one with each status of a connection, ExpCmdSN and MaxCmdSN never
    /// go back, and the window is no larger than it may be. Whether the PDU is there for the first time.
    fn check_numbers(&mut self, at: usize, bhs: &Bhs) -> bool {
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = match bhs {
            Bhs::LoginResponse(pdu) => {
                self.links[at].stat_sn = pdu.stat_sn;
                (Some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn)
            }
            Bhs::ScsiResponse(pdu) => (Some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn),
            Bhs::TaskManagementResponse(pdu) => (Some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn),
            Bhs::TextResponse(pdu) => (Some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn),
            Bhs::LogoutResponse(pdu) => (Some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn),
            Bhs::AsyncMessage(pdu) => (Some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn),
            Bhs::Reject(pdu) => (Some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn),
            Bhs::NopIn(pdu) => {
                (pdu.initiator_task_tag.is_some().then_some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn)
            }
            Bhs::DataIn(pdu) => (pdu.status.map(|status| status.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn),
            Bhs::ReadyToTransfer(pdu) => (None, pdu.exp_cmd_sn, pdu.max_cmd_sn),
            other => panic!("{other:?} is no target's"),
        };
        let link = &mut self.links[at];
        assert!(!exp_cmd_sn.is_before(link.exp_cmd_sn), "ExpCmdSN never goes back: {bhs:?}");
        assert!(!max_cmd_sn.is_before(link.max_cmd_sn), "MaxCmdSN never goes back: {bhs:?}");
        (link.exp_cmd_sn, link.max_cmd_sn) = (exp_cmd_sn, max_cmd_sn);
        let window = max_cmd_sn.next().distance_from(exp_cmd_sn);
        assert!(window <= self.parameters.command_window, "the window is {window}: {bhs:?}");
        let Some(stat_sn) = stat_sn else { return true };
        if self.setup.level > 0 && stat_sn.is_before(link.stat_sn) {
            return false;
        }
        assert_eq!(stat_sn, link.stat_sn, "{bhs:?}");
        link.stat_sn = stat_sn.next();
        true
    }

    /// The initiator behaves from now on, and ends what it began: then nothing is left.
    fn finish(&mut self) {
        self.mutation = None;
        self.setup.is_slow = false;
        self.links.iter_mut().for_each(|link| link.lags = false);
        let immediate = Step::new(Kind::Ping, 0, flag::IMMEDIATE, 0);
        for round in 0..60 {
            self.settle();
            let Some(at) = (0..self.links.len()).find(|&at| !self.links[at].is_closed) else { break };
            self.ping(at, &immediate);
            while !self.tasks.is_empty() {
                self.complete(&Step::new(Kind::Complete, 0, 0, 512));
            }
            while let Some(id) = self.functions.pop() {
                self.session.handle_task_management(self.now, id, TaskManagementOutcome::FunctionComplete);
            }
            self.settle();
            if round == 30 && !self.is_closed {
                // What was lost for good at this level is aborted, as initiators do.
                let reset = Step::new(Kind::Manage, 5, flag::IMMEDIATE, 0);
                self.manage(at, &reset);
            }
            let live: Vec<usize> = (0..self.links.len()).filter(|&at| !self.links[at].is_closed).collect();
            for at in live {
                if at < self.links.len() && !self.links[at].is_closed {
                    self.ping(at, &immediate);
                }
            }
            self.transfers.retain(|transfer| self.links.iter().any(|link| link.id == transfer.link));
            while !self.transfers.is_empty() {
                self.all_data(0);
            }
            if self.session.task_count() == 0 && self.functions.is_empty() {
                break;
            }
            self.wait(3000);
        }
        self.settle();
        if !self.is_closed && !self.model.is_blind && self.links.iter().any(|link| !link.is_closed) {
            assert_eq!(self.session.task_count(), 0, "everything comes to its end");
        }
    }
}

fn task_tag(value: u32) -> InitiatorTaskTag {
    InitiatorTaskTag::new(value).expect("not the reserved value")
}

fuzz_target!(|bytes: &[u8]| {
    let script = Script::parse(bytes);
    let mut run = Run::new(script.setup);
    for step in &script.steps {
        run.step(step);
        if run.is_closed {
            break;
        }
    }
    run.finish();
});
