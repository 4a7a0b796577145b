//! Writes the seeds: inputs that go deep from the start. `cargo run --example seeds` in this folder writes
//! `seeds/TARGET/NAME`; what it wrote is committed, so that fuzzing needs no build of this.

use std::path::Path;

use base::serial::Serial32;
use fuzz::damage::{Damage, Place};
use fuzz::iscsi_peer::pdu_bytes;
use fuzz::iscsi_script::{self, Fixes, Setup, pattern};
use fuzz::{nbd_script, scsi_script};
use iscsi::framing::Digests;
use iscsi::pdu::*;
use iscsi::text::Keys;
use nbd::wire::handshake::{BASE_ALLOCATION, GoRequest, MetaContextRequest, option};
use scsi::cdb::table::ROWS;

fn write(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    std::fs::write(folder.join(name), bytes).expect("the file can be written");
}

fn itt(value: u32) -> InitiatorTaskTag {
    InitiatorTaskTag::new(value).expect("not the reserved value")
}

fn keys(pairs: &[(&str, &str)]) -> Vec<u8> {
    pairs.iter().copied().collect::<Keys>().emit()
}

/// A PDU with everything filled in by the harness.
fn pdu(header: &impl Header, data: &[u8]) -> iscsi_script::Item {
    let fixes = Fixes(Fixes::NUMBERS | Fixes::TAG | Fixes::PATTERN);
    let fixes = if data == pattern(data.len()) { fixes } else { Fixes(Fixes::NUMBERS | Fixes::TAG) };
    iscsi_script::Item::Pdu { fixes, tag_index: 0, bhs: header.to_bytes(), ahs: Vec::new(), data: data.to_vec() }
}

fn drive(action: u8, detail: u8, amount: u32) -> iscsi_script::Item {
    iscsi_script::Item::Driver { action, index: 0, detail, amount }
}

const LOGGED_IN: Setup = Setup {
    is_logged_in: true,
    has_header_digest: false,
    has_data_digest: false,
    has_chap: false,
    has_initial_r2t: false,
    is_discovery: false,
    is_tight: false,
    is_slow: false,
    read_bytes: 0,
};

fn command(tag: u32, writes: u32, reads: u32, is_final: bool) -> ScsiCommand {
    let mut cdb = [0; 16];
    cdb[0] = if writes > 0 { 0x2a } else { 0x28 };
    cdb[7..9].copy_from_slice(&(((writes.max(reads)) / 512) as u16).to_be_bytes());
    ScsiCommand {
        is_immediate: false,
        is_final,
        reads: reads > 0,
        writes: writes > 0,
        attribute: TaskAttribute::Simple,
        lun: 0,
        initiator_task_tag: itt(tag),
        expected_data_transfer_length: writes.max(reads),
        cmd_sn: Serial32(0),
        exp_stat_sn: Serial32(0),
        cdb,
    }
}

fn data_out(tag: u32, is_solicited: bool, data_sn: u32, buffer_offset: u32) -> DataOut {
    DataOut {
        is_final: true,
        lun: 0,
        initiator_task_tag: itt(tag),
        target_transfer_tag: if is_solicited { TargetTransferTag::new(0) } else { None },
        exp_stat_sn: Serial32(0),
        data_sn: Serial32(data_sn),
        buffer_offset,
    }
}

/// Without the tag of an R2T.
fn unsolicited(header: &DataOut, bytes: usize) -> iscsi_script::Item {
    iscsi_script::Item::Pdu {
        fixes: Fixes(Fixes::PATTERN),
        tag_index: 0,
        bhs: header.to_bytes(),
        ahs: Vec::new(),
        data: pattern(bytes),
    }
}

fn task_management(function: TaskManagementFunction, referenced: u32) -> TaskManagementRequest {
    TaskManagementRequest {
        is_immediate: true,
        function: Ok(function),
        lun: 0,
        initiator_task_tag: itt(90),
        referenced_task_tag: InitiatorTaskTag::new(referenced),
        cmd_sn: Serial32(0),
        exp_stat_sn: Serial32(0),
        ref_cmd_sn: Serial32(u32::MAX - 1),
        exp_data_sn: Serial32(0),
    }
}

fn login_request(stage: LoginStage, next: LoginStage) -> LoginRequest {
    LoginRequest {
        is_continued: false,
        current_stage: stage,
        transit_to: Some(next),
        version_max: 0,
        version_min: 0,
        isid: Isid::random_format(1, 1),
        tsih: 0,
        initiator_task_tag: itt(1),
        cid: 3,
        cmd_sn: Serial32(u32::MAX - 1),
        exp_stat_sn: Serial32(0),
    }
}

