//! Command numbering and task management.

use base::serial::Serial32;

use super::super::*;
use super::peer::*;
use crate::pdu::*;

#[test]
fn commands_wait_for_those_before_them() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    let (first, second) =
        (peer.command(0x10, CDB_READ, Direction::Read, 512), peer.command(0x11, CDB_READ, Direction::Read, 512));
    peer.send(&second, Vec::new());
    peer.send(&second, Vec::new());
    assert!(peer.events.is_empty());
    peer.send(&first, Vec::new());
    let tags: Vec<u32> = peer
        .events
        .iter()
        .map(|event| match event {
            Event::Command(command) => command.task.initiator_task_tag.get(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tags, [0x10, 0x11]);
    assert!(peer.receive().is_empty(), "the duplicate was ignored silently");
}

#[test]
fn the_window_closes_and_opens() {
    let mut parameters = parameters();
    parameters.command_window = 2;
    let mut peer = Peer::logged_in(parameters, &[]);
    for tag in [0x10, 0x11, 0x12] {
        peer.read(tag, 512);
    }
    assert_eq!(peer.events.len(), 2, "the third is outside and silently ignored");
    let Event::Command(second) = peer.events.pop().unwrap() else { panic!("a command") };
    peer.complete(second.task, good(&pattern(512)));
    let Bhs::DataIn(data) = peer.receive_bhs()[0] else { panic!("data") };
    assert_eq!((data.exp_cmd_sn, data.max_cmd_sn), (Serial32(102), Serial32(102)), "room for one");
    peer.cmd_sn = Serial32(102);
    peer.read(0x12, 512);
    assert_eq!(peer.started().task.initiator_task_tag, itt(0x12));
}

#[test]
fn immediate_commands_are_outside_the_order_and_bounded() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    for tag in 0..=crate::limits::IMMEDIATE_TASKS_MAX as u32 {
        let mut command = peer.command(tag, CDB_READ, Direction::Read, 512);
        command.is_immediate = true;
        command.cmd_sn = Serial32(5000);
        peer.send(&command, Vec::new());
    }
    assert_eq!(peer.events.len(), crate::limits::IMMEDIATE_TASKS_MAX);
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::TooManyImmediateCommands);
}

#[test]
fn a_task_tag_in_use_is_rejected() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    peer.read(0x10, 512);
    peer.read(0x10, 512);
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::TaskInProgress);
    assert_eq!(peer.events.len(), 1);
}

#[test]
fn an_abort_waits_for_the_task_and_silences_it() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    peer.read(0x10, 512);
    let command = peer.started();
    peer.task_management(0x40, TaskManagementFunction::AbortTask, Some((0x10, Serial32(100))));
    let Some(Event::TaskManagement(request)) = peer.events.pop() else { panic!("the driver is told") };
    assert_eq!((request.function, request.task), (TaskManagementFunction::AbortTask, Some(command.task)));
    peer.target.handle_task_management(peer.now, request.id, TaskManagementOutcome::FunctionComplete);
    assert!(peer.receive().is_empty(), "I/O is still under way");
    peer.complete(command.task, good(&pattern(512)));
    let pdus = peer.receive_bhs();
    assert_eq!(pdus.len(), 1, "the task itself is not answered");
    assert_eq!(outcome_of(&pdus[0]), TaskManagementOutcome::FunctionComplete);
    assert_eq!(peer.target.task_count(), 0);
}

#[test]
fn a_task_that_still_collects_data_is_aborted_at_once() {
    let mut peer = Peer::logged_in(parameters(), &[("ImmediateData", "No")]);
    let command = peer.command(0x10, cdb_write(512), Direction::Write, 512);
    peer.send(&command, Vec::new());
    let (tag, ..) = r2ts(&peer.receive_bhs())[0];
    peer.task_management(0x40, TaskManagementFunction::AbortTask, Some((0x10, Serial32(100))));
    assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionComplete);
    peer.data_out(0x10, Some(tag), 0, 0, true, &pattern(512));
    assert!(peer.receive().is_empty() && peer.events.is_empty(), "late data is dropped");
}

