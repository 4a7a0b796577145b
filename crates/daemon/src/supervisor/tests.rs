use std::time::Duration;

use stack::status::start::StartStatus;

use super::*;
use crate::limits::STEADY_TIME;

/// A supervisor with a clock that is turned by hand.
#[derive(Default)]
struct Bench {
    supervisor: Supervisor,
    now: Instant,
}

fn file(name: &str, text: &str) -> AttachmentFile {
    let settings = [("initiator-name", vec![text.to_owned()])].into();
    AttachmentFile {
        path: format!("/etc/{name}.toml").into(),
        name: name.into(),
        url: "iscsi://h/a/0".into(),
        settings,
        gateway: String::new(),
        start: StartStatus::default(),
    }
}

fn killed() -> End {
    End::Killed { why: "signal 9 ended its process".into() }
}

fn failed(code: u8) -> End {
    End::Failed { code, why: format!("code {code}") }
}

impl Bench {
    /// With attachments that are looked for.
    fn with(names: &[&str]) -> Self {
        let mut bench = Self::default();
        bench.files(names, &[]);
        bench
    }

    /// With one that runs as process 7.
    fn running(name: &str) -> Self {
        let mut bench = Self::with(&[name]);
        bench.actions();
        bench.supervisor.found(name, 7, Seen::Serves, bench.now);
        bench
    }

    fn files(&mut self, names: &[&str], wrong: &[&str]) -> FilesChange {
        self.take(names.iter().map(|name| file(name, "a")).collect(), wrong)
    }

    fn take(&mut self, files: Vec<AttachmentFile>, wrong: &[&str]) -> FilesChange {
        let refused = |name: &&str| FileRefused { file: format!("/etc/{name}.toml").into(), why: "line 3".into() };
        let seen = FilesSeen { files, refused: wrong.iter().map(refused).collect() };
        self.supervisor.take_files(seen, |name| name == "held", self.now)
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.supervisor.next_action()).collect()
    }

    fn ended(&mut self, name: &str, end: End) {
        self.supervisor.ended(name, end, self.now);
    }

    fn turn(&mut self, time: Duration) {
        self.now = self.now + time;
        self.supervisor.tick(self.now);
    }

    /// What the status says of it.
    fn status(&self, name: &str) -> Option<KeptStatus> {
        self.supervisor.get(name).map(|kept| kept.status(self.now, 1000))
    }

    fn state(&self, name: &str) -> &'static str {
        self.supervisor.get(name).map_or("none", |kept| kept.state().as_str())
    }

    /// The seconds until it is started again, after which it is started.
    fn wait_for_start(&mut self, name: &str) -> u64 {
        assert_eq!((self.state(name), self.actions()), ("waiting", vec![]));
        let wait = self.supervisor.deadline().unwrap().since(self.now);
        self.turn(wait - Duration::from_nanos(1));
        assert_eq!(self.actions(), []);
        self.turn(Duration::from_nanos(1));
        assert_eq!(self.actions(), [seek(name)]);
        self.supervisor.absent(name, self.now);
        assert_eq!(self.actions(), [spawn(name)]);
        self.supervisor.started(name, 8, self.now);
        wait.as_secs()
    }
}

fn seek(name: &str) -> Action {
    Action::Seek(name.to_owned())
}

fn spawn(name: &str) -> Action {
    Action::Spawn(name.to_owned(), format!("/etc/{name}.toml").into())
}

fn detach(name: &str) -> Action {
    Action::Detach(name.to_owned())
}

fn hold(name: &str) -> Action {
    Action::Hold(name.to_owned())
}