fn iscsi_target() {
    use iscsi_script::{Item, Script};
    let emit = |name: &str, setup: Setup, items: Vec<Item>| {
        write("iscsi_target", name, &Script { setup, items }.emit());
    };
    let nop = NopOut {
        is_immediate: true,
        lun: 0,
        initiator_task_tag: Some(itt(7)),
        target_transfer_tag: None,
        cmd_sn: Serial32(0),
        exp_stat_sn: Serial32(0),
    };
    let text = TextRequest {
        is_immediate: false,
        is_final: true,
        is_continued: false,
        lun: 0,
        initiator_task_tag: itt(8),
        target_transfer_tag: None,
        cmd_sn: Serial32(0),
        exp_stat_sn: Serial32(0),
    };
    let logout = LogoutRequest {
        is_immediate: true,
        reason: LogoutReason::CloseSession,
        initiator_task_tag: itt(9),
        cid: 3,
        cmd_sn: Serial32(0),
        exp_stat_sn: Serial32(0),
    };
    let raw_fixes = |item: Item| match item {
        Item::Pdu { bhs, ahs, data, .. } => Item::Pdu { fixes: Fixes(Fixes::NUMBERS), tag_index: 0, bhs, ahs, data },
        other => other,
    };
    let plain = |header: LoginRequest, data: Vec<u8>| Item::Pdu {
        fixes: Fixes(0),
        tag_index: 0,
        bhs: header.to_bytes(),
        ahs: Vec::new(),
        data,
    };
    let read = |tag| raw_fixes(pdu(&command(tag, 0, 4096, true), &[]));
    emit("reads", LOGGED_IN, vec![read(1), read(2), drive(0, 0, 4096), drive(0, 1, 0x0200_0000), drive(0, 40, 100)]);
    let write_4k = raw_fixes(pdu(&command(1, 8192, 0, false), &pattern(512)));
    let burst = unsolicited(&data_out(1, false, 0, 512), 1536);
    let solicited = |data_sn, offset, bytes: usize| pdu(&data_out(1, true, data_sn, offset), &pattern(bytes));
    let write_items = vec![write_4k, burst, solicited(0, 2048, 4096), solicited(0, 6144, 2048), drive(0, 0, 0)];
    emit("write_with_r2t", LOGGED_IN, write_items.clone());
    let digests = Setup { has_header_digest: true, has_data_digest: true, ..LOGGED_IN };
    emit("write_with_digests", digests, write_items.clone());
    emit("write_in_small_reads", Setup { read_bytes: 7, ..LOGGED_IN }, write_items.clone());
    let piece = |offset| unsolicited(&data_out(1, false, offset / 512 - 1, offset), 512);
    let in_pieces =
        [write_items[0].clone(), piece(512), piece(1024), piece(1536), iscsi_script::Item::Transmit(60_000)];
    emit("write_tight", Setup { is_tight: true, is_slow: true, ..LOGGED_IN }, in_pieces.to_vec());
    let abort = raw_fixes(pdu(&task_management(TaskManagementFunction::AbortTask, 1), &[]));
    let reset = raw_fixes(pdu(&task_management(TaskManagementFunction::LogicalUnitReset, u32::MAX), &[]));
    emit(
        "abort_and_reset",
        LOGGED_IN,
        vec![read(1), abort, drive(3, 0, 0), drive(0, 0xff, 0), read(2), reset, drive(0, 0, 512), drive(3, 0, 0)],
    );
    emit(
        "ping_text_logout",
        LOGGED_IN,
        vec![
            raw_fixes(pdu(&nop, b"ping")),
            raw_fixes(pdu(&text, &keys(&[("SendTargets", "")]))),
            raw_fixes(pdu(&text, &keys(&[("MaxRecvDataSegmentLength", "4096")]))),
            Item::Wait(16_000),
            drive(6, 0, 0),
            raw_fixes(pdu(&logout, &[])),
        ],
    );
    emit(
        "discovery",
        Setup { is_discovery: true, ..LOGGED_IN },
        vec![raw_fixes(pdu(&text, &keys(&[("SendTargets", "All")])))],
    );
    let names = [("InitiatorName", "iqn.2026-01.io.forebay:host"), ("TargetName", "iqn.2026-01.io.forebay:disk")];
    let security = login_request(LoginStage::SecurityNegotiation, LoginStage::OperationalNegotiation);
    let operational = login_request(LoginStage::OperationalNegotiation, LoginStage::FullFeaturePhase);
    let wishes = keys(&[
        ("HeaderDigest", "CRC32C,None"),
        ("MaxRecvDataSegmentLength", "65536"),
        ("MaxBurstLength", "4096"),
        ("FirstBurstLength", "2048"),
        ("InitialR2T", "No"),
        ("X-com.example", "1"),
    ]);
    emit(
        "login",
        Setup { is_logged_in: false, ..LOGGED_IN },
        vec![
            plain(security, [keys(&names), keys(&[("AuthMethod", "CHAP,None")])].concat()),
            plain(operational, wishes),
            drive(4, 0, 9),
            read(1),
            drive(0, 0, 4096),
        ],
    );
    let stay = LoginRequest { transit_to: None, ..security };
    emit(
        "login_chap",
        Setup { is_logged_in: false, has_chap: true, ..LOGGED_IN },
        vec![
            plain(stay, [keys(&names), keys(&[("AuthMethod", "CHAP")])].concat()),
            plain(stay, keys(&[("CHAP_A", "7,5")])),
            plain(security, keys(&[("CHAP_N", "host"), ("CHAP_R", "0x00112233445566778899aabbccddeeff")])),
        ],
    );
}

/// Of the first command of an initiator of ours: slot 0, generation 1.
const FIRST_TAG: u32 = 1 << 16;