#[test]
fn an_abort_that_overtakes_its_command_uses_up_its_number() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    let lost = peer.command(0x10, CDB_READ, Direction::Read, 512);
    peer.task_management(0x40, TaskManagementFunction::AbortTask, Some((0x10, lost.cmd_sn)));
    assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionComplete);
    peer.send(&lost, Vec::new());
    assert!(peer.events.is_empty(), "it never is executed");
    peer.read(0x11, 512);
    assert_eq!(peer.started().task.initiator_task_tag, itt(0x11));
    peer.task_management(0x41, TaskManagementFunction::AbortTask, Some((0x77, Serial32(90))));
    assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::TaskDoesNotExist);
}

#[test]
fn task_management_requests_that_wait_are_bounded() {
    use crate::limits::TASK_MANAGEMENT_MAX;
    let mut peer = Peer::logged_in(parameters(), &[]);
    peer.read(0x10, 512);
    let read = peer.started();
    // The driver has the read: each reset waits for its end.
    (0..=TASK_MANAGEMENT_MAX as u32)
        .for_each(|number| peer.task_management(0x20 + number, TaskManagementFunction::LogicalUnitReset, None));
    let [rejected] = &peer.receive_bhs()[..] else { panic!("one is rejected, and the others wait") };
    assert_eq!(reject_reason(rejected), RejectReason::TooManyImmediateCommands);
    for event in std::mem::take(&mut peer.events) {
        let Event::TaskManagement(reset) = event else { continue };
        peer.target.handle_task_management(peer.now, reset.id, TaskManagementOutcome::FunctionComplete);
    }
    peer.complete(read.task, good(&pattern(512)));
    assert_eq!(peer.receive_bhs().len(), TASK_MANAGEMENT_MAX);
}

#[test]
fn a_reset_covers_the_tasks_of_its_logical_unit() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    peer.read(0x10, 512);
    let covered = peer.started();
    let mut other = peer.command(0x11, CDB_READ, Direction::Read, 512);
    other.lun = 0x0001_0000_0000_0000;
    peer.send(&other, Vec::new());
    let other = peer.started();
    peer.task_management(0x40, TaskManagementFunction::LogicalUnitReset, None);
    let Some(Event::TaskManagement(request)) = peer.events.pop() else { panic!("the driver is told") };
    peer.target.handle_task_management(peer.now, request.id, TaskManagementOutcome::FunctionComplete);
    peer.complete(other.task, good(&pattern(512)));
    assert!(matches!(peer.receive_bhs()[..], [Bhs::DataIn(_)]), "the other unit is not concerned");
    peer.complete(covered.task, good(&pattern(512)));
    assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionComplete);
}

#[test]
fn functions_that_are_not_there_say_so() {
    let mut peer = Peer::logged_in(parameters(), &[("iSCSIProtocolLevel", "2")]);
    peer.read(0x10, 512);
    for (function, referenced, outcome) in [
        (TaskManagementFunction::TaskReassign, Some(0x10), TaskManagementOutcome::ReassignmentNotSupported),
        (TaskManagementFunction::ClearAca, None, TaskManagementOutcome::FunctionNotSupported),
        (TaskManagementFunction::QueryTask, Some(0x10), TaskManagementOutcome::FunctionSucceeded),
        (TaskManagementFunction::QueryTask, Some(0x11), TaskManagementOutcome::FunctionComplete),
        (TaskManagementFunction::QueryTaskSet, None, TaskManagementOutcome::FunctionSucceeded),
    ] {
        peer.task_management(0x40, function, referenced.map(|tag| (tag, Serial32(100))));
        assert_eq!(outcome_of(&peer.receive_bhs()[0]), outcome);
    }
}

/// RFC 7144 7.1.1: its functions require protocol level 2.
#[test]
fn functions_of_a_level_that_was_not_agreed_are_not_there() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    for function in [TaskManagementFunction::QueryTask, TaskManagementFunction::NexusReset] {
        peer.task_management(0x40, function, None);
        assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionNotSupported);
    }
}