fn release(name: &str) -> Action {
    Action::Release(name.to_owned())
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn what_runs_is_adopted_and_what_does_not_is_started() {
    let mut bench = Bench::with(&["a", "b"]);
    assert_eq!(bench.actions(), [seek("a"), seek("b")]);
    assert!(!bench.supervisor.is_settled());
    bench.supervisor.found("a", 7, Seen::Serves, bench.now);
    bench.supervisor.absent("b", bench.now);
    assert_eq!(bench.actions(), [spawn("b")]);
    bench.supervisor.started("b", 8, bench.now);
    assert_eq!((bench.state("a"), bench.state("b")), ("running", "starting"));
    bench.turn(3 * SECOND);
    bench.supervisor.answers("b", bench.now);
    assert!(bench.supervisor.is_settled());
    let status = bench.status("b").unwrap();
    assert_eq!((status.state.as_str(), status.pid, status.restarts, status.since), ("running", Some(8), 0, 1000));
    assert_eq!(bench.status("a").unwrap().since, 997);
    assert_eq!(bench.supervisor.summary(), "2 running");
}

#[test]
fn what_was_killed_is_started_again_later_and_later_and_soon_after_it_ran_for_a_while() {
    let mut bench = Bench::running("a");
    bench.ended("a", killed());
    let status = bench.status("a").unwrap();
    assert_eq!((status.wait_ms, status.pid, status.why.unwrap().contains("signal 9")), (Some(1000), None, true));
    assert_eq!(bench.wait_for_start("a"), 1);
    bench.ended("a", failed(3));
    assert_eq!(bench.wait_for_start("a"), 2);
    bench.supervisor.answers("a", bench.now);
    bench.turn(STEADY_TIME - SECOND);
    bench.ended("a", killed());
    assert_eq!(bench.wait_for_start("a"), 4);
    bench.supervisor.answers("a", bench.now);
    bench.turn(STEADY_TIME);
    bench.ended("a", killed());
    assert_eq!(bench.wait_for_start("a"), 1);
    let status = bench.status("a").unwrap();
    assert_eq!((status.restarts, status.pid, status.exit_code), (4, Some(8), None));
}

#[test]
fn what_its_user_detached_is_left_until_somebody_asks_for_it() {
    let mut bench = Bench::running("a");
    bench.ended("a", End::Detached);
    assert_eq!((bench.state("a"), bench.actions()), ("detached", vec![hold("a")]));
    bench.turn(1000 * SECOND);
    bench.take(vec![file("a", "another")], &[]);
    assert_eq!((bench.state("a"), bench.actions()), ("detached", vec![]));
    bench.supervisor.start("a", false, bench.now).unwrap();
    assert_eq!(bench.actions(), [seek("a")]);
    // Twice is once.
    bench.supervisor.start("a", false, bench.now).unwrap();
    assert_eq!(bench.actions(), []);
    // It is asked for while it ends.
    bench.supervisor.found("a", 8, Seen::Serves, bench.now);
    bench.supervisor.start("a", true, bench.now).unwrap();
    bench.ended("a", End::Detached);
    assert_eq!((bench.state("a"), bench.actions()), ("starting", vec![seek("a")]));
    bench.supervisor.found("a", 9, Seen::Serves, bench.now);
    bench.ended("a", End::Detached);
    assert_eq!(bench.state("a"), "detached");
    let mut bench = Bench::with(&["held"]);
    assert_eq!(bench.actions(), [seek("held")]);
    bench.supervisor.absent("held", bench.now);
    assert_eq!((bench.state("held"), bench.actions()), ("detached", vec![]));
    bench.supervisor.start("held", false, bench.now).unwrap();
    bench.supervisor.absent("held", bench.now);
    assert_eq!(bench.actions(), [seek("held"), spawn("held")]);
    // Somebody attached it by hand.
    let mut bench = Bench::with(&["held"]);
    bench.supervisor.found("held", 7, Seen::Serves, bench.now);
    bench.ended("held", killed());
    assert_eq!(bench.state("held"), "waiting");
    assert_eq!(bench.supervisor.start("none", false, bench.now).unwrap_err().failure(), Failure::NotFound);
}

#[test]
fn what_a_person_has_to_mend_is_not_tried_again_until_its_file_changes_or_it_is_asked_for() {
    let mut bench = Bench::running("a");
    for code in [2, 4, 7, 9] {
        bench.ended("a", failed(code));
        assert_eq!((bench.state("a"), bench.actions()), ("failed", vec![]), "{code}");
        assert_eq!(bench.status("a").unwrap().exit_code, Some(code));
        bench.turn(1000 * SECOND);
        bench.files(&["a"], &[]);
        assert_eq!(bench.actions(), [], "its file is the same");
        bench.supervisor.start("a", false, bench.now).unwrap();
        assert_eq!(bench.actions(), [seek("a")]);
        bench.supervisor.absent("a", bench.now);
        bench.actions();
        bench.supervisor.started("a", 8, bench.now);
    }
    bench.ended("a", failed(9));
    bench.take(vec![file("a", "another")], &[]);
    assert_eq!(bench.actions(), [seek("a")]);
}

#[test]
fn a_wait_can_be_ended_by_whom_it_waits_for_and_by_who_does_not_want_it() {
    let mut bench = Bench::running("a");
    assert_eq!(bench.supervisor.hold("a", bench.now).unwrap_err().failure(), Failure::InUse);
    bench.ended("a", failed(3));
    bench.supervisor.start("a", false, bench.now).unwrap();
    assert_eq!((bench.actions(), bench.supervisor.deadline()), (vec![seek("a")], None));
    bench.ended("a", failed(3));
    bench.supervisor.hold("a", bench.now).unwrap();
    assert_eq!((bench.state("a"), bench.actions(), bench.supervisor.deadline()), ("detached", vec![hold("a")], None));
}

#[test]
fn a_file_that_is_gone_detaches_its_attachment_and_no_other() {
    let mut bench = Bench::with(&["a", "b", "c", "d"]);
    bench.actions();
    bench.supervisor.found("a", 7, Seen::Serves, bench.now);
    bench.supervisor.found("b", 8, Seen::Serves, bench.now);
    bench.ended("c", failed(3));
    let change = bench.files(&["b"], &[]);
    assert_eq!(change, FilesChange { removed: ["a", "c", "d"].map(str::to_owned).to_vec(), ..FilesChange::default() });
    assert_eq!(bench.actions(), [release("c"), detach("a")]);
    assert_eq!((bench.state("a"), bench.state("b"), bench.state("c")), ("detaching", "running", "none"));
    // It was being looked for, and is told nothing before it says what it is.
    bench.supervisor.found("d", 9, Seen::Starts, bench.now);
    assert_eq!(bench.actions(), []);
    bench.supervisor.found("d", 9, Seen::Serves, bench.now);
    assert_eq!(bench.actions(), [detach("d")]);
    bench.ended("d", End::Detached);
    // Its target is away.
    bench.supervisor.stayed("a", "it is away", bench.now);
    assert_eq!(bench.status("a").unwrap().wait_ms, Some(1000));
    assert_eq!(bench.supervisor.start("a", false, bench.now).unwrap_err().failure(), Failure::InUse);
    assert_eq!(bench.actions(), [release("d")]);
    bench.turn(SECOND);
    assert_eq!(bench.actions(), [detach("a")]);
    bench.ended("a", failed(3));
    assert_eq!((bench.state("a"), bench.actions()), ("none", vec![release("a")]));
}

#[test]
fn a_file_that_comes_back_while_its_attachment_is_detached_starts_it_again() {
    let mut bench = Bench::running("a");
    bench.files(&[], &[]);
    assert_eq!(bench.files(&["a"], &[]).added, ["a"]);
    assert_eq!((bench.state("a"), bench.actions()), ("detaching", vec![detach("a")]));
    bench.ended("a", End::Detached);
    assert_eq!((bench.state("a"), bench.actions()), ("starting", vec![seek("a")]));
    bench.supervisor.found("a", 8, Seen::Serves, bench.now);
    bench.files(&[], &[]);
    bench.supervisor.stayed("a", "it is away", bench.now);
    bench.files(&["a"], &[]);
    assert_eq!((bench.state("a"), bench.supervisor.deadline()), ("running", None));
}

#[test]
fn a_mistake_in_the_file_of_one_that_runs_disturbs_nothing_and_keeps_it_from_another_start() {
    let mut bench = Bench::running("a");
    assert_eq!(bench.files(&[], &["a"]), FilesChange::default());
    assert_eq!((bench.state("a"), bench.actions()), ("running", vec![]));
    bench.ended("a", killed());
    let status = bench.status("a").unwrap();
    assert_eq!((status.state.as_str(), status.why.as_deref()), ("failed", Some("line 3")));
    assert_eq!(bench.supervisor.start("a", false, bench.now).unwrap_err().failure(), Failure::Usage);
    // It is mended, and says what it said before.
    bench.files(&["a"], &[]);
    assert_eq!((bench.state("a"), bench.actions()), ("starting", vec![seek("a")]));
    // Between the two.
    bench.files(&[], &["a"]);
    bench.supervisor.absent("a", bench.now);
    assert_eq!((bench.state("a"), bench.actions()), ("failed", vec![]));
    assert_eq!(bench.supervisor.summary(), "1 failed, files with mistakes: 1");
}

#[test]
fn a_file_that_says_something_else_is_told_with_what_it_said() {
    let mut bench = Bench::running("a");
    let change = bench.take(vec![file("a", "b")], &[]);
    assert_eq!(change.changed, [(file("a", "a"), file("a", "b"))]);
    bench.supervisor.note_needs_start("a", &["initiator-name"]);
    assert_eq!(bench.status("a").unwrap().needs_start, ["initiator-name"]);
    assert_eq!(bench.take(vec![file("a", "b")], &[]), FilesChange::default());
    bench.ended("a", killed());
    bench.wait_for_start("a");
    assert_eq!(bench.status("a").unwrap().needs_start, Vec::<String>::new());
}

#[test]
fn a_stop_detaches_what_has_a_process_and_starts_nothing_more() {
    let mut bench = Bench::with(&["a", "b", "c", "d", "e", "f"]);
    bench.actions();
    for name in ["a", "b", "f"] {
        bench.supervisor.found(name, 7, Seen::Serves, bench.now);
    }
    bench.supervisor.absent("c", bench.now);
    bench.ended("d", failed(3));
    bench.ended("f", End::Detached);
    bench.actions();
    bench.supervisor.stop(bench.now);
    // That f was detached by its user holds for the next daemon as well.
    assert_eq!(bench.actions(), [release("d"), detach("a"), detach("b")]);
    bench.supervisor.started("c", 9, bench.now);
    bench.supervisor.absent("e", bench.now);
    assert_eq!(bench.actions(), [detach("c"), release("e")]);
    bench.supervisor.stayed("b", "it is away", bench.now);
    assert_eq!(bench.actions(), [Action::Terminate("b".into())]);
    bench.ended("a", End::Detached);
    bench.ended("c", End::Detached);
    assert_eq!(bench.files(&["a", "g"], &[]), FilesChange::default());
    assert!(!bench.supervisor.is_over());
    bench.ended("b", failed(3));
    assert_eq!(bench.actions(), [release("a"), release("c"), release("b")]);
    assert!(bench.supervisor.is_over());
    assert_eq!(bench.supervisor.troubles(), [("b".to_owned(), failed(3))]);
}

#[test]
fn one_that_cannot_detach_for_long_is_asked_once_more_when_the_daemon_stops() {
    let mut bench = Bench::running("a");
    bench.files(&[], &[]);
    bench.supervisor.stayed("a", "it is away", bench.now);
    bench.actions();
    bench.supervisor.stop(bench.now);
    assert_eq!(bench.actions(), [detach("a")]);
}

#[test]
fn what_has_the_name_and_is_none_of_the_file_is_neither_adopted_nor_ended_and_its_end_is_waited_for() {
    let mut bench = Bench::with(&["a"]);
    bench.actions();
    bench.supervisor.taken("a", "another LUN", bench.now);
    assert!(bench.supervisor.is_settled());
    let status = bench.status("a").unwrap();
    assert_eq!((status.state.as_str(), status.why.as_deref(), status.pid), ("taken", Some("another LUN"), None));
    assert_eq!((bench.actions(), bench.supervisor.deadline()), (vec![], None));
    // Whoever asks for it is told so.
    let refused = bench.supervisor.start("a", false, bench.now).unwrap_err();
    assert!(refused.failure() == Failure::InUse && refused.to_string().starts_with("another LUN; "), "{refused}");
    assert_eq!((bench.actions(), bench.state("a")), (vec![], "taken"));
    // The file may be mended, or that one may end.
    bench.files(&["a"], &[]);
    assert_eq!(bench.actions(), []);
    bench.take(vec![file("a", "another")], &[]);
    assert_eq!(bench.actions(), [seek("a")]);
    bench.supervisor.taken("a", "another LUN", bench.now);
    bench.supervisor.freed("a", bench.now);
    bench.supervisor.freed("a", bench.now);
    assert_eq!(bench.actions(), [seek("a")]);
    bench.supervisor.absent("a", bench.now);
    assert_eq!((bench.actions().len(), bench.status("a").unwrap().why), (1, None));
    // Neither a file that is gone nor a stop ends it, also where it did not answer at first.
    for stops in [true, false] {
        let mut bench = Bench::with(&["a", "b"]);
        bench.actions();
        bench.supervisor.taken("a", "another LUN", bench.now);
        bench.supervisor.found("b", 9, Seen::Starts, bench.now);
        match stops {
            true => bench.supervisor.stop(bench.now),
            false => drop(bench.files(&[], &[])),
        }
        assert_eq!(bench.actions(), [release("a")]);
        bench.supervisor.taken("b", "another LUN", bench.now);
        assert_eq!((bench.actions(), bench.state("b")), (vec![release("b")], "none"));
        // Only who is to stop everything says what goes on.
        let troubles = bench.supervisor.troubles();
        let is_said = |(_, end): &(String, End)| {
            end.code() == Some(Failure::InUse.exit_code()) && end.why().unwrap().starts_with("another LUN; ")
        };
        let names: Vec<&str> = troubles.iter().filter(|trouble| is_said(trouble)).map(|(name, _)| &**name).collect();
        assert_eq!(names, if stops { &["a", "b"][..] } else { &[] });
    }
}

#[test]
fn what_a_daemon_before_this_one_told_to_detach_is_started_again_when_it_has_ended() {
    let mut bench = Bench::with(&["a", "b"]);
    bench.actions();
    for name in ["a", "b"] {
        bench.supervisor.found(name, 7, Seen::Ends, bench.now);
        assert_eq!((bench.state(name), bench.actions()), ("detaching", vec![]));
    }
    bench.ended("a", End::Detached);
    assert_eq!((bench.state("a"), bench.actions()), ("starting", vec![seek("a")]));
    bench.supervisor.absent("a", bench.now);
    assert_eq!(bench.actions(), [spawn("a")]);
    // It could not, and goes on: its next end is its user's.
    bench.supervisor.stayed("b", "it is away", bench.now);
    assert_eq!(bench.state("b"), "running");
    bench.ended("b", End::Detached);
    assert_eq!((bench.state("b"), bench.actions()), ("detached", vec![hold("b")]));
}

fn told(value: &str, refused: Option<&str>) -> Vec<Told> {
    vec![Told { key: "cache.mode", value: value.to_owned(), refused: refused.map(str::to_owned) }]
}

#[test]
fn a_setting_that_was_refused_is_wanted_still_and_set_again_later_and_at_each_change_of_its_state() {
    let mut bench = Bench::running("a");
    bench.supervisor.told("a", told("write-through", Some("it is away")), bench.now);
    assert_eq!(bench.status("a").unwrap().not_set, ["cache.mode=write-through: it is away"]);
    let set = || vec![Action::Set("a".to_owned())];
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(bench.supervisor.deadline().unwrap().since(bench.now), seconds * SECOND);
        bench.turn(seconds * SECOND);
        assert_eq!((bench.actions(), bench.supervisor.deadline()), (set(), None));
        bench.supervisor.told("a", told("write-through", Some("it is away")), bench.now);
    }
    assert_eq!(bench.supervisor.get("a").unwrap().unset(), [("cache.mode", "write-through".to_owned())]);
    bench.supervisor.told("a", told("write-through", None), bench.now);
    assert_eq!((bench.status("a").unwrap().not_set.len(), bench.supervisor.deadline()), (0, None));
    // It started, and answers only now.
    let mut bench = Bench::with(&["a"]);
    bench.supervisor.absent("a", bench.now);
    bench.supervisor.started("a", 8, bench.now);
    bench.supervisor.told("a", told("write-through", Some("it starts")), bench.now);
    bench.actions();
    bench.supervisor.answers("a", bench.now);
    bench.turn(Duration::ZERO);
    assert_eq!(bench.actions(), set());
    bench.supervisor.told("a", told("write-through", Some("it is away")), bench.now);
    // Its next process begins with it.
    bench.ended("a", killed());
    assert_eq!(bench.status("a").unwrap().not_set, Vec::<String>::new());
    bench.wait_for_start("a");
}