fn iscsi_initiator() {
    use iscsi_script::{Item, Script};
    let emit = |name: &str, setup: Setup, items: Vec<Item>| {
        write("iscsi_initiator", name, &Script { setup, items }.emit());
    };
    let zero = Serial32(0);
    let response = ScsiResponse {
        response: ServiceResponse::CommandCompleted { status: 0 },
        initiator_task_tag: itt(0),
        snack_tag: 0,
        stat_sn: zero,
        exp_cmd_sn: zero,
        max_cmd_sn: zero,
        exp_data_sn: zero,
        bidirectional_read_residual: Residual::None,
        residual: Residual::None,
    };
    let data_in = |offset: u32, data_sn: u32, status: Option<DataInStatus>| DataIn {
        is_final: status.is_some(),
        wants_acknowledgement: false,
        status,
        lun: 0,
        initiator_task_tag: itt(0),
        target_transfer_tag: None,
        exp_cmd_sn: zero,
        max_cmd_sn: zero,
        data_sn: Serial32(data_sn),
        buffer_offset: offset,
    };
    let r2t = ReadyToTransfer {
        lun: 0,
        initiator_task_tag: itt(0),
        target_transfer_tag: TargetTransferTag::new(5).expect("not the reserved value"),
        stat_sn: zero,
        exp_cmd_sn: zero,
        max_cmd_sn: zero,
        r2t_sn: zero,
        buffer_offset: 2048,
        desired_data_transfer_length: 4096,
    };
    let good = DataInStatus { status: 0, stat_sn: zero, residual: Residual::None };
    let read = vec![
        drive(1, 80, 4096),
        pdu(&data_in(0, 0, None), &pattern(2048)),
        pdu(&data_in(2048, 1, Some(good)), &pattern(2048)),
    ];
    emit("read", LOGGED_IN, read.clone());
    emit("read_with_digests", Setup { has_header_digest: true, has_data_digest: true, ..LOGGED_IN }, read.clone());
    emit("read_in_small_reads", Setup { read_bytes: 5, ..LOGGED_IN }, read);
    let write = vec![drive(3, 80, 6144), pdu(&r2t, &[]), pdu(&response, &[])];
    emit("write", LOGGED_IN, write.clone());
    let transmit = Item::Transmit;
    let [submit, ask, end] = [write[0].clone(), write[1].clone(), write[2].clone()];
    let slowly = vec![submit, transmit(4000), ask, transmit(100), end, transmit(60_000)];
    emit("write_slow", Setup { is_slow: true, is_tight: true, ..LOGGED_IN }, slowly);
    let check = ScsiResponse { response: ServiceResponse::CommandCompleted { status: 2 }, ..response };
    emit(
        "check_condition",
        LOGGED_IN,
        vec![drive(0, 80, 0), pdu(&check, &[&[0, 18, 0x70, 0, 6][..], &[0; 15]].concat())],
    );
    let aborted = TaskManagementResponse {
        outcome: TaskManagementOutcome::FunctionComplete,
        initiator_task_tag: itt(0),
        stat_sn: zero,
        exp_cmd_sn: zero,
        max_cmd_sn: zero,
    };
    emit(
        "timeout_and_abort",
        LOGGED_IN,
        vec![
            drive(1, 8, 512),
            drive(3, 8, 512),
            Item::Wait(600),
            pdu(&aborted, &[]),
            Item::Wait(3100),
            drive(7, 0, 0),
            pdu(&aborted, &[]),
        ],
    );
    let ping = NopIn {
        lun: 0,
        initiator_task_tag: None,
        target_transfer_tag: TargetTransferTag::new(3),
        stat_sn: zero,
        exp_cmd_sn: zero,
        max_cmd_sn: zero,
    };
    let leave = AsyncMessage {
        event: AsyncEvent::LogoutRequest { logout_within_seconds: 5 },
        lun: 0,
        stat_sn: zero,
        exp_cmd_sn: zero,
        max_cmd_sn: zero,
    };
    let left = LogoutResponse {
        outcome: LogoutOutcome::ALL[0],
        initiator_task_tag: itt(0),
        stat_sn: zero,
        exp_cmd_sn: zero,
        max_cmd_sn: zero,
        wait_seconds: 0,
        retain_seconds: 0,
    };
    let reject = Reject {
        reason: RejectReason::CommandNotSupported,
        stat_sn: zero,
        exp_cmd_sn: zero,
        max_cmd_sn: zero,
        data_sn: zero,
    };
    emit(
        "ping_logout",
        LOGGED_IN,
        vec![pdu(&ping, b"data"), Item::Wait(21_000), pdu(&leave, &[]), drive(5, 0, 0), pdu(&left, &[])],
    );
    emit("reject", LOGGED_IN, vec![drive(1, 80, 512), pdu(&reject, &command(FIRST_TAG, 0, 512, true).to_bytes())]);
    let text = |is_continued: bool| TextResponse {
        is_continued,
        target_transfer_tag: if is_continued { TargetTransferTag::new(1) } else { None },
        lun: 0,
        initiator_task_tag: itt(0),
        stat_sn: zero,
        exp_cmd_sn: zero,
        max_cmd_sn: zero,
    };
    emit(
        "discovery",
        Setup { is_discovery: true, ..LOGGED_IN },
        vec![
            drive(6, 0, 0),
            pdu(
                &text(true),
                &keys(&[("TargetName", "iqn.2026-01.io.forebay:a"), ("TargetAddress", "127.0.0.1:3260,1")]),
            ),
            pdu(&text(false), &keys(&[("TargetName", "iqn.2026-01.io.forebay:b"), ("TargetAddress", "[::1]:3260,1")])),
        ],
    );
    let login = LoginResponse {
        is_continued: false,
        current_stage: LoginStage::SecurityNegotiation,
        transit_to: Some(LoginStage::OperationalNegotiation),
        version_max: 0,
        version_active: 0,
        isid: Isid::random_format(7, 7),
        tsih: 0,
        initiator_task_tag: itt(0),
        stat_sn: zero,
        exp_cmd_sn: Serial32(u32::MAX - 1),
        max_cmd_sn: Serial32(30),
        status: LoginStatus::SUCCESS,
    };
    let plain = |header: LoginResponse, data: Vec<u8>| Item::Pdu {
        fixes: Fixes(0),
        tag_index: 0,
        bhs: header.to_bytes(),
        ahs: Vec::new(),
        data,
    };
    let moved = LoginResponse { status: LoginStatus(0x0101), transit_to: None, ..login };
    emit(
        "login",
        Setup { is_logged_in: false, ..LOGGED_IN },
        vec![
            plain(login, keys(&[("AuthMethod", "None"), ("TargetPortalGroupTag", "1")])),
            plain(
                LoginResponse { current_stage: LoginStage::OperationalNegotiation, transit_to: None, ..login },
                keys(&[("MaxBurstLength", "4096"), ("HeaderDigest", "None")]),
            ),
        ],
    );
    emit(
        "login_moved",
        Setup { is_logged_in: false, ..LOGGED_IN },
        vec![plain(moved, keys(&[("TargetAddress", "[::1]:3260,1")]))],
    );
    let stay = LoginResponse { transit_to: None, ..login };
    emit(
        "login_chap",
        Setup { is_logged_in: false, has_chap: true, ..LOGGED_IN },
        vec![
            plain(stay, keys(&[("AuthMethod", "CHAP"), ("TargetPortalGroupTag", "1")])),
            plain(stay, keys(&[("CHAP_A", "7"), ("CHAP_I", "1"), ("CHAP_C", "0x00112233445566778899aabbccddeeff")])),
            plain(login, keys(&[("CHAP_N", "disk"), ("CHAP_R", "0x00112233445566778899aabbccddeeff")])),
        ],
    );
}