/// RFC 7143 4.2.3.3: the target waits for the data it has asked for, but not for ever.
#[test]
fn a_reset_waits_for_data_under_way_and_not_for_ever() {
    for is_sent in [true, false] {
        let mut peer = Peer::logged_in(parameters(), &[("ImmediateData", "No")]);
        let command = peer.command(0x10, cdb_write(512), Direction::Write, 512);
        peer.send(&command, Vec::new());
        let (tag, ..) = r2ts(&peer.receive_bhs())[0];
        peer.task_management(0x40, TaskManagementFunction::AbortTaskSet, None);
        assert!(peer.events.is_empty(), "the data is still to come");
        if is_sent {
            peer.data_out(0x10, Some(tag), 0, 0, true, &pattern(512));
        } else {
            peer.sleep(crate::limits::ABORT_DATA_TIMEOUT);
        }
        let Some(Event::TaskManagement(request)) = peer.events.pop() else { panic!("the driver is told") };
        peer.target.handle_task_management(peer.now, request.id, TaskManagementOutcome::FunctionComplete);
        assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionComplete);
        assert_eq!(peer.target.task_count(), 0);
    }
}

/// RFC 7143 4.2.3.3 b: commands before the function belong to it, even when they come after it.
#[test]
fn a_task_set_is_aborted_with_commands_that_come_late() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    let late = peer.command(0x10, CDB_READ, Direction::Read, 512);
    peer.task_management(0x40, TaskManagementFunction::AbortTaskSet, None);
    assert!(peer.receive().is_empty() && peer.events.is_empty());
    peer.send(&late, Vec::new());
    let Some(Event::TaskManagement(request)) = peer.events.pop() else { panic!("the driver is told") };
    let started = peer.started();
    peer.target.handle_task_management(peer.now, request.id, TaskManagementOutcome::FunctionComplete);
    assert!(peer.receive().is_empty(), "the driver still has the command");
    peer.complete(started.task, good(&pattern(512)));
    assert!(matches!(peer.receive_bhs()[..], [Bhs::TaskManagementResponse(_)]));
}

/// It is told so, and waits for the tasks: those that collect data, that come late, and that the driver has.
#[test]
fn a_function_that_is_refused_leaves_its_tasks_to_be_answered() {
    use TaskManagementFunction::{AbortTaskSet, ClearTaskSet, LogicalUnitReset};
    for function in [AbortTaskSet, ClearTaskSet, LogicalUnitReset] {
        let mut peer = Peer::logged_in(parameters(), &[("ImmediateData", "No")]);
        peer.read(0x10, 512);
        let read = peer.started();
        let write = peer.command(0x11, cdb_write(512), Direction::Write, 512);
        peer.send(&write, Vec::new());
        let (transfer, ..) = r2ts(&peer.receive_bhs())[0];
        let late = peer.command(0x12, cdb_write(512), Direction::Write, 512);
        peer.task_management(0x40, function, None);
        peer.data_out(0x11, Some(transfer), 0, 0, true, &pattern(512));
        assert!(peer.events.is_empty(), "a command before it is still to come");
        peer.send(&late, Vec::new());
        let (transfer, ..) = r2ts(&peer.receive_bhs())[0];
        let Some(Event::TaskManagement(request)) = peer.events.pop() else { panic!("the driver is told") };
        assert!(peer.events.is_empty(), "the data that has come begins nothing");
        peer.target.handle_task_management(peer.now, request.id, TaskManagementOutcome::LunDoesNotExist);
        peer.collect_events();
        assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::LunDoesNotExist);
        let write = peer.started();
        assert_eq!((write.task.initiator_task_tag, &write.data_out[..]), (itt(0x11), &pattern(512)[..]));
        peer.data_out(0x12, Some(transfer), 0, 0, true, &pattern(512));
        let late = peer.started();
        for task in [read.task, write.task, late.task] {
            peer.complete(task, Outcome { status: 2, ..Outcome::default() });
            assert!(matches!(peer.receive_bhs()[..], [Bhs::ScsiResponse(_)]));
        }
        assert_eq!(peer.target.task_count(), 0);
    }
}

