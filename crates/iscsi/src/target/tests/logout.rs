//! A logout is answered when nothing that it ends is under way any more (RFC 7143 11.14).

use std::time::Duration;

use base::serial::Serial32;

use super::super::*;
use super::peer::*;
use crate::limits::LOGOUT_TIMEOUT;
use crate::pdu::*;

fn log_out(peer: &mut Peer, reason: LogoutReason) {
    let request = LogoutRequest {
        is_immediate: true,
        reason,
        initiator_task_tag: itt(0x20),
        cid: 3,
        cmd_sn: peer.cmd_sn,
        exp_stat_sn: Serial32(0),
    };
    peer.send(&request, Vec::new());
}

/// A peer with a read that the driver has and a write whose data has not come.
fn busy_peer(keys: &[(&str, &str)]) -> (Peer, TaskId) {
    let all = [keys, &[("InitialR2T", "Yes"), ("ImmediateData", "No")]].concat();
    let mut peer = Peer::logged_in(parameters(), &all);
    peer.read(1, 512);
    let started = peer.started().task;
    let write = peer.command(2, cdb_write(4096), Direction::Write, 4096);
    peer.send(&write, Vec::new());
    assert_eq!(r2ts(&peer.receive_bhs()).len(), 1);
    (peer, started)
}

fn outcome(peer: &mut Peer) -> LogoutOutcome {
    match peer.receive_bhs()[..] {
        [Bhs::LogoutResponse(response)] => response.outcome,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_logout_waits_for_what_the_driver_has() {
    for (reason, level) in
        [(LogoutReason::CloseSession, "0"), (LogoutReason::CloseConnection, "0"), (LogoutReason::CloseSession, "2")]
    {
        let (mut peer, started) = busy_peer(&[("ErrorRecoveryLevel", level)]);
        log_out(&mut peer, reason);
        assert!(peer.receive_bhs().is_empty(), "{reason:?}: not yet");
        assert!(matches!(peer.events[..], [Event::Logout]), "{:?}", peer.events);
        assert_eq!(peer.target.task_count(), 1, "the task that had not begun is over");
        // A request that the initiator must not send any more is ignored.
        peer.read(3, 512);
        assert!(peer.receive_bhs().is_empty());
        peer.sleep(Duration::from_secs(30));
        assert!(peer.receive_bhs().is_empty(), "nor is it asked for a sign of life");
        assert!(peer.target.poll_timeout().is_some_and(|at| at > peer.now), "{reason:?}: and no timer rings in vain");
        assert!(matches!(peer.events[..], [Event::Logout]), "{:?}", peer.events);
        peer.complete(started, good(&pattern(512)));
        assert_eq!(outcome(&mut peer), LogoutOutcome::Closed, "{reason:?}: and nothing of the task");
        assert_eq!(peer.close_reason(), CloseReason::Logout);
    }
}

#[test]
fn a_logout_does_not_wait_for_ever() {
    let (mut peer, started) = busy_peer(&[]);
    log_out(&mut peer, LogoutReason::CloseSession);
    peer.sleep(LOGOUT_TIMEOUT - Duration::from_millis(1));
    assert!(peer.receive_bhs().is_empty());
    assert!(peer.target.poll_timeout().is_some_and(|at| at <= peer.now + Duration::from_millis(1)), "it wakes for it");
    peer.sleep(Duration::from_millis(1));
    assert_eq!(outcome(&mut peer), LogoutOutcome::CleanupFailed);
    assert_eq!(peer.close_reason(), CloseReason::Logout);
    peer.complete(started, good(&pattern(512)));
    assert!(peer.receive_bhs().is_empty(), "nobody hears of what ends later");
}

#[test]
fn tasks_outlive_a_removal_for_recovery() {
    let (mut peer, started) = busy_peer(&[("ErrorRecoveryLevel", "2")]);
    log_out(&mut peer, LogoutReason::RemoveForRecovery);
    assert_eq!(outcome(&mut peer), LogoutOutcome::Closed, "at once");
    assert!(peer.target.session().is_wanted(started));
    assert!(!peer.target.is_closed());
}