/// The file of an attachment at that portal, with a gateway at the other one.
fn stacked(name: &str, portal: &str, gateway: Option<&str>) -> AttachmentFile {
    let mut file = file(name, "a");
    file.gateway = "b".into();
    file.start.urls = vec![format!("iscsi://{portal}/b/0")];
    file.start.settings = gateway.map(|place| ("front".to_owned(), format!("iscsi:{place}"))).into_iter().collect();
    file
}

/// "a" stands on "z", which stands on "m".
fn tower() -> Vec<AttachmentFile> {
    vec![
        stacked("a", "127.0.0.1:3262", None),
        stacked("m", "127.0.0.1:3260", Some("127.0.0.1:3261")),
        stacked("z", "127.0.0.1:3261", Some("127.0.0.1:3262")),
    ]
}

#[test]
fn what_stands_on_another_is_started_after_it_and_not_held_up_by_one_that_will_not_come() {
    let mut bench = Bench::default();
    bench.take(tower(), &[]);
    bench.actions();
    for name in ["a", "z", "m"] {
        bench.supervisor.absent(name, bench.now);
    }
    assert_eq!((bench.actions(), bench.state("a"), bench.state("z")), (vec![spawn("m")], "waiting", "waiting"));
    assert!(bench.status("z").unwrap().why.unwrap().contains("it stands on \"m\""));
    bench.supervisor.started("m", 7, bench.now);
    assert_eq!(bench.actions(), []);
    bench.supervisor.answers("m", bench.now);
    assert_eq!(bench.actions(), [seek("z")]);
    bench.supervisor.absent("z", bench.now);
    bench.supervisor.started("z", 8, bench.now);
    bench.supervisor.answers("z", bench.now);
    assert_eq!(bench.actions(), [spawn("z"), seek("a")]);
    // What is below ends and comes back: the others wait for their targets, as for any.
    bench.supervisor.absent("a", bench.now);
    bench.supervisor.started("a", 9, bench.now);
    bench.supervisor.answers("a", bench.now);
    bench.actions();
    bench.ended("m", killed());
    assert_eq!((bench.state("z"), bench.state("a")), ("running", "running"));
    bench.ended("z", killed());
    bench.turn(SECOND);
    assert_eq!(bench.actions(), [seek("m"), seek("z")]);
    bench.supervisor.absent("z", bench.now);
    assert_eq!(bench.state("z"), "waiting");
    bench.supervisor.absent("m", bench.now);
    bench.actions();
    // It has failed for good: who stands on it says what it lacks.
    bench.ended("m", failed(2));
    assert_eq!(bench.actions(), [seek("z")]);
    bench.supervisor.start("m", false, bench.now).unwrap();
    bench.supervisor.absent("z", bench.now);
    assert_eq!((bench.state("z"), bench.actions()), ("waiting", vec![seek("m")]));
    // Nobody wants what is below any more.
    bench.take(vec![tower().remove(0), tower().remove(2)], &[]);
    bench.supervisor.absent("m", bench.now);
    assert_eq!(bench.actions(), [release("m"), seek("z")]);
    // Those that stand on each other have no order.
    let mut bench = Bench::default();
    let both = |name, other| stacked(name, other, Some(if name == "a" { "127.0.0.1:1" } else { "127.0.0.1:2" }));
    bench.take(vec![both("a", "127.0.0.1:2"), both("b", "127.0.0.1:1")], &[]);
    bench.actions();
    bench.supervisor.absent("a", bench.now);
    bench.supervisor.absent("b", bench.now);
    assert_eq!(bench.actions(), [spawn("a"), spawn("b")]);
}

