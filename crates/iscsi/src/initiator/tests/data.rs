//! The data of commands: what goes unasked, what an R2T asks for, and where Data-In lands.

use super::*;

/// RFC 7143 13.11, the table of unsolicited data.
#[test]
fn data_goes_unasked_as_far_as_was_negotiated() {
    for (initial_r2t, immediate_data, immediate, unsolicited) in [
        (false, false, 0, vec![1024; 4]),
        (false, true, 1024, vec![1024; 3]),
        (true, false, 0, vec![]),
        (true, true, 1024, vec![]),
    ] {
        let mut pair = Pair::logged_in(Offer { initial_r2t, immediate_data, ..modest() });
        pair.submit(1, write_of(5000));
        let sent = pair.sent();
        let Ok(Bhs::ScsiCommand(command)) = sent[0].header.bhs else { panic!("a command goes first") };
        assert_eq!((command.writes, command.reads, command.expected_data_transfer_length), (true, false, 5000));
        assert_eq!(command.is_final, unsolicited.is_empty());
        assert_eq!(sent[0].data.bytes(), &ramp(5000)[..immediate]);
        assert_eq!(sent[1..].iter().map(|pdu| pdu.data.length).collect::<Vec<_>>(), unsolicited);
        let mut at = immediate;
        for (index, pdu) in sent[1..].iter().enumerate() {
            let Ok(Bhs::DataOut(data_out)) = pdu.header.bhs else { panic!("data follows") };
            assert_eq!((data_out.buffer_offset as usize, data_out.data_sn.0 as usize), (at, index));
            assert_eq!(data_out.is_final, index + 1 == unsolicited.len());
            assert_eq!(data_out.target_transfer_tag, None);
            assert_eq!(pdu.data.bytes(), &ramp(5000)[at..at + pdu.data.length]);
            at += pdu.data.length;
        }
    }
}

#[test]
fn an_r2t_is_answered_with_what_it_asks_for() {
    let mut pair = Pair::logged_in(Offer { initial_r2t: true, immediate_data: false, ..modest() });
    // The command's data is a part of its buffer.
    let (command, _) = pair.issue(Data::Write(Buffer::copy_of(&ramp(9000)), 1000..7000));
    for (offset, length) in [(2000, 2500), (0, 2000)] {
        let r2t = pair.r2t(command.initiator_task_tag, offset, length);
        pair.send(&r2t, Vec::new()).unwrap();
    }
    let sent = pair.sent();
    let lengths: Vec<usize> = sent.iter().map(|pdu| pdu.data.length).collect();
    assert_eq!(lengths, [1024, 1024, 452, 1024, 976]);
    let Ok(Bhs::DataOut(last)) = sent[2].header.bhs else { panic!("data") };
    assert_eq!((last.is_final, last.data_sn, last.buffer_offset), (true, Serial32(2), 4048));
    assert_eq!(last.target_transfer_tag, TargetTransferTag::new(77));
    assert_eq!(sent[0].data.bytes(), &ramp(9000)[3000..4024]);
    // An R2T for a task that has ended is ignored; one beyond the data ends the connection.
    let stale = pair.r2t(InitiatorTaskTag::new(command.initiator_task_tag.get() ^ 0x10_0000).unwrap(), 0, 512);
    pair.send(&stale, Vec::new()).unwrap();
    assert!(pair.sent().is_empty());
    let greedy = pair.r2t(command.initiator_task_tag, 5000, 1001);
    assert!(matches!(pair.send(&greedy, Vec::new()), Err(ConnectionError::Protocol(_))));
}

#[test]
fn data_in_lands_at_its_offset() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(Data::Read(Buffer::copy_of(&[0xa5; 6000]), 500..5500));
    let tag = command.initiator_task_tag;
    for (offset, length) in [(3000usize, 2000usize), (0, 1000), (1000, 2000)] {
        let header = pair.data_in(tag, offset as u32);
        pair.send(&header, ramp(5000)[offset..offset + length].to_vec()).unwrap();
    }
    let response = pair.response(tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    let completed = pair.completed();
    assert!(matches!(completed.outcome, Outcome::Status { status: 0, received_bytes: 5000, .. }));
    assert_eq!(completed.buffer[500..5500], ramp(5000)[..]);
    assert!(completed.buffer[..500].iter().chain(&completed.buffer[5500..]).all(|&byte| byte == 0xa5));
}

#[test]
fn status_may_ride_on_the_last_data() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(read_of(512));
    let status = DataInStatus { status: 0, stat_sn: pair.next_stat_sn(), residual: Residual::Underflow(412) };
    let header = DataIn { status: Some(status), ..pair.data_in(command.initiator_task_tag, 0) };
    pair.send(&header, ramp(100)).unwrap();
    let Outcome::Status { residual, received_bytes, .. } = pair.completed().outcome else { panic!("a status") };
    assert_eq!((residual, received_bytes), (Residual::Underflow(412), 100));
}

/// One half twice is not the whole (found by fuzzing: `iscsi_initiator`).
#[test]
fn data_that_comes_twice_ends_the_connection() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(read_of(512));
    let header = pair.data_in(command.initiator_task_tag, 0);
    pair.send(&header, ramp(256)).unwrap();
    let result = pair.send(&header, ramp(256));
    assert_eq!(result, Err(ConnectionError::Protocol("Data-In that came before")));
}

#[test]
fn data_outside_of_what_was_asked_for_ends_the_connection() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(read_of(512));
    let header = pair.data_in(command.initiator_task_tag, 1);
    assert!(matches!(pair.send(&header, ramp(512)), Err(ConnectionError::Protocol(_))));
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(write_of(512));
    let header = pair.data_in(command.initiator_task_tag, 0);
    assert!(matches!(pair.send(&header, ramp(4)), Err(ConnectionError::Protocol(_))));
}

/// The target ends a write before all of its data is sent: the buffer comes back when the last byte has left.
#[test]
fn a_write_that_ends_early_keeps_its_buffer_until_it_is_sent() {
    let mut pair = Pair::logged_in(modest());
    pair.submit(1, write_of(4096));
    while pair.connection.takes_commands(&pair.session) && pair.connection.send_next(&mut pair.session) {}
    let tag = pair.session.tags().next().unwrap().0;
    let response = pair.response(tag, 2);
    pair.send(&response, Vec::new()).unwrap();
    assert!(pair.session.poll_completed().is_none());
    assert_eq!(pair.flush().len(), 4);
    let completed = pair.completed();
    assert!(matches!(completed.outcome, Outcome::Status { status: 2, .. }));
    assert_eq!(completed.buffer[..], ramp(4096)[..]);
    assert_eq!(pair.session.outstanding_count(), 0);
}