fn iscsi_pdu() {
    let digests = Digests { header: true, data: true };
    let mut stream = vec![0b0011];
    stream.extend(pdu_bytes(Fixes(0), command(1, 512, 0, true).to_bytes(), &[], &pattern(513), digests));
    stream.extend(pdu_bytes(Fixes(0), data_out(1, true, 1, 512).to_bytes(), &[], &pattern(10), digests));
    write("iscsi_pdu", "with_digests", &stream);
    let mut ahs = Vec::new();
    AdditionalHeaders { extended_cdb: vec![9; 16], bidirectional_read_bytes: Some(4096) }.emit(&mut ahs);
    let mut stream = vec![((ahs.len() / 4) << 4) as u8];
    stream.extend(command(1, 512, 0, true).to_bytes());
    stream.extend(&ahs);
    stream.extend(pattern(9));
    write("iscsi_pdu", "with_ahs", &stream);
    let mut stream = vec![20];
    let login = login_request(LoginStage::SecurityNegotiation, LoginStage::OperationalNegotiation);
    stream.extend(pdu_bytes(Fixes(0), login.to_bytes(), &[], &keys(&[("InitiatorName", "iqn.x")]), Digests::default()));
    stream.extend(pdu_bytes(
        Fixes(0),
        task_management(TaskManagementFunction::AbortTask, 1).to_bytes(),
        &[],
        &[],
        Digests::default(),
    ));
    write("iscsi_pdu", "login_then_abort", &stream);
}

