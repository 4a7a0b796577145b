//! An initiator of ours, and what a target sends.

use base::serial::Serial32;
use fuzz::iscsi_script::{Item, Script, Setup, pattern};
use iscsi::pdu::*;

use crate::pdus::*;
use crate::write;

/// Of the first command of an initiator of ours: slot 0, generation 1.
const FIRST_TAG: u32 = 1 << 16;

const ZERO: Serial32 = Serial32(0);

pub fn write_seeds() {
    reads();
    writes();
    check_condition();
    timeout_and_abort();
    ping_logout();
    reject();
    discovery();
    logins();
}

fn emit(name: &str, setup: Setup, items: Vec<Item>) {
    write("iscsi_initiator", name, &Script { setup, items }.emit());
}

fn response(status: u8) -> ScsiResponse {
    ScsiResponse {
        response: ServiceResponse::CommandCompleted { status },
        initiator_task_tag: itt(0),
        snack_tag: 0,
        stat_sn: ZERO,
        exp_cmd_sn: ZERO,
        max_cmd_sn: ZERO,
        exp_data_sn: ZERO,
        bidirectional_read_residual: Residual::None,
        residual: Residual::None,
    }
}

fn data_in(offset: u32, data_sn: u32, status: Option<DataInStatus>) -> DataIn {
    DataIn {
        is_final: status.is_some(),
        wants_acknowledgement: false,
        status,
        lun: 0,
        initiator_task_tag: itt(0),
        target_transfer_tag: None,
        exp_cmd_sn: ZERO,
        max_cmd_sn: ZERO,
        data_sn: Serial32(data_sn),
        buffer_offset: offset,
    }
}

fn reads() {
    let good = DataInStatus { status: 0, stat_sn: ZERO, residual: Residual::None };
    let read = vec![
        drive(1, 80, 4096),
        pdu(&data_in(0, 0, None), &pattern(2048)),
        pdu(&data_in(2048, 1, Some(good)), &pattern(2048)),
    ];
    emit("read", LOGGED_IN, read.clone());
    emit("read_with_digests", Setup { has_header_digest: true, has_data_digest: true, ..LOGGED_IN }, read.clone());
    emit("read_in_small_reads", Setup { read_bytes: 5, ..LOGGED_IN }, read);
}

fn writes() {
    let r2t = ReadyToTransfer {
        lun: 0,
        initiator_task_tag: itt(0),
        target_transfer_tag: TargetTransferTag::new(5).expect("not the reserved value"),
        stat_sn: ZERO,
        exp_cmd_sn: ZERO,
        max_cmd_sn: ZERO,
        r2t_sn: ZERO,
        buffer_offset: 2048,
        desired_data_transfer_length: 4096,
    };
    let write = vec![drive(3, 80, 6144), pdu(&r2t, &[]), pdu(&response(0), &[])];
    emit("write", LOGGED_IN, write.clone());
    let [submit, ask, end] = [write[0].clone(), write[1].clone(), write[2].clone()];
    let slowly = vec![submit, Item::Transmit(4000), ask, Item::Transmit(100), end, Item::Transmit(60_000)];
    emit("write_slow", Setup { is_slow: true, is_tight: true, ..LOGGED_IN }, slowly);
}

fn check_condition() {
    emit(
        "check_condition",
        LOGGED_IN,
        vec![drive(0, 80, 0), pdu(&response(2), &[&[0, 18, 0x70, 0, 6][..], &[0; 15]].concat())],
    );
}

fn timeout_and_abort() {
    let aborted = TaskManagementResponse {
        outcome: TaskManagementOutcome::FunctionComplete,
        initiator_task_tag: itt(0),
        stat_sn: ZERO,
        exp_cmd_sn: ZERO,
        max_cmd_sn: ZERO,
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
}

fn ping_logout() {
    let ping = NopIn {
        lun: 0,
        initiator_task_tag: None,
        target_transfer_tag: TargetTransferTag::new(3),
        stat_sn: ZERO,
        exp_cmd_sn: ZERO,
        max_cmd_sn: ZERO,
    };
    let leave = AsyncMessage {
        event: AsyncEvent::LogoutRequest { logout_within_seconds: 5 },
        lun: 0,
        stat_sn: ZERO,
        exp_cmd_sn: ZERO,
        max_cmd_sn: ZERO,
    };
    let left = LogoutResponse {
        outcome: LogoutOutcome::ALL[0],
        initiator_task_tag: itt(0),
        stat_sn: ZERO,
        exp_cmd_sn: ZERO,
        max_cmd_sn: ZERO,
        wait_seconds: 0,
        retain_seconds: 0,
    };
    emit(
        "ping_logout",
        LOGGED_IN,
        vec![pdu(&ping, b"data"), Item::Wait(21_000), pdu(&leave, &[]), drive(5, 0, 0), pdu(&left, &[])],
    );
}

fn reject() {
    let reject = Reject {
        reason: RejectReason::CommandNotSupported,
        stat_sn: ZERO,
        exp_cmd_sn: ZERO,
        max_cmd_sn: ZERO,
        data_sn: ZERO,
    };
    emit("reject", LOGGED_IN, vec![drive(1, 80, 512), pdu(&reject, &command(FIRST_TAG, 0, 512, true).to_bytes())]);
}

fn discovery() {
    let text = |is_continued: bool| TextResponse {
        is_continued,
        target_transfer_tag: if is_continued { TargetTransferTag::new(1) } else { None },
        lun: 0,
        initiator_task_tag: itt(0),
        stat_sn: ZERO,
        exp_cmd_sn: ZERO,
        max_cmd_sn: ZERO,
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
}

fn logins() {
    let login = LoginResponse {
        is_continued: false,
        current_stage: LoginStage::SecurityNegotiation,
        transit_to: Some(LoginStage::OperationalNegotiation),
        version_max: 0,
        version_active: 0,
        isid: Isid::random_format(7, 7),
        tsih: 0,
        initiator_task_tag: itt(0),
        stat_sn: ZERO,
        exp_cmd_sn: Serial32(u32::MAX - 1),
        max_cmd_sn: Serial32(30),
        status: LoginStatus::SUCCESS,
    };
    let moved = LoginResponse { status: LoginStatus(0x0101), transit_to: None, ..login };
    emit(
        "login",
        Setup { is_logged_in: false, ..LOGGED_IN },
        vec![
            plain(&login, keys(&[("AuthMethod", "None"), ("TargetPortalGroupTag", "1")])),
            plain(
                &LoginResponse { current_stage: LoginStage::OperationalNegotiation, transit_to: None, ..login },
                keys(&[("MaxBurstLength", "4096"), ("HeaderDigest", "None")]),
            ),
        ],
    );
    emit(
        "login_moved",
        Setup { is_logged_in: false, ..LOGGED_IN },
        vec![plain(&moved, keys(&[("TargetAddress", "[::1]:3260,1")]))],
    );
    let stay = LoginResponse { transit_to: None, ..login };
    emit(
        "login_chap",
        Setup { is_logged_in: false, has_chap: true, ..LOGGED_IN },
        vec![
            plain(&stay, keys(&[("AuthMethod", "CHAP"), ("TargetPortalGroupTag", "1")])),
            plain(&stay, keys(&[("CHAP_A", "7"), ("CHAP_I", "1"), ("CHAP_C", "0x00112233445566778899aabbccddeeff")])),
            plain(&login, keys(&[("CHAP_N", "disk"), ("CHAP_R", "0x00112233445566778899aabbccddeeff")])),
        ],
    );
}
