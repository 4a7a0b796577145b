//! A target of ours, and what an initiator sends.

use base::serial::Serial32;
use fuzz::iscsi_script::{Fixes, Item, Script, Setup, pattern};
use iscsi::pdu::*;

use crate::pdus::*;
use crate::write;

const ZERO: Serial32 = Serial32(0);

pub fn write_seeds() {
    reads();
    writes();
    aborts();
    ping_text_logout();
    discovery();
    login();
    login_chap();
}

fn emit(name: &str, setup: Setup, items: Vec<Item>) {
    write("iscsi_target", name, &Script { setup, items }.emit());
}

/// A PDU with its numbers and nothing else filled in by the harness.
fn numbered(header: &impl Header, data: &[u8]) -> Item {
    Item::Pdu {
        fixes: Fixes(Fixes::NUMBERS),
        tag_index: 0,
        bhs: header.to_bytes(),
        ahs: Vec::new(),
        data: data.to_vec(),
    }
}

fn read(tag: u32) -> Item {
    numbered(&command(tag, 0, 4096, true), &[])
}

/// Without the tag of an R2T.
fn unsolicited(header: &DataOut, bytes: usize) -> Item {
    Item::Pdu {
        fixes: Fixes(Fixes::PATTERN),
        tag_index: 0,
        bhs: header.to_bytes(),
        ahs: Vec::new(),
        data: pattern(bytes),
    }
}

fn text() -> TextRequest {
    TextRequest {
        is_immediate: false,
        is_final: true,
        is_continued: false,
        lun: 0,
        initiator_task_tag: itt(8),
        target_transfer_tag: None,
        cmd_sn: ZERO,
        exp_stat_sn: ZERO,
    }
}

fn reads() {
    emit("reads", LOGGED_IN, vec![read(1), read(2), drive(0, 0, 4096), drive(0, 1, 0x0200_0000), drive(0, 40, 100)]);
}

fn writes() {
    let write_4k = numbered(&command(1, 8192, 0, false), &pattern(512));
    let burst = unsolicited(&data_out(1, false, 0, 512), 1536);
    let solicited = |data_sn, offset, bytes: usize| pdu(&data_out(1, true, data_sn, offset), &pattern(bytes));
    let write_items = vec![write_4k, burst, solicited(0, 2048, 4096), solicited(0, 6144, 2048), drive(0, 0, 0)];
    emit("write_with_r2t", LOGGED_IN, write_items.clone());
    let digests = Setup { has_header_digest: true, has_data_digest: true, ..LOGGED_IN };
    emit("write_with_digests", digests, write_items.clone());
    emit("write_in_small_reads", Setup { read_bytes: 7, ..LOGGED_IN }, write_items.clone());
    let piece = |offset| unsolicited(&data_out(1, false, offset / 512 - 1, offset), 512);
    let in_pieces = [write_items[0].clone(), piece(512), piece(1024), piece(1536), Item::Transmit(60_000)];
    emit("write_tight", Setup { is_tight: true, is_slow: true, ..LOGGED_IN }, in_pieces.to_vec());
}

fn aborts() {
    let abort = numbered(&task_management(TaskManagementFunction::AbortTask, 1), &[]);
    let reset = numbered(&task_management(TaskManagementFunction::LogicalUnitReset, u32::MAX), &[]);
    emit(
        "abort_and_reset",
        LOGGED_IN,
        vec![read(1), abort, drive(3, 0, 0), drive(0, 0xff, 0), read(2), reset, drive(0, 0, 512), drive(3, 0, 0)],
    );
}

fn ping_text_logout() {
    let nop = NopOut {
        is_immediate: true,
        lun: 0,
        initiator_task_tag: Some(itt(7)),
        target_transfer_tag: None,
        cmd_sn: ZERO,
        exp_stat_sn: ZERO,
    };
    let logout = LogoutRequest {
        is_immediate: true,
        reason: LogoutReason::CloseSession,
        initiator_task_tag: itt(9),
        cid: 3,
        cmd_sn: ZERO,
        exp_stat_sn: ZERO,
    };
    emit(
        "ping_text_logout",
        LOGGED_IN,
        vec![
            numbered(&nop, b"ping"),
            numbered(&text(), &keys(&[("SendTargets", "")])),
            numbered(&text(), &keys(&[("MaxRecvDataSegmentLength", "4096")])),
            Item::Wait(16_000),
            drive(6, 0, 0),
            numbered(&logout, &[]),
        ],
    );
}

fn discovery() {
    emit(
        "discovery",
        Setup { is_discovery: true, ..LOGGED_IN },
        vec![numbered(&text(), &keys(&[("SendTargets", "All")]))],
    );
}

const NAMES: [(&str, &str); 2] =
    [("InitiatorName", "iqn.2026-01.io.forebay:host"), ("TargetName", "iqn.2026-01.io.forebay:disk")];

fn security() -> LoginRequest {
    login_request(LoginStage::SecurityNegotiation, LoginStage::OperationalNegotiation)
}

fn login() {
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
            plain(&security(), [keys(&NAMES), keys(&[("AuthMethod", "CHAP,None")])].concat()),
            plain(&operational, wishes),
            drive(4, 0, 9),
            read(1),
            drive(0, 0, 4096),
        ],
    );
}

fn login_chap() {
    let stay = LoginRequest { transit_to: None, ..security() };
    emit(
        "login_chap",
        Setup { is_logged_in: false, has_chap: true, ..LOGGED_IN },
        vec![
            plain(&stay, [keys(&NAMES), keys(&[("AuthMethod", "CHAP")])].concat()),
            plain(&stay, keys(&[("CHAP_A", "7,5")])),
            plain(&security(), keys(&[("CHAP_N", "host"), ("CHAP_R", "0x00112233445566778899aabbccddeeff")])),
        ],
    );
}