#[test]
fn an_abort_that_is_refused_leaves_its_task_to_be_answered() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    peer.read(0x10, 512);
    let command = peer.started();
    peer.task_management(0x40, TaskManagementFunction::AbortTask, Some((0x10, Serial32(100))));
    let Some(Event::TaskManagement(request)) = peer.events.pop() else { panic!("the driver is told") };
    peer.target.handle_task_management(peer.now, request.id, TaskManagementOutcome::LunDoesNotExist);
    assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::LunDoesNotExist, "it waits for nothing");
    peer.complete(command.task, good(&pattern(512)));
    assert!(matches!(peer.receive_bhs()[..], [Bhs::DataIn(_)]));
}

/// RFC 7143 11.6.1: what was answered is not said to be aborted.
#[test]
fn an_abort_of_what_was_answered_meanwhile_says_that_there_is_no_such_task() {
    for is_answered in [true, false] {
        let mut peer = Peer::logged_in(parameters(), &[]);
        peer.read(0x10, 512);
        let command = peer.started();
        peer.task_management(0x40, TaskManagementFunction::AbortTask, Some((0x10, Serial32(100))));
        let Some(Event::TaskManagement(request)) = peer.events.pop() else { panic!("the driver is told") };
        if is_answered {
            peer.complete(command.task, good(&pattern(512)));
            assert!(matches!(peer.receive_bhs()[..], [Bhs::DataIn(_)]));
        }
        peer.target.session().handle_carrying_out(peer.now, request.id);
        peer.complete(command.task, good(&pattern(512)));
        peer.target.handle_task_management(peer.now, request.id, TaskManagementOutcome::FunctionComplete);
        let expected = match is_answered {
            true => TaskManagementOutcome::TaskDoesNotExist,
            false => TaskManagementOutcome::FunctionComplete,
        };
        let responses = peer.receive_bhs();
        assert_eq!((responses.len(), outcome_of(&responses[0])), (1, expected));
    }
}

/// A command for which the driver has no room yet does not keep the function waiting that may abort it.
#[test]
fn a_command_that_is_taken_back_begins_again_only_if_the_function_is_refused() {
    for outcome in [TaskManagementOutcome::LunDoesNotExist, TaskManagementOutcome::FunctionComplete] {
        let mut peer = Peer::logged_in(parameters(), &[]);
        let write = peer.command(0x10, cdb_write(512), Direction::Write, 512);
        peer.send(&write, pattern(512));
        let command = peer.started();
        let task = command.task;
        assert!(!peer.target.session().is_suspended(task));
        peer.task_management(0x40, TaskManagementFunction::AbortTask, Some((0x10, Serial32(100))));
        let Some(Event::TaskManagement(request)) = peer.events.pop() else { panic!("the driver is told") };
        assert!(peer.target.session().is_suspended(task));
        peer.target.session().take_back(command);
        peer.target.handle_task_management(peer.now, request.id, outcome);
        peer.collect_events();
        assert_eq!(outcome_of(&peer.receive_bhs()[0]), outcome);
        if outcome == TaskManagementOutcome::LunDoesNotExist {
            let again = peer.started();
            assert_eq!((again.task, &again.data_out[..]), (task, &pattern(512)[..]));
            peer.complete(task, Outcome::default());
            assert!(matches!(peer.receive_bhs()[..], [Bhs::ScsiResponse(_)]));
        }
        assert!(peer.events.is_empty() && peer.target.task_count() == 0);
    }
}

/// A device that hangs holds the response up, and not the buffers and places of tasks that never get to it.
#[test]
fn what_collects_data_ends_when_a_function_is_carried_out_and_not_when_that_is_done() {
    let mut peer = Peer::logged_in(parameters(), &[("ImmediateData", "No")]);
    peer.read(0x10, 512);
    let hanging = peer.started();
    let write = peer.command(0x11, cdb_write(512), Direction::Write, 512);
    peer.send(&write, Vec::new());
    assert_eq!(r2ts(&peer.receive_bhs()).len(), 1);
    peer.task_management(0x40, TaskManagementFunction::LogicalUnitReset, None);
    peer.sleep(crate::limits::ABORT_DATA_TIMEOUT);
    let Some(Event::TaskManagement(request)) = peer.events.pop() else { panic!("the driver is told") };
    let now = peer.now;
    peer.target.session().handle_carrying_out(now, request.id);
    assert_eq!(peer.target.task_count(), 1);
    peer.complete(hanging.task, good(&pattern(512)));
    assert!(peer.receive().is_empty(), "it is aborted");
    peer.target.handle_task_management(peer.now, request.id, TaskManagementOutcome::FunctionComplete);
    assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionComplete);
}

