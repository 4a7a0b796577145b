//! PDUs and texts of iSCSI by themselves.

use fuzz::iscsi_peer::pdu_bytes;
use fuzz::iscsi_script::{Fixes, pattern};
use iscsi::framing::Digests;
use iscsi::pdu::*;

use crate::pdus::*;
use crate::write;

pub fn write_seeds() {
    iscsi_pdu();
    iscsi_text();
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