fn iscsi_text() {
    let names = keys(&[("InitiatorName", "iqn.2026-01.io.forebay:host"), ("AuthMethod", "CHAP,None")]);
    let wishes = keys(&[
        ("HeaderDigest", "CRC32C,None"),
        ("DataDigest", "None"),
        ("MaxConnections", "1"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxRecvDataSegmentLength", "262144"),
        ("MaxBurstLength", "16776192"),
        ("FirstBurstLength", "0x10000"),
        ("DefaultTime2Wait", "2"),
        ("DefaultTime2Retain", "0"),
        ("MaxOutstandingR2T", "1"),
        ("DataPDUInOrder", "Yes"),
        ("DataSequenceInOrder", "Yes"),
        ("ErrorRecoveryLevel", "0"),
        ("TaskReporting", "RFC3720,ResponseFence,FastAbort"),
        ("iSCSIProtocolLevel", "2"),
        ("OFMarker", "No"),
    ]);
    let answers = keys(&[("MaxBurstLength", "Irrelevant"), ("HeaderDigest", "Reject"), ("X-a", "NotUnderstood")]);
    let more = keys(&[("MaxRecvDataSegmentLength", "512"), ("X-com.example.thing", "yes")]);
    let parted = |texts: &[&[u8]]| texts.join(&0);
    write("iscsi_text", "login", &[&[0][..], &parted(&[&names, &wishes, &answers, &more])].concat());
    write("iscsi_text", "login_proposed", &[&[4][..], &parted(&[&names, &answers, &wishes, &more])].concat());
    write("iscsi_text", "discovery", &[&[5][..], &parted(&[&names, &keys(&[("SessionType", "Discovery")])])].concat());
    let chap = [
        keys(&[("CHAP_A", "5,7,6,8")]),
        keys(&[("CHAP_A", "7"), ("CHAP_I", "1"), ("CHAP_C", "0b//79/A==")]),
        keys(&[("CHAP_N", "one"), ("CHAP_R", "0x0011"), ("CHAP_I", "0x7"), ("CHAP_C", "0x1")]),
    ];
    write("iscsi_text", "chap", &[&[0][..], &parted(&[&chap[0], &chap[1], &chap[2]])].concat());
    let offers: Vec<u8> = (0..60u8).map(|byte| byte.wrapping_mul(37)).collect();
    write("iscsi_text", "offers", &[&[2][..], &offers, &wishes].concat());
    write("iscsi_text", "offers_discovery", &[&[3][..], &offers, &wishes].concat());
}

fn scsi_cdb() {
    let mut all = Vec::new();
    for row in ROWS {
        let mut cdb = vec![0; usize::from(row.cdb_bytes)];
        cdb[0] = row.operation_code;
        cdb[1] = row.service_action.unwrap_or(0);
        // One block, or room for as many bytes as the lists of UNMAP and PERSISTENT RESERVE OUT have.
        let length = if matches!(row.operation_code, 0x1a | 0x42 | 0x55 | 0x5a | 0x5e | 0x5f) { 24 } else { 1 };
        match row.cdb_bytes {
            6 => cdb[4] = length,
            10 => cdb[8] = length,
            12 => cdb[9] = 16,
            _ => cdb[13] = 1,
        }
        if matches!(row.operation_code, 0x1a | 0x5a) {
            cdb[2] = 0x3f;
        }
        cdb.iter_mut().zip(row.usage()).skip(2).for_each(|(byte, usage)| *byte &= usage);
        // The first command meets the unit attention of power on.
        let mut bytes = Vec::new();
        scsi_script::emit_step(0, 0, &[0; 6], &[], &mut bytes);
        let list: &[u8] = match row.operation_code {
            0x42 => &[0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0],
            0x5f => &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
            _ => &[7],
        };
        scsi_script::emit_step(0, 0, &cdb, list, &mut bytes);
        let name: String = row.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        write("scsi_cdb", &name.to_ascii_lowercase(), &bytes);
        all.extend(bytes);
    }
    write("scsi_cdb", "all", &all);
    let mut reservations = Vec::new();
    let key = [[0; 8], *b"key one!"].concat();
    let mut out = |nexus: u8, action: u8, kind: u8, list: &[u8]| {
        let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
        scsi_script::emit_step(nexus, 0, &cdb, &[list, &[0; 8]].concat(), &mut reservations);
    };
    out(0, 6, 0, &key);
    out(0, 6, 0, &key);
    out(0, 1, 5, &[*b"key one!", [0; 8]].concat());
    out(1, 6, 0, &key);
    out(1, 4, 5, &[*b"key one!", *b"key one!"].concat());
    scsi_script::emit_step(1, 0, &[0x2a, 0, 0, 0, 0, 1, 0, 0, 1, 0], &[7], &mut reservations);
    write("scsi_cdb", "reservations", &reservations);
    let mut lengths = Vec::new();
    scsi_script::emit_step(0, 0, &[0; 6], &[], &mut lengths);
    scsi_script::Step {
        nexus: 0,
        lun: 0,
        attribute: 1,
        data_out_delta: -1,
        cdb: vec![0x2e, 2, 0, 0, 0, 0, 0, 0, 9, 0],
        data_out: vec![7, 8],
    }
    .emit(&mut lengths);
    write("scsi_cdb", "short_write_and_verify", &lengths);
}

fn nbd() {
    use nbd_script::{Item, Script, Setup};
    let server =
        |name: &str, setup: Setup, items: Vec<Item>| write("nbd_server", name, &Script { setup, items }.emit());
    let client =
        |name: &str, setup: Setup, items: Vec<Item>| write("nbd_client", name, &Script { setup, items }.emit());
    let simple = Setup { is_negotiated: true, ..Setup::default() };
    let structured = Setup { is_structured: true, ..simple };
    let request = |flags, command, offset, length| Item::Request { flags, command, offset, length };
    let answer = |kind, chunk, payload: &[u8]| Item::Answer { index: 0, kind, chunk, payload: payload.to_vec() };
    let requests: Vec<Item> =
        (0..8).filter(|&command| command != 2).map(|command| request(0, command, 4096, 8)).collect();
    let answered =
        [requests, vec![answer(1, 0, &[3]), answer(2, 0, &[1, 2, 3]), answer(0, 0, &[]), Item::Leave]].concat();
    server("requests_simple", simple, answered.clone());
    server("requests_structured", structured, answered.clone());
    server("requests_read_only", Setup { is_read_only: true, read_bytes: 3, ..structured }, answered);
    let mut go = Vec::new();
    GoRequest { name: "", requests: vec![0, 1, 2, 3] }.emit(&mut go);
    let mut contexts = Vec::new();
    MetaContextRequest { name: "disk", queries: vec!["base:", BASE_ALLOCATION] }.emit(&mut contexts);
    let option = |code, data: &[u8]| Item::Option { code, data: data.to_vec() };
    server(
        "handshake",
        Setup::default(),
        vec![
            Item::Raw(vec![0, 0, 0, 3]),
            option(option::LIST, &[]),
            option(option::STARTTLS, &[]),
            option(option::STRUCTURED_REPLY, &[]),
            option(option::LIST_META_CONTEXT, &contexts),
            option(option::SET_META_CONTEXT, &contexts),
            option(option::INFO, &go),
            option(option::GO, &go),
            request(0, 0, 0, 1),
            request(0, 2, 0, 0),
        ],
    );
    server(
        "export_name",
        Setup::default(),
        vec![Item::Raw(vec![0, 0, 0, 1]), option(option::EXPORT_NAME, b"disk"), request(0, 0, 0, 1), answer(1, 0, &[])],
    );
    let offset = 4096u64.to_be_bytes();
    client(
        "simple",
        simple,
        vec![
            request(0, 0, 4096, 511),
            answer(0, 0, &[]),
            request(1, 1, 4096, 511),
            answer(0, 0, &[]),
            request(0, 3, 0, 0),
            answer(5, 0, &[]),
            request(0, 0, 0, 1),
            Item::Leave,
        ],
    );
    client(
        "structured",
        structured,
        vec![
            request(0, 0, 4096, 511),
            answer(128, 0x0001, &offset),
            answer(128, 0x0100, &[]),
            request(0, 0, 4096, 511),
            answer(128, 0x0102, &[&offset[..], &512u32.to_be_bytes()].concat()),
            request(0, 7, 0, 4095),
            answer(128, 0x0105, &[&1u32.to_be_bytes()[..], &[0, 0, 16, 0, 0, 0, 0, 3]].concat()),
            request(0, 4, 0, 4095),
            answer(128, 0x8101, &[0, 0, 0, 5, 0, 2, b'n', b'o']),
        ],
    );
    client(
        "structured_in_small_reads",
        Setup { read_bytes: 3, ..structured },
        vec![
            request(0, 0, 4096, 511),
            answer(128, 0x0001, &[&offset[..], &[7; 100]].concat()),
            answer(128, 0x0102, &[&4196u64.to_be_bytes()[..], &412u32.to_be_bytes()].concat()),
        ],
    );
    client(
        "handshake_refused",
        Setup { is_structured: true, ..Setup::default() },
        vec![
            Item::Raw(b"NBDMAGICIHAVEOPT\0\x03".to_vec()),
            option(0x8000_0001, b"not here"),
            option(3, &[0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 2, 0, 0, 0]),
            option(3, &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]),
            option(1, &[]),
            request(0, 0, 0, 511),
        ],
    );
}