/// One that is refused does not free what another still covers.
#[test]
fn a_task_that_two_functions_cover_waits_for_both() {
    let mut peer = Peer::logged_in(parameters(), &[("ImmediateData", "No")]);
    let write = peer.command(0x10, cdb_write(512), Direction::Write, 512);
    peer.send(&write, Vec::new());
    let (transfer, ..) = r2ts(&peer.receive_bhs())[0];
    for tag in [0x40, 0x41] {
        peer.task_management(tag, TaskManagementFunction::AbortTaskSet, None);
    }
    peer.data_out(0x10, Some(transfer), 0, 0, true, &pattern(512));
    let requests: Vec<_> = std::mem::take(&mut peer.events)
        .into_iter()
        .map(|event| match event {
            Event::TaskManagement(request) => request.id,
            other => panic!("{other:?}"),
        })
        .collect();
    peer.target.handle_task_management(peer.now, requests[0], TaskManagementOutcome::LunDoesNotExist);
    peer.collect_events();
    assert!(peer.events.is_empty());
    peer.target.handle_task_management(peer.now, requests[1], TaskManagementOutcome::FunctionComplete);
    peer.collect_events();
    assert!(peer.events.is_empty(), "it is aborted");
    assert_eq!((peer.receive_bhs().len(), peer.target.task_count()), (2, 0));
}

/// A response brings news; what the initiator sent before it had them knows nothing of them, however late it comes.
#[test]
fn a_command_knows_of_the_news_that_its_initiator_had_when_it_sent_it() {
    const NEWS: u64 = 7;
    let mut peer = Peer::logged_in(parameters(), &[("ImmediateData", "No")]);
    let write = peer.command(0x10, cdb_write(512), Direction::Write, 512);
    peer.send(&write, Vec::new());
    let (tag, ..) = r2ts(&peer.receive_bhs())[0];
    peer.read(0x11, 512);
    let read = peer.started();
    assert!(!peer.target.session().knows(read.task, NEWS), "nobody has told it");
    peer.complete(read.task, Outcome { news: vec![NEWS], ..Outcome::default() });
    let Bhs::ScsiResponse(told) = peer.receive_bhs()[0] else { panic!("a response") };
    // One that was sent before the response came, one that is lost on the way, and the first behind the news.
    peer.read(0x12, 512);
    let before = peer.started();
    let lost = peer.command(0x13, CDB_READ, Direction::Read, 512);
    let mut behind = peer.command(0x14, CDB_READ, Direction::Read, 512);
    behind.exp_stat_sn = told.stat_sn.next();
    peer.send(&behind, Vec::new());
    assert!(peer.events.is_empty(), "its turn has not come");
    peer.send(&ScsiCommand { exp_stat_sn: told.stat_sn.next(), ..lost }, Vec::new());
    let mut known = Vec::new();
    for event in std::mem::take(&mut peer.events) {
        let Event::Command(command) = event else { panic!("{event:?}") };
        known.push((command.task.initiator_task_tag.get(), peer.target.session().knows(command.task, NEWS)));
        assert!(!peer.target.session().forget_news(NEWS), "others do not know of them yet");
        peer.complete(command.task, good(&pattern(512)));
    }
    assert_eq!(known, [(0x13, false), (0x14, true)], "what is sent again with an old number is old");
    assert!(!peer.target.session().knows(before.task, NEWS));
    peer.complete(before.task, good(&pattern(512)));
    peer.data_out(0x10, Some(tag), 0, 0, true, &pattern(512));
    let write = peer.started();
    assert!(!peer.target.session().knows(write.task, NEWS), "its data came late");
    assert!(!peer.target.session().forget_news(NEWS));
    peer.complete(write.task, Outcome::default());
    assert!(peer.target.session().forget_news(NEWS), "all that come know of them");
}
