//! Commands that do not end in time: abort, reset, and the end of the connection.

use super::*;

#[test]
fn a_command_that_does_not_end_is_aborted() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(read_of(512));
    pair.pass(Duration::from_secs(30)).unwrap();
    let functions = pair.functions_sent();
    assert_eq!(functions.len(), 1);
    assert_eq!(functions[0].function, Ok(TaskManagementFunction::AbortTask));
    assert_eq!(functions[0].referenced_task_tag, Some(command.initiator_task_tag));
    assert_eq!((functions[0].ref_cmd_sn, functions[0].lun, functions[0].is_immediate), (command.cmd_sn, LUN, true));
    pair.answer_function(&functions[0], TaskManagementOutcome::FunctionComplete).unwrap();
    assert_eq!(pair.completed().outcome, Outcome::Aborted);
    // Data that still comes for it is dropped.
    let header = pair.data_in(command.initiator_task_tag, 0);
    pair.send(&header, ramp(512)).unwrap();
    assert!(pair.session.poll_completed().is_none());
}

#[test]
fn an_abort_that_does_not_help_is_followed_by_a_reset_and_then_by_the_end() {
    let mut pair = Pair::logged_in(Offer::target());
    pair.issue(read_of(512));
    pair.submit(2, Data::None);
    pair.sent();
    pair.pass(Duration::from_secs(30)).unwrap();
    let aborts = pair.functions_sent();
    assert_eq!(aborts.len(), 2);
    pair.answer_function(&aborts[0], TaskManagementOutcome::FunctionRejected).unwrap();
    let resets = pair.functions_sent();
    assert_eq!(resets[0].function, Ok(TaskManagementFunction::LogicalUnitReset));
    pair.answer_function(&resets[0], TaskManagementOutcome::FunctionComplete).unwrap();
    assert!(matches!(pair.connection.poll_event(), Some(Event::LogicalUnitReset { lun: LUN })));
    assert_eq!(pair.completed().outcome, Outcome::Aborted);
    assert_eq!(pair.completed().outcome, Outcome::Aborted);
    // No answer at all, three seconds for each step.
    pair.submit(3, Data::None);
    pair.sent();
    pair.pass(Duration::from_secs(30)).unwrap();
    assert_eq!(pair.functions_sent().len(), 1);
    pair.pass(Duration::from_secs(3)).unwrap();
    assert_eq!(pair.functions_sent().len(), 1);
    assert_eq!(pair.pass(Duration::from_secs(3)), Err(ConnectionError::Unresponsive));
}

impl Pair {
    /// Lets the command that was sent last become overdue, and has the target refuse its abort. Returns the reset.
    fn reset(&mut self) -> TaskManagementRequest {
        self.pass(Duration::from_secs(30)).unwrap();
        let aborts = self.functions_sent();
        self.answer_function(&aborts[0], TaskManagementOutcome::FunctionRejected).unwrap();
        let resets = self.functions_sent();
        assert_eq!(resets[0].function, Ok(TaskManagementFunction::LogicalUnitReset));
        resets[0]
    }

    /// The commands that our end sends.
    fn commands_sent(&mut self) -> Vec<ScsiCommand> {
        let sent = self.sent();
        let command = |pdu: &ReceivedPdu| match pdu.header.bhs {
            Ok(Bhs::ScsiCommand(command)) => Some(command),
            _ => None,
        };
        sent.iter().filter_map(command).collect()
    }

    fn command(&self, token: u64, lun: u64, data: Data) -> Command {
        let (cdb, attribute, timeout) = ([token as u8; 16], TaskAttribute::Simple, Duration::from_secs(30));
        Command { token, lun, cdb, attribute, data, timeout }
    }
}

/// RFC 7143 11.5.1: a command that is sent behind a reset outlives it, and may be carried out whenever the target
/// likes. So none is sent, and what comes for other units passes.
#[test]
fn a_command_that_comes_while_its_unit_is_reset_is_sent_when_that_is_over() {
    let mut pair = Pair::logged_in(Offer::target());
    pair.issue(Data::None);
    let reset = pair.reset();
    pair.submit(2, write_of(512));
    pair.session.submit(pair.now, pair.command(3, 0, Data::None));
    let sent = pair.commands_sent();
    assert_eq!(sent.iter().map(|command| (command.lun, command.cdb[0])).collect::<Vec<_>>(), [(0, 3)]);
    assert_eq!(reset.cmd_sn, sent[0].cmd_sn);
    assert!(!pair.session.has_to_send(), "the driver is not kept busy");
    pair.answer_function(&reset, TaskManagementOutcome::FunctionComplete).unwrap();
    assert_eq!((pair.completed().token, pair.session.poll_completed().is_none()), (1, true));
    assert_eq!(pair.commands_sent().iter().map(|command| command.cdb[0]).collect::<Vec<_>>(), [2]);
    assert_eq!(pair.session.outstanding_count(), 2);
}

