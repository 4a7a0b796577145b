//! What the seeds of both ends of iSCSI are made of.

use base::serial::Serial32;
use fuzz::iscsi_script::{Fixes, Item, Setup, pattern};
use iscsi::pdu::*;
use iscsi::text::Keys;

pub fn itt(value: u32) -> InitiatorTaskTag {
    InitiatorTaskTag::new(value).expect("not the reserved value")
}

pub fn keys(pairs: &[(&str, &str)]) -> Vec<u8> {
    pairs.iter().copied().collect::<Keys>().emit()
}

/// A PDU with everything filled in by the harness.
pub fn pdu(header: &impl Header, data: &[u8]) -> Item {
    let fixes = Fixes(Fixes::NUMBERS | Fixes::TAG | Fixes::PATTERN);
    let fixes = if data == pattern(data.len()) { fixes } else { Fixes(Fixes::NUMBERS | Fixes::TAG) };
    Item::Pdu { fixes, tag_index: 0, bhs: header.to_bytes(), ahs: Vec::new(), data: data.to_vec() }
}

/// A PDU as it stands.
pub fn plain(header: &impl Header, data: Vec<u8>) -> Item {
    Item::Pdu { fixes: Fixes(0), tag_index: 0, bhs: header.to_bytes(), ahs: Vec::new(), data }
}

pub fn drive(action: u8, detail: u8, amount: u32) -> Item {
    Item::Driver { action, index: 0, detail, amount }
}

pub const LOGGED_IN: Setup = Setup {
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

pub fn command(tag: u32, writes: u32, reads: u32, is_final: bool) -> ScsiCommand {
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

pub fn data_out(tag: u32, is_solicited: bool, data_sn: u32, buffer_offset: u32) -> DataOut {
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

pub fn task_management(function: TaskManagementFunction, referenced: u32) -> TaskManagementRequest {
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

pub fn login_request(stage: LoginStage, next: LoginStage) -> LoginRequest {
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