#[test]
fn a_stop_detaches_what_stands_on_another_before_that() {
    let mut bench = Bench::default();
    bench.take(tower(), &[]);
    bench.actions();
    for name in ["m", "z", "a"] {
        bench.supervisor.found(name, 7, Seen::Serves, bench.now);
    }
    bench.supervisor.stop(bench.now);
    assert_eq!((bench.actions(), bench.state("m"), bench.state("z")), (vec![detach("a")], "running", "running"));
    bench.ended("a", End::Detached);
    assert_eq!(bench.actions(), [release("a"), detach("z")]);
    bench.supervisor.stayed("z", "it is away", bench.now);
    assert_eq!(bench.actions(), [Action::Terminate("z".into())]);
    bench.ended("z", failed(3));
    assert_eq!(bench.actions(), [release("z"), detach("m")]);
    bench.ended("m", End::Detached);
    assert_eq!(bench.actions(), [release("m")]);
    assert!(bench.supervisor.is_over());
}

#[test]
fn files_that_are_gone_together_detach_what_stands_on_another_before_that() {
    let serve = |bench: &mut Bench| {
        bench.take(tower(), &[]);
        for name in ["m", "z", "a"] {
            bench.supervisor.found(name, 7, Seen::Serves, bench.now);
        }
        bench.actions();
    };
    let mut bench = Bench::default();
    serve(&mut bench);
    assert_eq!(bench.take(vec![], &[]).removed, ["a", "m", "z"]);
    assert_eq!((bench.actions(), bench.state("m"), bench.state("z")), (vec![detach("a")], "running", "running"));
    // Its target is away: what it stands on stays for it.
    bench.supervisor.stayed("a", "it is away", bench.now);
    assert_eq!(bench.actions(), []);
    bench.turn(SECOND);
    bench.ended("a", End::Detached);
    assert_eq!(bench.actions(), [detach("a"), release("a"), detach("z")]);
    bench.ended("z", End::Detached);
    bench.ended("m", End::Detached);
    assert_eq!(bench.actions(), [release("z"), detach("m"), release("m")]);
    // One that nobody wants to go holds up nothing, and one that is wanted again only until it has ended.
    let mut bench = Bench::default();
    serve(&mut bench);
    bench.take(vec![tower().remove(0)], &[]);
    assert_eq!(bench.actions(), [detach("z")]);
    bench.take(vec![tower().remove(0), tower().remove(2)], &[]);
    assert_eq!(bench.actions(), []);
    bench.ended("z", End::Detached);
    assert_eq!(bench.actions(), [seek("z"), detach("m")]);
    let mut bench = Bench::default();
    serve(&mut bench);
    bench.take(vec![tower().remove(0)], &[]);
    bench.take(vec![tower().remove(0), tower().remove(2)], &[]);
    bench.supervisor.stayed("z", "it is away", bench.now);
    assert_eq!(bench.actions(), [detach("z"), detach("m")]);
}

#[test]
fn a_file_that_comes_back_with_other_words_before_its_attachment_ended_is_told_or_counts_at_the_next_start() {
    let other = || AttachmentFile { url: "iscsi://h/a/1".into(), ..file("a", "a") };
    let mut bench = Bench::running("a");
    bench.files(&[], &[]);
    // It is being detached: its next start has what the file says.
    assert_eq!(bench.take(vec![other()], &[]).changed, []);
    assert_eq!(bench.status("a").unwrap().needs_start, ["url"]);
    // It could not, and goes on with what it was started with.
    bench.supervisor.stayed("a", "it is away", bench.now);
    assert_eq!((bench.state("a"), bench.status("a").unwrap().needs_start), ("running", vec!["url".to_owned()]));
    // It could not for a while: what its file says now is told.
    let mut bench = Bench::running("a");
    bench.files(&[], &[]);
    bench.supervisor.stayed("a", "it is away", bench.now);
    let change = bench.take(vec![other()], &[]);
    assert_eq!((change.added, change.changed), (vec!["a".to_owned()], vec![(file("a", "a"), other())]));
    assert_eq!(bench.state("a"), "running");
}