fn text_forms() {
    for (name, text) in [
        ("size", "1.5GiB"),
        ("portal", "[fe80::1%eth0]:3261"),
        ("url", "iscsi://user@[::1]:3260/iqn.2026-01.io.forebay:disk/16383"),
        ("url_password", "iscsi://user%secret@host/iqn.2026-01.io.forebay:disk/0"),
        ("lun_ram", "0=ram:1MiB,disk=7200rpm,seek=8.5ms,rotation=100us,transfer=20MB/s,write-cache"),
        ("lun_file", "3=file:/srv/a=b.img,size=10GiB,direct,read-only,block=4096"),
    ] {
        write("text_forms", name, text.as_bytes());
    }
}

fn iscsi_session() {
    use fuzz::session_script::{Kind, Script, Setup, Step, flag};
    let emit = |name: &str, setup: Setup, steps: Vec<Step>| {
        write("iscsi_session", name, &Script { setup, steps }.emit());
    };
    let level = |level: u8| Setup { level, has_data_digest: true, ..Setup::default() };
    let read = |amount| Step::new(Kind::Command, 0, 0, amount);
    let write_of = |flags, amount| Step::new(Kind::Command, 0, flag::WRITE | flags, amount);
    let data = |flags, amount| Step::new(Kind::Data, 0, flags, amount);
    let all = Step::new(Kind::AllData, 0, 0, 0);
    let done = |amount| Step::new(Kind::Complete, 0, 0, amount);
    let managed = Step::new(Kind::Managed, 0, 0, 0);
    let join = |pick| Step::new(Kind::Join, pick, 0, 0);
    let lose = Step::new(Kind::Lose, 0, 0, 0);
    let manage = |pick, amount| Step::new(Kind::Manage, pick, flag::IMMEDIATE, amount);
    let log_out = |pick, amount| Step::new(Kind::Logout, pick, flag::IMMEDIATE, amount);
    let snack = |tag: u8, kind: u8, amount| Step::new(Kind::Snack, tag << 2 | kind, 0, amount);
    let wait = |amount| Step::new(Kind::Wait, 0, 0, amount);
    let lag = Step::new(Kind::Acknowledge, 0, flag::GAP, 0);
    for at in 0..3 {
        emit(
            &format!("reads_and_writes_{at}"),
            level(at),
            vec![read(8), write_of(0, 20), all, done(4096), done(0), write_of(flag::OPEN, 0x4010), all, all, done(0)],
        );
    }
    emit(
        "lost_data_level_1",
        level(1),
        vec![
            write_of(0, 8),
            data(flag::GAP, 500),
            data(0, 500),
            all,
            all,
            all,
            done(0),
            write_of(0, 8),
            data(64, 9),
            all,
        ],
    );
    emit(
        "snacks",
        level(1),
        vec![
            lag,
            read(8),
            done(4096),
            snack(0, 0, 0),
            snack(0, 0, 0x0102),
            Step::new(Kind::Snack, 1, flag::GAP, 0),
            snack(0, 3, 0x0100),
            snack(0, 2, 0x0400),
            write_of(0, 20),
            snack(1, 0, 0),
            all,
        ],
    );
    emit(
        "order_over_connections",
        level(0),
        vec![
            join(2),
            Step::new(Kind::Command, 0, flag::GAP, 1).on(1),
            read(2),
            Step::new(Kind::Command, 0, flag::FILL, 1),
            done(512),
            done(512),
            done(512),
            log_out(1, 1),
            join(3),
            read(3).on(1),
            done(9),
        ],
    );
    emit(
        "reassign",
        level(2),
        vec![
            join(2),
            read(8),
            write_of(0, 16),
            lose,
            log_out(9, 0),
            manage(7, 0),
            manage(7, 1),
            done(4096),
            all,
            done(0),
        ],
    );
    emit(
        "all_lost_and_back",
        level(2),
        vec![read(8), write_of(0, 16), lose, wait(500), join(1), manage(7, 0), manage(7, 1), all, done(4096), done(0)],
    );
    emit(
        "reinstated",
        level(2),
        vec![join(2), write_of(0, 16), join(1), manage(7, 0), all, done(0), lose, wait(30_000), read(1)],
    );
    emit(
        "aborts",
        level(2),
        vec![
            join(2),
            read(4),
            read(4).on(1),
            manage(0, 0),
            done(1),
            managed,
            manage(4, 0),
            done(1),
            managed,
            write_of(0, 20),
            manage(5, 0),
            wait(2500),
            managed,
            manage(1, 0),
            manage(10, 0),
            managed,
        ],
    );
    let slow = Setup { is_slow: true, is_tight: true, has_header_digest: true, ..level(1) };
    let some = Step::new(Kind::Transmit, 0, 0, 700);
    emit("slow", slow, vec![read(20), some, write_of(0, 20), done(9000), some, all, some, done(0), some, lose, some]);
}

