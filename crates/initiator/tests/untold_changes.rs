//! A target that does not tell, in a new session, what others changed while there was none.

#[path = "../../cache/tests/common/lines.rs"]
mod lines;
mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use base::clock::Clock;
use block::device::DeviceExt;
use block::{Buffer, ByteRange, ErrorKind};
use initiator::{ChangeGuard, InitiatorOptions, RemoteLun, ReportedChanges, State};
use lines::Lines;
use scsi::change_mark::{Changes, Mark, Run, Support, action_in, action_out, emit_marks};
use scsi::{Cdb, Sense, SenseKey, vpd};
use support::World;
use support::scripted::{Disk, Reaction, Reply, Scripted};

const MIB: u64 = 1 << 20;
const ID: [u8; 16] = [9; 16];
const TIME: Duration = Duration::from_secs(12);
const WHOLE: ByteRange = ByteRange { offset: 0, length: MIB };
const MARK: Mark = Mark { id: ID, token: 5, sequence: 7, slot: 0, is_held_here: false, is_held_elsewhere: true };

type IsAsked = fn(&Cdb) -> bool;

/// The questions about marks in a new session.
const QUESTIONS: [IsAsked; 3] = [
    |cdb| matches!(cdb, Cdb::ChangeMarkIn { service_action: action_in::REPORT_MARKS, .. }),
    |cdb| matches!(cdb, Cdb::ChangeMarkOut { service_action: action_out::TAKE, .. }),
    |cdb| matches!(cdb, Cdb::ChangeMarkIn { service_action: action_in::REPORT_CHANGES, .. }),
];

/// A target that has `mark`, and answers with `reply` to what `is_asked`, if there is one.
fn marking(mark: Mark, is_asked: IsAsked, reply: Option<Reply>) -> impl FnMut(&mut Disk, &Cdb) -> Reaction + Send {
    let support = Support { marks_max: 16, range_bytes: MIB as u32 };
    move |_, cdb| match *cdb {
        _ if reply.is_some() && is_asked(cdb) => Reaction::Answer(reply.clone()),
        Cdb::Inquiry { is_vpd: true, page: vpd::page::SUPPORTED_PAGES, .. } => {
            Reaction::Answer(Reply::data(vpd::emit_supported_pages(&[0, vpd::page::CHANGE_MARKS])))
        }
        Cdb::Inquiry { is_vpd: true, page: vpd::page::CHANGE_MARKS, .. } => {
            Reaction::Answer(Reply::data(support.emit()))
        }
        Cdb::ChangeMarkIn { service_action: action_in::REPORT_MARKS, .. } => {
            Reaction::Answer(Reply::data(emit_marks(&[mark])))
        }
        Cdb::ChangeMarkIn { .. } => {
            let Mark { id, token, sequence, .. } = mark;
            let none = Changes { id, token, sequence, range_count: 1, has_more: false, runs: Vec::new() };
            Reaction::Answer(Reply::data(none.emit()))
        }
        Cdb::ChangeMarkOut { .. } => Reaction::Answer(Reply::data(Vec::new())),
        _ => Reaction::Proper,
    }
}

/// A LUN whose mark is held.
struct Marked {
    world: World,
    target: Scripted,
    lun: Arc<RemoteLun>,
    mark: Mark,
    heard: Arc<Mutex<Vec<ReportedChanges>>>,
}

impl Marked {
    fn new(mark: Mark) -> Self {
        Self::with_reconnect_wait(mark, None)
    }

    fn with_reconnect_wait(mark: Mark, wait: Option<Duration>) -> Self {
        let mut world = World::new(7);
        let target = Scripted::new(&world);
        target.tell(marking(mark, QUESTIONS[0], None));
        let mut options = InitiatorOptions { replacement_timeout: TIME, ..world.options() };
        if let Some(wait) = wait {
            (options.reconnect_wait_min, options.reconnect_wait_max) = (wait, wait);
        }
        let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
        world.executor.spawn(driver);
        let taking = Arc::clone(&lun);
        world.run(async move { taking.take_mark(ID, 5).await }).unwrap();
        let heard = Arc::<Mutex<Vec<ReportedChanges>>>::default();
        let hearing = Arc::clone(&heard);
        lun.set_guard(ChangeGuard::new(Arc::new(OnceLock::new()), move |changes| {
            hearing.lock().unwrap().push(changes);
            Box::pin(async { Ok(Vec::new()) })
        }));
        Self { world, target, lun, mark, heard }
    }

    /// From now on `reply` is the answer to what `is_asked`.
    fn answer(&self, is_asked: IsAsked, reply: Option<Reply>) {
        self.target.tell(marking(self.mark, is_asked, reply));
    }

    /// The session is lost. The next one gets this answer.
    fn lose_session(&mut self, is_asked: IsAsked, reply: Option<Reply>) {
        self.target.tell(|_, _| Reaction::Leave);
        let lun = Arc::clone(&self.lun);
        self.world.executor.spawn(async move { drop(lun.read(0, Buffer::zeroed(512)).await) });
        while self.lun.status().state == State::Online {
            self.world.pass(Duration::from_millis(1));
        }
        self.answer(is_asked, reply);
    }