/// Immediate commands pass, and have the number of the reset: it does not cover them. One that gets no answer is ended
/// by its own abort.
#[test]
fn a_reset_ends_commands_with_lower_numbers_and_no_others() {
    let mut pair = Pair::logged_in(Offer::target());
    pair.issue(Data::None);
    let reset = pair.reset();
    pair.session.submit_immediate(pair.now, pair.command(2, LUN, Data::None));
    let [immediate] = pair.commands_sent()[..] else { panic!("one command") };
    assert_eq!((immediate.is_immediate, immediate.cmd_sn), (true, reset.cmd_sn));
    pair.answer_function(&reset, TaskManagementOutcome::FunctionComplete).unwrap();
    assert_eq!((pair.completed().token, pair.session.poll_completed().is_none()), (1, true));
    pair.pass(Duration::from_secs(30)).unwrap();
    let aborts = pair.functions_sent();
    assert_eq!(aborts[0].referenced_task_tag, Some(immediate.initiator_task_tag));
    pair.answer_function(&aborts[0], TaskManagementOutcome::TaskDoesNotExist).unwrap();
    assert_eq!(pair.completed().token, 2);
}

/// RFC 7143 11.5.5: an ordinary command may have the number that an immediate one carried.
#[test]
fn an_abort_of_an_immediate_command_refers_to_its_own_number() {
    let mut pair = Pair::logged_in(Offer::target());
    pair.session.submit_immediate(pair.now, pair.command(2, LUN, Data::None));
    let [immediate] = pair.commands_sent()[..] else { panic!("one command") };
    let mut later = pair.command(3, LUN, Data::None);
    later.timeout = Duration::from_secs(600);
    pair.session.submit(pair.now, later);
    let [ordinary] = pair.commands_sent()[..] else { panic!("one command") };
    assert_eq!(immediate.cmd_sn, ordinary.cmd_sn);
    pair.pass(Duration::from_secs(30)).unwrap();
    let abort = pair.functions_sent()[0];
    assert_eq!(abort.referenced_task_tag, Some(immediate.initiator_task_tag));
    assert_eq!(abort.ref_cmd_sn, abort.cmd_sn, "not that of the ordinary one");
}

/// Its time was up while the reset was under way, which did not end it.
#[test]
fn a_command_that_was_overdue_during_a_reset_and_outlives_it_is_aborted_behind_it() {
    let mut pair = Pair::logged_in(Offer::target());
    pair.issue(Data::None);
    let reset = pair.reset();
    let command = Command { timeout: Duration::from_secs(1), ..pair.command(2, LUN, Data::None) };
    pair.session.submit_immediate(pair.now, command);
    let [immediate] = pair.commands_sent()[..] else { panic!("one command") };
    pair.pass(Duration::from_secs(1)).unwrap();
    assert!(pair.functions_sent().is_empty(), "the reset may end it");
    pair.answer_function(&reset, TaskManagementOutcome::FunctionComplete).unwrap();
    assert_eq!((pair.completed().token, pair.session.poll_completed().is_none()), (1, true));
    pair.pass(Duration::ZERO).unwrap();
    assert_eq!(pair.functions_sent()[0].referenced_task_tag, Some(immediate.initiator_task_tag));
}

#[test]
fn a_connection_that_is_lost_during_its_reset_holds_no_commands_back() {
    let mut pair = Pair::logged_in(Offer::target());
    pair.issue(Data::None);
    pair.reset();
    pair.submit(2, Data::None);
    assert!(pair.commands_sent().is_empty());
    let fresh = Connection::new(pair.now, &pair.session, LoginConfig { cid: 4, ..config() }, TIMING);
    std::mem::replace(&mut pair.connection, fresh).abandon(&mut pair.session);
    assert!(pair.session.has_to_send());
}