fn target_file() {
    for (name, text) in [
        (
            "one",
            "[[target]]\niqn = \"iqn.2026-11.org.example:a\"\nluns = [\"0=ram:1MiB,thin,removable\", \"1=file:/a b\"]\n",
        ),
        (
            "portals_and_chap",
            "# c\nportals = [\"127.0.0.1:3260\", \"[::1]:1\"]\n[[target]]\niqn = 'a'\nluns = []\nchap-user = \"u\"\n\
             chap-file = \"/f\"\n[[target]]\niqn = \"b\"\nluns = [\"3=file:c,size=1GiB,block=4096,physical=4096\"]\n",
        ),
        ("unknown_key", "[[target]]\niqn = \"a\"\nluns = []\nport = 1\n"),
    ] {
        write("target_file", name, text.as_bytes());
    }
}

fn traces() {
    let blkparse = "  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]\n  8,0    3        9     \
                    1.000020000   700  Q  RM 8 + 16 [a b]\n  8,0    1       11     1.500040000   700  Q FWFSM 16 + 8 \
                    [jbd2/sda1-8]\nCPU0 (sda):\n";
    for (name, text) in [
        ("cloud_physics", "version,time,op,size,lbn\n1,100,2a,512,7\n1,100,28,6656,8\r\n\n1,102,88,4096,1\n"),
        ("blkparse", blkparse),
        (
            "iolog_2",
            "fio version 2 iolog\n/dev/sdb add\n/dev/sdb open\n/dev/sdb write 0 4096\n/dev/sdb wait 1000000\n\
                     /dev/sdb read 4096 512\n/dev/sdb sync 0 0\n/dev/sdb close\n",
        ),
        ("iolog_3", "fio version 3 iolog\n0 /dev/sdb add\n5 /dev/sdb open\n2000000 /dev/sdb trim 0 4096\n"),
    ] {
        write("trace", name, &[&[0][..], text.as_bytes()].concat());
    }
}

fn damages_seed(target: &str, name: &str, flags: u8, damages: &[(Place, u16, &[u8])]) {
    let mut bytes = vec![flags];
    for &(place, at, damage) in damages {
        Damage { place, at, bytes: damage.to_vec() }.emit(&mut bytes);
    }
    write(target, name, &bytes);
}