    fn read(&mut self) -> Result<(), ErrorKind> {
        let read = self.lun.read(4096, Buffer::zeroed(512));
        self.world.run(read).map(drop).map_err(|error| error.kind())
    }

    fn heard(&self) -> Vec<ReportedChanges> {
        self.heard.lock().unwrap().clone()
    }
}

/// Commands after which a target stops to lie, so that a test ends.
const LIES_MAX: u64 = 20_000;

/// Commands to a target that lies, in some minutes, and lines of the log about it.
const COMMANDS_MAX: u64 = 10_000;
const LINES_MAX: usize = 100;
/// That a session is lost and back, and that others changed the LUN, ten times each.
const LINES_OF_A_MINUTE: u64 = 30;

/// Every second question about marks is answered with a report, and so no round of questions settles anything: there
/// are waits, the session counts as one that failed, and requests have their time.
#[test]
fn a_target_that_reports_something_whenever_it_is_asked_is_asked_seldom_and_requests_have_their_time() {
    for news in [Sense::POWER_ON_OR_RESET, Sense::MODE_PARAMETERS_CHANGED, Sense::REPORTED_LUNS_CHANGED] {
        let mut at = Marked::new(MARK);
        let lines = Lines::default();
        let _guard = lines.listen();
        let count = Arc::new(AtomicU64::new(0));
        let (counted, mut questions) = (Arc::clone(&count), 0);
        let mut proper = marking(MARK, QUESTIONS[0], None);
        at.target.tell(move |disk, cdb| {
            let is_lying = counted.fetch_add(1, Ordering::Relaxed) < LIES_MAX;
            questions += u64::from(QUESTIONS[0](cdb));
            let is_told = matches!(cdb, Cdb::Read(_)) || (QUESTIONS[0](cdb) && questions % 2 == 1);
            match is_lying && is_told {
                true => Reaction::Answer(Reply::sense(news)),
                false => proper(disk, cdb),
            }
        });
        let began = at.world.clock.now();
        assert_eq!(at.read(), Err(ErrorKind::TimedOut), "{news}");
        let took = at.world.clock.now().since(began);
        assert!(took <= 2 * TIME, "{news}: {took:?}");
        at.world.pass(10 * TIME);
        assert!(at.lun.status().session_count > 1, "{news}");
        let sent = count.load(Ordering::Relaxed);
        assert!(sent <= COMMANDS_MAX, "{news}: {sent} commands");
        assert!(lines.count() <= LINES_MAX, "{news}: {} lines", lines.count());
        at.answer(QUESTIONS[0], None);
        at.world.pass(TIME);
        assert_eq!(at.read(), Ok(()), "{news}");
    }
}

/// The target has recorded more each time that it is asked, and the session is lost again and again.
#[test]
fn changes_and_sessions_that_come_and_go_are_a_few_lines() {
    let mut at = Marked::with_reconnect_wait(MARK, Some(Duration::from_millis(1)));
    let lines = Lines::default();
    let _guard = lines.listen();
    let Mark { id, token, sequence, .. } = MARK;
    let runs = vec![Run { first: 0, count: 1 }];
    let changed = Changes { id, token, sequence, range_count: 1, has_more: false, runs };
    let began = at.world.clock.now();
    for _ in 0..200 {
        at.lose_session(QUESTIONS[2], Reply::data(changed.emit()));
        assert_eq!(at.read(), Ok(()));
    }
    assert!(at.heard().len() >= 200);
    let minutes = at.world.clock.now().since(began).as_secs() / 60 + 2;
    assert!(lines.count() as u64 <= LINES_OF_A_MINUTE * minutes, "{} lines in {minutes} minutes", lines.count());
}

/// Answers that say nothing, whatever becomes of them.
fn nothing() -> Vec<Option<Reply>> {
    vec![
        Reply::sense(Sense::LOGICAL_UNIT_NOT_SUPPORTED),
        Reply::sense(Sense::new(SenseKey::NotReady, 0x04, 0x02)),
        Reply::sense(Sense::new(SenseKey::NotReady, 0x04, 0x0b)),
        Reply::sense(Sense::new(SenseKey::AbortedCommand, 0, 0)),
    ]
}

/// Answers of a target that cannot tell at present.
fn failures() -> Vec<Option<Reply>> {
    vec![Reply::sense(Sense::UNRECOVERED_READ_ERROR), Reply::sense(Sense::new(SenseKey::HardwareError, 0x44, 0))]
}

