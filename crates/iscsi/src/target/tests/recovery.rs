//! What levels 1 and 2 keep, and where that ends: peers that acknowledge late, or never.

use base::serial::Serial32;

use super::super::*;
use super::peer::*;
use crate::limits::{COMMAND_WINDOW, RETAINED_ANSWERS, RETAINED_DATA_BYTES_MAX, UNACKNOWLEDGED_RESPONSES_MAX};
use crate::pdu::*;

const LEVEL_1: [(&str, &str); 1] = [("ErrorRecoveryLevel", "1")];

fn snack(peer: &mut Peer, tag: u32) {
    let kind = SnackType::DataOrR2t { initiator_task_tag: itt(tag), begin: Serial32(0), run_length: 0 };
    peer.send(&SnackRequest { kind, lun: 0, exp_stat_sn: Serial32(0) }, Vec::new());
}

/// A ping that acknowledges every response before `exp_stat_sn`.
fn acknowledge(peer: &mut Peer, exp_stat_sn: Serial32) -> NopIn {
    let ping = NopOut {
        is_immediate: true,
        lun: 0,
        initiator_task_tag: Some(itt(0x7777)),
        target_transfer_tag: None,
        cmd_sn: peer.cmd_sn,
        exp_stat_sn,
    };
    peer.send(&ping, Vec::new());
    match peer.receive_bhs().pop() {
        Some(Bhs::NopIn(echo)) => echo,
        other => panic!("{other:?} is not a ping"),
    }
}

#[test]
fn kept_data_has_a_bound_and_the_oldest_goes_first() {
    const READ_BYTES: usize = 1 << 20;
    let mut peer = Peer::logged_in(parameters(), &LEVEL_1);
    let data = pattern(READ_BYTES);
    let count = RETAINED_DATA_BYTES_MAX / READ_BYTES + 1;
    for tag in 0..count as u32 {
        peer.read(tag, READ_BYTES as u32);
        let command = peer.started();
        peer.complete(command.task, good(&data));
        peer.receive();
    }
    snack(&mut peer, 0);
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::SnackReject, "the oldest lost its data");
    for tag in 1..count as u32 {
        snack(&mut peer, tag);
        let again: usize = peer.receive().iter().map(|pdu| pdu.data.length).sum();
        assert_eq!(again, READ_BYTES, "that of read {tag} is kept");
    }
}

#[test]
fn answers_that_nobody_acknowledges_close_the_window() {
    let mut peer = Peer::logged_in(parameters(), &LEVEL_1);
    let window = |peer: &mut Peer| {
        let echo = acknowledge(peer, Serial32(0));
        echo.max_cmd_sn.0.wrapping_sub(echo.exp_cmd_sn.0).wrapping_add(1)
    };
    let mut answer_count = 0;
    while window(&mut peer) > 0 {
        // MaxCmdSN never goes back, so the last answer is seen one command later.
        let excess = (answer_count as usize).saturating_sub(RETAINED_ANSWERS + 1) as u32;
        assert_eq!(window(&mut peer), COMMAND_WINDOW - excess, "{answer_count} answers");
        peer.read(answer_count, 512);
        let command = peer.started();
        peer.complete(command.task, good(&pattern(512)));
        peer.receive();
        answer_count += 1;
    }
    assert_eq!(answer_count as usize, RETAINED_ANSWERS + COMMAND_WINDOW as usize + 1);
    let echo = acknowledge(&mut peer, Serial32(1));
    let all = echo.stat_sn.next();
    acknowledge(&mut peer, all);
    assert_eq!(window(&mut peer), COMMAND_WINDOW);
}

#[test]
fn who_never_acknowledges_is_cut_off() {
    let mut peer = Peer::logged_in(parameters(), &LEVEL_1);
    for _ in 0..UNACKNOWLEDGED_RESPONSES_MAX {
        acknowledge(&mut peer, Serial32(0));
    }
    let last = NopOut {
        is_immediate: true,
        lun: 0,
        initiator_task_tag: Some(itt(0x7777)),
        target_transfer_tag: None,
        cmd_sn: peer.cmd_sn,
        exp_stat_sn: Serial32(0),
    };
    peer.send(&last, Vec::new());
    peer.send(&last, Vec::new());
    assert_eq!(peer.close_reason(), CloseReason::Unacknowledged);
}