fn cache_image() {
    let seed =
        |name: &str, flags: u8, damages: &[(Place, u16, &[u8])]| damages_seed("cache_image", name, flags, damages);
    seed("stopped", 0, &[]);
    seed("closed", 1, &[]);
    seed("closed_write_through", 3, &[]);
    seed("record_header", 0, &[(Place::Record(1), 44, &[0, 2, 0, 0])]);
    seed("record_payload", 0, &[(Place::Record(0), 64, &[2, 0, 0xff, 0xff]), (Place::Record(2), 80, &[0xff; 8])]);
    // Magic, log position, counts of sets and ways.
    seed("superblock_position", 0, &[(Place::Superblock, 128 + 2648, &[0xff, 0xff])]);
    seed("superblock_layout", 1, &[(Place::Superblock, 128 + 2572, &[1, 0]), (Place::Superblock, 128 + 2584, &[8])]);
    seed("slot_entry", 1, &[(Place::Table(0), 64, &[0, 0, 0, 0, 0, 0, 0xff, 0xff]), (Place::Table(1), 80, &[1; 16])]);
    seed("slot_sequence", 1, &[(Place::Table(1), 16, &[0xff; 8])]);
    seed("anything", 0, &[(Place::Anything(8), 0, &[0; 64]), (Place::Anything(200), 100, &[0xa5; 200])]);
    write("cache_image", "one_copy_first", &[0b0100, 0, 0, 1, 2, 3]);
    write("cache_image", "one_copy_last", &[0b1101, 0x0f, 0, 1, 2, 3]);
}

fn log_image() {
    let seed = |name: &str, flags: u8, damages: &[(Place, u16, &[u8])]| damages_seed("log_image", name, flags, damages);
    seed("stopped", 0, &[]);
    seed("closed", 1, &[]);
    seed("closed_lba", 3, &[]);
    // The record's segment and the next one; its first entry's sector and kind.
    seed("record_head", 0, &[(Place::Record(1), 64, &[1, 0, 0, 0, 0xff, 0xff])]);
    seed("record_entry", 0, &[(Place::Record(0), 96, &[0xff; 8]), (Place::Record(2), 108, &[3])]);
    // Where replay starts; how many segments there are.
    seed("superblock_position", 0, &[(Place::Superblock, 128 + 2616, &[0xff, 0xff])]);
    seed("superblock_layout", 1, &[(Place::Superblock, 128 + 2568, &[3, 0])]);
    seed("checkpoint_counts", 0, &[(Place::Table(0), 32, &[0xff; 8]), (Place::Table(1), 36, &[0, 1])]);
    seed("checkpoint_extent", 0, &[(Place::Table(0), 88, &[0xff; 16]), (Place::Table(1), 88, &[0; 16])]);
    // Extents that overlap and reach out of their segment, as the fuzzer found them.
    seed("checkpoint_rows", 3, &[(Place::Table(10), 0x88b9, &[1, 0, 0, 0x0f, 0])]);
    // A segment that promises records which are not there: level 2 looked for them for ever.
    let promise: &[u8] = &[0xff, 0xff];
    seed(
        "checkpoint_promise",
        1,
        &[(Place::Table(0), 80, promise), (Place::Table(1), 80, promise), (Place::Table(1), 104, promise)],
    );
    // Extents that lie within each other in the log, sent in order of LBA.
    let places: &[(Place, u16, &[u8])] = &[
        (Place::Table(0), 100, &[1, 0, 0, 0]),
        (Place::Table(0), 116, &[1, 0, 0, 0]),
        (Place::Table(1), 124, &[1, 0, 0, 0]),
        (Place::Table(1), 140, &[1, 0, 0, 0]),
    ];
    seed("checkpoint_within", 3, places);
    seed("anything", 0, &[(Place::Anything(8), 0, &[0; 64]), (Place::Anything(200), 100, &[0xa5; 200])]);
    write("log_image", "one_copy_first", &[0b0100, 0, 0, 1, 2, 3]);
    write("log_image", "one_copy_last", &[0b1101, 0x0f, 0, 1, 2, 3]);
}

/// Which image, damages, and what is done then.
fn ext2_image() {
    let seed = |name: &str, image: u8, damages: &[(u16, &[u8])], actions: &[(u8, u8, u16)]| {
        let flags = (0..16).find(|low| (damages.len() as u8 * 16 + low) % 3 == image).expect("one of three");
        let mut bytes = vec![damages.len() as u8 * 16 + flags];
        for (at, damage) in damages {
            bytes.extend_from_slice(&at.to_be_bytes());
            bytes.push(damage.len() as u8);
            bytes.extend_from_slice(damage);
        }
        for (action, pick, number) in actions {
            bytes.extend_from_slice(&[*action, *pick]);
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        write("ext2_image", name, &bytes);
    };
    let all: Vec<(u8, u8, u16)> =
        (0..40_u8).map(|step| (step % 10, step.wrapping_mul(7), u16::from(step) * 900)).collect();
    seed("whole", 0, &[], &all);
    seed("whole_large_blocks", 2, &[], &all);
    seed("superblock_features", 0, &[(64 + 6, &[0xff; 4])], &all);
    seed("superblock_groups", 1, &[(64 + 2, &[1, 0, 0, 0])], &all);
    seed("orphans", 0, &[(64 + 14, &[0, 0, 0, 0, 0, 0, 0, 0, 14, 0, 0, 0])], &all);
    seed("bitmaps", 0, &[(3 * 64, &[0; 64])], &all);
    seed("inodes", 1, &[(5 * 64 + 8 * 11, &[0xff; 100])], &all);
}

fn main() {
    ext2_image();
    iscsi_target();
    iscsi_session();
    iscsi_initiator();
    iscsi_pdu();
    iscsi_text();
    scsi_cdb();
    nbd();
    target_file();
    text_forms();
    traces();
    cache_image();
    log_image();
}