/// A LUN that is not there for a moment has not changed: requests wait, and nothing counts as changed by others.
#[test]
fn an_answer_that_says_nothing_of_changes_is_none_and_the_question_is_asked_again() {
    for is_asked in QUESTIONS {
        for reply in nothing().into_iter().chain(failures()) {
            let mut at = Marked::new(MARK);
            at.lose_session(is_asked, reply.clone());
            at.world.pass(TIME / 4);
            assert_eq!((at.heard(), at.lun.status().state), (Vec::new(), State::Reconnecting), "{reply:?}");
            let why = at.lun.status().last_error.unwrap_or_default();
            let questions = ["REPORT MARKS", "TAKE of a change mark", "REPORT CHANGES"];
            assert!(questions.iter().any(|question| why.contains(question)), "{why}");
            at.answer(is_asked, None);
            assert_eq!((at.read(), at.heard()), (Ok(()), Vec::new()), "{reply:?}");
        }
    }
}

/// Requests do not wait for ever, and what comes later is heeded.
#[test]
fn requests_at_a_target_that_never_says_anything_of_changes_have_their_time() {
    for is_asked in QUESTIONS {
        for reply in nothing() {
            let mut at = Marked::new(MARK);
            at.lose_session(is_asked, reply.clone());
            let began = at.world.clock.now();
            assert_eq!((at.read(), at.heard()), (Err(ErrorKind::TimedOut), Vec::new()), "{reply:?}");
            let took = at.world.clock.now().since(began);
            assert!(took <= TIME, "{reply:?}: {took:?}");
            at.world.pass(3 * TIME);
            assert_eq!(at.heard(), [], "{reply:?}");
            at.answer(is_asked, None);
            at.world.pass(TIME);
            assert_eq!((at.read(), at.heard()), (Ok(()), Vec::new()), "{reply:?}");
        }
    }
}

/// The target has the mark, perhaps, and does not say what is recorded in it: no other path vouches for that. What
/// may be better soon is waited for, and not longer than requests can wait.
#[test]
fn changes_that_are_not_reported_count_as_recorded_everywhere() {
    let refused = || vec![Reply::sense(Sense::INVALID_OPERATION_CODE)];
    for is_asked in QUESTIONS {
        for (reply, is_waited_for) in
            refused().into_iter().map(|reply| (reply, false)).chain(failures().into_iter().map(|reply| (reply, true)))
        {
            let mut at = Marked::new(MARK);
            at.lose_session(is_asked, reply.clone());
            let began = at.world.clock.now();
            assert_eq!(at.read(), Ok(()), "{reply:?}");
            let took = at.world.clock.now().since(began);
            assert_eq!(took >= TIME / 2, is_waited_for, "{reply:?}: {took:?}");
            let heard = at.heard();
            let [ReportedChanges { recorded, unknown: None, unreported: Some(why) }] = &heard[..] else {
                panic!("{reply:?}: {heard:?}");
            };
            assert_eq!(recorded[..], [WHOLE], "{reply:?}");
            assert!(why.contains("failed: "), "{why}");
            // Nothing better is to be expected of another session.
            at.lose_session(is_asked, reply.clone());
            at.world.pass(Duration::from_secs(2));
            assert_eq!(at.read(), Ok(()), "{reply:?}");
            assert_eq!(at.heard().len(), 2, "{reply:?}");
        }
    }
    // It knows no such mark, or has one that another path has made anew (sequence 0), and needs not be asked what it
    // has recorded.
    for mark in [Mark { token: 6, ..MARK }, Mark { sequence: 0, ..MARK }] {
        let mut at = Marked::new(mark);
        at.lose_session(QUESTIONS[2], Reply::sense(Sense::UNRECOVERED_READ_ERROR));
        assert_eq!(at.read(), Ok(()));
        assert_eq!(
            at.heard(),
            [ReportedChanges { recorded: Vec::new(), unknown: Some(WHOLE), unreported: None }],
            "{mark:?}"
        );
    }
}

/// Data that make no sense are as good as none.
#[test]
fn changes_that_make_no_sense_are_asked_for_again_and_count_as_recorded_everywhere_at_last() {
    for is_asked in [QUESTIONS[0], QUESTIONS[2]] {
        for data in [Vec::new(), vec![0xff; 48]] {
            let mut at = Marked::new(MARK);
            at.lose_session(is_asked, Reply::data(data.clone()));
            at.world.pass(TIME / 4);
            assert_eq!((at.heard(), at.lun.status().state), (Vec::new(), State::Reconnecting), "{data:?}");
            assert_eq!(at.read(), Ok(()), "{data:?}");
            let unreported = at.heard().pop().and_then(|heard| heard.unreported).unwrap_or_default();
            assert!(unreported.contains("make no sense"), "{unreported}");
        }
    }
}

/// A failure after the target was well is a new one.
#[test]
fn a_mark_that_was_given_meanwhile_is_waited_for_anew() {
    let mut at = Marked::new(MARK);
    for _ in 0..3 {
        at.lose_session(QUESTIONS[2], Reply::sense(Sense::UNRECOVERED_READ_ERROR));
        at.world.pass(TIME / 4);
        assert_eq!((at.heard(), at.lun.status().state), (Vec::new(), State::Reconnecting));
        at.answer(QUESTIONS[2], None);
        assert_eq!((at.read(), at.heard()), (Ok(()), Vec::new()));
        at.world.pass(TIME);
    }
}
