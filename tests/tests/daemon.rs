//! `forebay daemon` with real processes: it starts what its files name, starts again what ended unasked, leaves alone
//! what its user detached, and neither its own end nor a mistake in a file touches an attachment that runs.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::{Finished, PATIENCE, Process, Target, World, forebay_binary, tool, wait_until};

const USAGE: i32 = 2;
const IN_USE: i32 = 6;
const WOULD_LOSE_DATA: i32 = 9;

/// A cache that cleans nothing by itself.
const CACHE: &str = "[cache]\npath = \"disk.cache\"\nsize = \"8MiB\"\nclean-above = \"100%\"\n";

/// A world with a directory of files of attachments. Attachments outlive their daemon, so that they are ended here.
struct Host {
    world: World,
    target: Target,
}

impl Host {
    fn new() -> Self {
        let world = World::new();
        fs::create_dir(world.path("etc")).unwrap();
        let target = world.target(["--lun", "0=ram:16MiB", "--lun", "1=ram:16MiB", "--lun", "2=ram:16MiB"]);
        Self { world, target }
    }

    /// Writes the file of an attachment of LUN `lun`.
    fn file(&self, name: &str, lun: u64, more: &str) {
        let front = self.world.path(&format!("{name}.nbd"));
        let text = format!("url = \"{}\"\nfront = \"nbd:unix:{}\"\n{more}", self.target.url(lun), front.display());
        self.text(name, &text);
    }

    fn text(&self, name: &str, text: &str) {
        fs::write(self.world.path("etc").join(format!("{name}.toml")), text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.world.path("etc").join(format!("{name}.toml"))).unwrap();
    }

    /// Starts a daemon, whose log its attachments write as well, when it has ended, too.
    fn daemon(&self, more: &[&str]) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 2>>daemon.log", "sh"]).arg(forebay_binary()).args(["-v", "daemon"]).args(more);
        let ours = self.world.forebay();
        let variables = ours.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.envs(variables).current_dir(self.world.path("")).stdin(Stdio::null());
        Process::start(&mut command).unwrap_or_else(|finished| panic!("{finished:?}: {}", self.log()))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.world.path("daemon.log")).unwrap_or_default()
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        self.world.run(arguments)
    }

    /// What the daemon says of an attachment; `null` for none.
    fn kept(&self, name: &str) -> Value {
        let mut status = self.world.status("daemon");
        let all = status["attachments"].as_array_mut().unwrap();
        all.iter_mut().find(|kept| kept["name"] == name).map(Value::take).unwrap_or_default()
    }

    #[track_caller]
    fn wait_for(&self, name: &str, what: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let kept = self.kept(name);
            if is_there(&kept) {
                return kept;
            }
            assert!(Instant::now() < deadline, "it never came to: {what}: {kept}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn wait_for_state(&self, name: &str, state: &str) -> Value {
        self.wait_for(name, state, |kept| kept["state"] == state)
    }

    /// Commands of qemu-io to the front of an attachment.
    #[track_caller]
    fn io(&self, name: &str, commands: &[&str]) {
        let uri = format!("nbd+unix:///?socket={}", self.world.path(&format!("{name}.nbd")).display());
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        let said = tool("qemu-io", ["-f", "raw"].into_iter().chain(commands).chain([uri.as_str()]));
        assert!(!said.contains("Pattern verification failed"), "{said}");
    }

    /// That what was written is on the LUN: nothing is dirty any more.
    #[track_caller]
    fn check_cleaned(&self) {
        self.io("disk", &["read -P 5 0 64k"]);
        assert_eq!(self.world.status("disk")["cache"]["dirty_bytes"], 0);
    }

    /// What is on the LUN itself.
    #[track_caller]
    fn check_lun(&self, lun: u64, command: &str) {
        let alone = self.world.start(["attach", &self.target.url(lun), "--name", "alone"]);
        let said = tool("qemu-io", ["-f", "raw", "-c", command, &alone.ready]);
        assert!(!said.contains("Pattern verification failed"), "{said}");
        alone.terminate().success();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Each process of this world has its path in its environment.
        let own = self.world.path("run").display().to_string();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let is_ours = String::from_utf8_lossy(&environment).contains(&own);
            if let Some(id) = entry.file_name().to_str().and_then(|id| id.parse().ok()).filter(|_| is_ours) {
                signal(id, Signal::KILL);
            }
        }
    }
}

fn signal(id: u64, signal: Signal) {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw).expect("it is a process");
    // It may have ended.
    let _ = kill_process(id, signal);
}

fn pid(kept: &Value) -> u64 {
    kept["pid"].as_u64().unwrap_or_else(|| panic!("it has a process: {kept}"))
}

/// Once, or more often where it is not ready in time at once.
fn has_restarted(kept: &Value) -> bool {
    kept["state"] == "running" && kept["restarts"].as_u64() >= Some(1)
}

#[test]
fn a_mistake_in_a_file_is_named_with_line_and_key_and_the_others_are_attached() {
    let host = Host::new();
    host.file("a", 0, "");
    host.file("b", 1, "name = \"web\"\n");
    host.file("c", 2, "[cache]\npth = \"c\"\n");
    host.text("target", "[[target]]\niqn = \"iqn.2026-11.org.example:a\"\nluns = []\n");
    let daemon = host.daemon(&[]);
    assert_eq!(daemon.ready, host.world.path("etc").display().to_string());
    assert_eq!(host.kept("a")["state"], "running");
    assert_eq!(host.kept("web")["state"], "running");
    host.io("b", &["write -P 1 0 64k", "read -P 1 0 64k"]);
    let status = host.world.status("daemon");
    let refused = status["files_refused"].as_array().unwrap();
    assert_eq!((refused.len(), status["attachments"].as_array().unwrap().len()), (1, 2), "{status}");
    let why = refused[0]["why"].as_str().unwrap();
    assert!(why.contains("c.toml, line 4: \"cache.pth\"") && why.contains("cache.path"), "{why}");
    assert!(host.log().contains("c.toml, line 4"), "{}", host.log());
    let words = host.run(&["status", "daemon"]).success();
    assert!(words.contains("wrong") && words.lines().any(|line| line.starts_with("web  ")), "{words}");
    host.run(&["daemon", "start", "c"]).failure(USAGE, &["c.toml, line 4"]);
    // Another daemon would have the same attachments.
    host.run(&["daemon"]).failure(IN_USE, &["a daemon runs already"]);
    host.run(&["clean", "daemon"]).failure(USAGE, &["this is the daemon"]);
    host.run(&["set", "daemon", "a=1"]).failure(USAGE, &["this is the daemon"]);
    let all = host.run(&["status"]).success();
    assert!(all.contains("2 running, 1 files wrong"), "{all}");
    assert_eq!(daemon.terminate().code, Some(0));
    // It goes on.
    host.io("a", &["write -P 1 0 64k", "read -P 1 0 64k"]);
}

/// Writes until the attachment ends.
fn write_in_the_background(host: &Host, name: &str) -> std::process::Child {
    let uri = format!("nbd+unix:///?socket={}", host.world.path(&format!("{name}.nbd")).display());
    let writes = (0..200).flat_map(|_| ["-c", "write -P 9 4M 64k"]);
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw"]).args(writes).arg(uri).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("qemu-io is installed")
}

#[test]
fn an_attachment_that_is_killed_under_writes_comes_back_with_what_was_acknowledged() {
    let host = Host::new();
    host.file("disk", 0, CACHE);
    let _daemon = host.daemon(&[]);
    let first = host.kept("disk");
    host.io("disk", &["write -P 5 0 1M", "flush"]);
    let mut writes = write_in_the_background(&host, "disk");
    signal(pid(&first), Signal::KILL);
    let again = host.wait_for("disk", "a restart", has_restarted);
    assert_ne!(pid(&again), pid(&first));
    assert!(host.log().contains("signal 9 ended its process"), "{}", host.log());
    // The client writes no more.
    let _ = writes.kill();
    let _ = writes.wait();
    let dirty = host.world.status("disk")["cache"]["dirty_bytes"].as_u64().unwrap();
    assert!(dirty >= 1 << 20, "{dirty} bytes are dirty");
    host.io("disk", &["read -P 5 0 1M", "write -P 6 0 64k", "read -P 6 0 64k"]);
    assert!(host.log().contains("it does not run, and is started again in 1 s"), "{}", host.log());
}

/// The kinds of the events of `name`, as far as the daemon noted them.
fn events_of(host: &Host, name: &str) -> Vec<String> {
    let said = host.run(&["events", name, "--json"]).json();
    let all = said["events"].as_array().expect("there is a list");
    let by_daemon = all.iter().filter(|event| event["process"] == "daemon" && event["name"] == name);
    by_daemon.map(|event| event["event"].as_str().expect("it has a kind").to_owned()).collect()
}

#[test]
fn restarts_ends_and_refused_files_are_events_also_of_what_has_ended() {
    let host = Host::new();
    host.file("disk", 0, CACHE);
    host.file("c", 2, "[cache]\npth = \"c\"\n");
    let _daemon = host.daemon(&[]);
    signal(pid(&host.kept("disk")), Signal::KILL);
    host.wait_for("disk", "a restart", |kept| kept["state"] == "running" && kept["restarts"] == 1);
    host.run(&["detach", "disk"]).success();
    host.wait_for_state("disk", "detached");
    let once = ["process-starting", "process-serves"];
    assert_eq!(events_of(&host, "disk"), [&once[..], &["process-waits"], &once, &["detached"]].concat());
    let words = host.run(&["events", "disk"]).success();
    assert!(words.contains("disk process-waits: it is started again in 1 s: signal 9"), "{words}");
    host.run(&["daemon", "reload"]).success();
    assert_eq!(events_of(&host, "daemon"), ["started", "file-refused", "files-read"], "the mistake is known");
    host.remove("disk");
    host.run(&["daemon", "reload"]).success();
    host.wait_for("disk", "an end", Value::is_null);
    assert_eq!(events_of(&host, "disk").last().map(String::as_str), Some("forgotten"));
    let words = host.run(&["events", "daemon"]).success();
    assert!(words.contains("c.toml, line 4") && words.contains("files-read: 0 added, 1 removed, 0 changed"), "{words}");
}

#[test]
fn a_daemon_that_is_killed_touches_nothing_and_the_next_one_adopts_and_watches_what_runs() {
    let host = Host::new();
    host.file("disk", 0, CACHE);
    host.file("web", 1, "");
    // One that somebody attached already.
    let mut by_hand = host.world.forebay();
    let url = host.target.url(2);
    by_hand.args(["attach", &url, "--name", "hand", "--as", "nbd:unix:hand.nbd"]);
    let by_hand = Process::start(&mut by_hand).unwrap_or_else(|finished| panic!("{finished:?}"));
    host.file("hand", 2, "");
    let mut daemon = host.daemon(&[]);
    let before = ["disk", "web", "hand"].map(|name| pid(&host.kept(name)));
    assert_eq!(before[2], u64::from(by_hand.id()));
    host.io("disk", &["write -P 5 0 64k", "flush"]);
    daemon.kill();
    host.io("disk", &["read -P 5 0 64k", "write -P 6 64k 64k"]);
    let _daemon = host.daemon(&[]);
    let adopted = ["disk", "web", "hand"].map(|name| host.kept(name));
    assert_eq!(adopted.each_ref().map(pid), before);
    assert!(adopted.iter().all(|kept| kept["state"] == "running" && kept["restarts"] == 0), "{adopted:?}");
    assert_eq!(host.log().matches("is adopted").count(), 4, "{}", host.log());
    // They are watched, though they are no children.
    signal(before[0], Signal::KILL);
    host.wait_for("disk", "a restart", has_restarted);
    host.io("disk", &["read -P 5 0 64k", "read -P 6 64k 64k"]);
    // How they ended is known as well, also of one that no daemon started.
    for name in ["web", "hand"] {
        host.run(&["detach", name]).success();
        host.wait_for_state(name, "detached");
    }
    by_hand.wait().success();
    assert_eq!(host.kept("web")["exit_code"], 0);
    // A failure of one that was started by the daemon before.
    host.run(&["daemon", "start", "web"]).success();
    host.wait_for_state("web", "running");
}

#[test]
fn what_its_user_detached_is_not_started_until_somebody_asks_not_even_by_another_daemon() {
    let host = Host::new();
    host.file("disk", 0, CACHE);
    let daemon = host.daemon(&[]);
    host.io("disk", &["write -P 5 0 64k"]);
    host.run(&["detach", "disk"]).success();
    host.wait_for_state("disk", "detached");
    host.check_lun(0, "read -P 5 0 64k");
    host.run(&["daemon", "reload"]).success();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(host.kept("disk")["state"], "detached");
    // The daemon alone.
    host.run(&["detach", "daemon"]).success();
    daemon.wait().success();
    let daemon = host.daemon(&[]);
    assert_eq!(host.kept("disk")["state"], "detached");
    let said = host.run(&["status", "daemon"]).success();
    assert!(said.contains("`forebay daemon start disk`"), "{said}");
    host.run(&["daemon", "start", "disk"]).success();
    host.wait_for_state("disk", "running");
    host.io("disk", &["read -P 5 0 64k"]);
    // Detached while no daemon runs: the process itself says so to the next one.
    assert_eq!(daemon.terminate().code, Some(0));
    host.run(&["detach", "disk"]).success();
    let _daemon = host.daemon(&[]);
    assert_eq!(host.kept("disk")["state"], "detached");
}

#[test]
fn a_target_that_is_away_is_asked_less_and_less_often_until_it_is_there_or_nobody_wants_it() {
    let host = Host::new();
    host.text("away", "url = \"iscsi://127.0.0.1:1/iqn.2026-11.org.example:a/0\"\n");
    let _daemon = host.daemon(&[]);
    let restarts = |kept: &Value| kept["restarts"].as_u64().expect("they are counted");
    let waits = |kept: &Value| kept["state"] == "waiting";
    let second = host.wait_for("away", "a second start", |kept| restarts(kept) >= 1 && waits(kept));
    assert_eq!(second["exit_code"], 3, "{second}");
    assert!(second["why"].as_str().unwrap().contains("127.0.0.1:1"), "{second}");
    // One second, then two, then four.
    assert!(second["wait_ms"].as_u64().unwrap() <= 1000 << restarts(&second), "{second}");
    let in_words = || host.run(&["status", "daemon"]).success().contains("waiting, starts again in");
    wait_until("it is said that it starts again", in_words);
    for wait in ["in 1 s", "in 2 s"] {
        assert_eq!(host.log().matches(&format!("is started again {wait}")).count(), 1, "{wait}: {}", host.log());
    }
    // Somebody who cannot wait.
    host.run(&["daemon", "start", "away"]).success();
    host.wait_for("away", "a third start", |kept| restarts(kept) > restarts(&second) && waits(kept));
    // Somebody who does not want it.
    let said = host.run(&["detach", "away"]).success();
    assert!(said.contains("was not attached"), "{said}");
    assert_eq!(host.kept("away")["state"], "detached");
    host.run(&["detach", "nobody"]).failure(5, &["nothing runs under the name"]);
}

#[test]
fn what_would_lose_data_is_tried_once_and_again_when_its_file_says_something_else() {
    let host = Host::new();
    host.file("disk", 0, CACHE);
    let daemon = host.daemon(&[]);
    host.io("disk", &["write -P 5 0 64k", "flush"]);
    host.run(&["detach", "disk", "--keep-dirty"]).success();
    host.wait_for_state("disk", "detached");
    host.file("disk", 0, "");
    host.run(&["daemon", "reload"]).success();
    host.run(&["daemon", "start", "disk"]).success();
    let failed = host.wait_for_state("disk", "failed");
    assert_eq!(failed["exit_code"], WOULD_LOSE_DATA, "{failed}");
    assert!(failed["why"].as_str().unwrap().contains("attach it with --cache"), "{failed}");
    let starts = host.log().matches("is not started again until its file changes").count();
    std::thread::sleep(Duration::from_secs(3));
    host.run(&["daemon", "reload"]).success();
    assert_eq!(host.kept("disk")["restarts"], failed["restarts"], "it is not tried again");
    assert_eq!(host.log().matches("is not started again until its file changes").count(), starts);
    host.file("disk", 0, CACHE);
    host.run(&["daemon", "reload"]).success();
    host.wait_for_state("disk", "running");
    host.io("disk", &["read -P 5 0 64k"]);
    drop(daemon);
}

#[test]
fn a_reload_attaches_what_is_new_sets_what_may_change_and_detaches_what_is_gone() {
    let host = Host::new();
    host.file("disk", 0, CACHE);
    host.file("gone", 1, &CACHE.replace("disk.cache", "gone.cache"));
    let daemon = host.daemon(&[]);
    let before = pid(&host.kept("disk"));
    host.io("gone", &["write -P 7 0 64k"]);
    host.file("disk", 0, &format!("read-only = true\n{CACHE}mode = \"write-through\"\n"));
    host.remove("gone");
    host.file("new", 2, "");
    host.file("wrong", 2, "connections = 0\n");
    let read = host.run(&["daemon", "reload", "--json"]).json();
    assert_eq!((&read["added"][0], &read["removed"][0]), (&"new".into(), &"gone".into()), "{read}");
    let change = &read["changed"][0];
    assert_eq!((&change["name"], &change["set"][0]), (&"disk".into(), &"cache.mode=write-through".into()), "{read}");
    assert_eq!(change["needs_start"], serde_json::json!(["read-only"]), "{read}");
    assert!(read["files_refused"][0]["why"].as_str().unwrap().contains("wrong.toml, line 3: connections"), "{read}");
    assert_eq!(host.world.status("disk")["settings"]["cache.mode"], "write-through");
    assert_eq!((pid(&host.kept("disk")), &host.kept("disk")["needs_start"][0]), (before, &"read-only".into()));
    host.wait_for_state("new", "running");
    host.wait_for("gone", "its end", Value::is_null);
    host.check_lun(1, "read -P 7 0 64k");
    // A mistake in the file of one that runs.
    host.file("new", 2, "connections = 0\n");
    signal(daemon.id().into(), Signal::HUP);
    wait_until("the mistake is said in the log", || host.log().contains("new.toml, line 3"));
    assert_eq!(host.kept("new")["state"], "running");
    // What is not there cannot be told from what cannot be read.
    fs::rename(host.world.path("etc"), host.world.path("elsewhere")).unwrap();
    host.run(&["daemon", "reload"]).failure(5, &["cannot read"]);
    assert_eq!(host.kept("disk")["state"], "running");
}

#[test]
fn a_daemon_that_is_told_so_detaches_everything_before_it_ends_and_the_next_one_attaches_it() {
    let host = Host::new();
    host.file("disk", 0, CACHE);
    host.file("web", 1, "");
    let daemon = host.daemon(&["--stop-attachments"]);
    host.io("disk", &["write -P 5 0 64k"]);
    host.run(&["detach", "web"]).success();
    host.wait_for_state("web", "detached");
    assert_eq!(daemon.terminate().code, Some(0), "{}", host.log());
    assert!(!host.run(&["status"]).success().contains("disk "));
    host.check_lun(0, "read -P 5 0 64k");
    let daemon = host.daemon(&["--stop-attachments"]);
    assert_eq!(host.kept("disk")["state"], "running");
    assert_eq!(host.kept("web")["state"], "detached", "its user did that");
    // A target that is away keeps nobody for ever: what is dirty stays, and that is told.
    host.io("disk", &["write -P 6 0 64k", "flush"]);
    host.run(&["detach", "target"]).success();
    let id = daemon.id();
    signal(id.into(), Signal::TERM);
    host.wait_for_state("disk", "detaching");
    std::thread::sleep(Duration::from_millis(500));
    signal(id.into(), Signal::TERM);
    assert_eq!(daemon.wait().code, Some(0), "{}", host.log());
    assert!(host.log().contains("the daemon ends before all attachments have"), "{}", host.log());
}

#[test]
fn an_attachment_is_kept_by_a_word_and_forgotten_by_another() {
    let host = Host::new();
    let file = host.world.path("etc").join("disk.toml");
    let (url, persist) = (host.target.url(0), ["--name", "disk", "--cache", "disk.cache", "--cache-size", "8MiB"]);
    let attach = [&["attach", url.as_str()], &persist[..], &["--set", "cache.clean-above=100%", "--persist"]].concat();
    let said = host.run(&attach).success();
    assert!(said.contains("none runs now") && file.exists(), "{said}");
    let _daemon = host.daemon(&[]);
    host.wait_for_state("disk", "running");
    host.run(&attach).failure(IN_USE, &["disk.toml is there already"]);
    let said = host.run(&["detach", "disk", "--forget"]).success();
    assert!(said.contains("disk: detached") && said.contains("disk: forgotten") && !file.exists(), "{said}");
    host.wait_for("disk", "to be forgotten", Value::is_null);
    // While a daemon runs it is attached at once.
    let said = host.run(&attach).success();
    assert!(said.starts_with("ready: nbd+unix://"), "{said}");
    assert_eq!(host.kept("disk")["state"], "running");
    let mode = fs::metadata(&file).map(|file| std::os::unix::fs::PermissionsExt::mode(&file.permissions())).unwrap();
    assert_eq!(mode & 0o777, 0o600);
    // What cannot be attached is not kept.
    tool("qemu-io", ["-f", "raw", "-c", "write -P 5 0 64k", "-c", "flush", said.trim_start_matches("ready: ").trim()]);
    host.run(&["detach", "disk", "--keep-dirty", "--forget"]).success();
    let refused = host.run(&["attach", &url, "--name", "bare", "--persist"]);
    refused.failure(WOULD_LOSE_DATA, &["attach it with --cache", "nothing is kept of it"]);
    assert!(host.kept("bare").is_null());
    // What may be attached later is.
    let none = url.replace(":test", ":none");
    let said = host.run(&["attach", &none, "--name", "n", "--persist"]).success();
    assert!(said.contains("n: kept in") && said.contains("waiting"), "{said}");
    host.run(&["detach", "n", "--forget"]).success();
    assert!(host.kept("n").is_null());
    host.run(&["detach", "n", "--forget"]).failure(5, &["no file in"]);
    // A secret that is in the environment would not be there at the next start.
    let mut command = host.world.forebay();
    command.args(["attach", &url.replace("//", "//alice@"), "--name", "s", "--persist"]);
    let said = tests::finish(command.env("FOREBAY_CHAP_PASSWORD", "a-long-secret"));
    said.failure(USAGE, &["FOREBAY_CHAP_PASSWORD is not kept", "chap.file"]);
    assert_eq!(fs::read_dir(host.world.path("etc")).unwrap().count(), 0);
}

/// What was written to one LUN must not be on another one, and nobody's attachment ends for somebody else's file.
#[test]
fn a_name_that_another_lun_has_is_refused_to_persist_and_left_alone_by_the_daemon_and_by_forget() {
    let host = Host::new();
    let daemon = host.daemon(&[]);
    let (zero, one) = (host.target.url(0), host.target.url(1));
    let by_hand = host.world.start(["attach", &zero, "--name", "disk"]);
    let persist = ["attach", one.as_str(), "--name", "disk", "--persist"];
    host.run(&persist).failure(IN_USE, &["\"disk\" is running already, with another url", "choose another --name"]);
    let other = ["attach", zero.as_str(), "--name", "disk", "--persist", "--cache", "c", "--cache-size", "8MiB"];
    host.run(&other).failure(IN_USE, &["with another cache.path"]);
    assert_eq!(fs::read_dir(host.world.path("etc")).unwrap().count(), 0);
    host.run(&["detach", "disk", "--forget"]).failure(5, &["no file in", "runs, and goes on"]);
    // A file by hand, with each way to end what it names.
    let fits = |kept: &Value| kept["state"] == "taken" && kept["pid"].is_null();
    host.file("disk", 1, "");
    host.run(&["daemon", "reload"]).success();
    let kept = host.wait_for("disk", "its name is taken", fits);
    assert!(kept["why"].as_str().unwrap().contains(&zero), "{kept}");
    let said = host.run(&["status", "daemon"]).success();
    assert!(said.contains("its name is taken") && said.contains(&one), "{said}");
    host.run(&["daemon", "start", "disk"]).failure(IN_USE, &[&zero, "`forebay detach disk` ends that one"]);
    host.wait_for("disk", "its name is taken still", fits);
    let said = host.run(&["detach", "disk", "--forget"]).success();
    assert!(said.contains("disk: forgotten") && said.contains("another LUN, and goes on"), "{said}");
    host.wait_for("disk", "to be forgotten", Value::is_null);
    assert_eq!(host.world.status("disk")["pid"], by_hand.id());
    host.file("disk", 1, "");
    assert_eq!(daemon.terminate().code, Some(0));
    let daemon = host.daemon(&["--stop-attachments"]);
    host.wait_for("disk", "its name is taken", fits);
    assert_eq!(daemon.terminate().code, Some(IN_USE), "{}", host.log());
    assert!(host.log().contains("that one was not stopped"), "{}", host.log());
    assert_eq!(host.world.status("disk")["pid"], by_hand.id());
    let said = host.run(&["detach", "disk", "--forget"]).success();
    assert!(said.contains("another LUN, and goes on"), "without a daemon: {said}");
    // When that one ends, the file's is attached.
    host.file("disk", 1, "");
    let _daemon = host.daemon(&[]);
    host.wait_for("disk", "its name is taken", fits);
    host.run(&["detach", "disk"]).success();
    by_hand.wait().success();
    host.wait_for_state("disk", "running");
    host.io("disk", &["write -P 7 0 64k"]);
    host.run(&["detach", "disk", "--forget"]).success();
    host.check_lun(1, "read -P 7 0 64k");
    host.check_lun(0, "read -P 0 0 64k");
    // The same LUN by hand is adopted, and what else its file says is told.
    let _by_hand = host.world.start(["attach", &zero, "--name", "disk"]);
    let said = host.run(&["attach", &zero, "--name", "disk", "--persist"]).success();
    assert!(said.starts_with("ready: "), "{said}");
}

#[test]
fn a_pipe_among_the_files_keeps_nobody_waiting() {
    let host = Host::new();
    host.file("disk", 0, "");
    let daemon = host.daemon(&[]);
    for name in ["pipe", "other"] {
        tool("mkfifo", [host.world.path("etc").join(format!("{name}.toml"))]);
        let said = host.run(&["daemon", "reload"]).success();
        assert!(said.contains(&format!("{name}.toml: it is no file")), "{said}");
    }
    assert_eq!(host.kept("disk")["state"], "running");
    assert_eq!(daemon.terminate().code, Some(0));
    let _daemon = host.daemon(&[]);
    assert_eq!(host.kept("disk")["state"], "running");
}

#[test]
fn what_a_killed_daemon_was_detaching_is_attached_again_by_the_next_one() {
    let host = Host::new();
    let target = host.target.process.id();
    host.file("disk", 0, CACHE);
    let mut daemon = host.daemon(&["--stop-attachments"]);
    // It stops everything once, and once its file is gone for a while.
    for stops in [true, false] {
        host.io("disk", &["write -P 5 0 64k", "flush"]);
        let before = pid(&host.kept("disk"));
        // What is dirty has to wait.
        signal(target.into(), Signal::STOP);
        let text = fs::read_to_string(host.world.path("etc").join("disk.toml")).unwrap();
        if stops {
            signal(daemon.id().into(), Signal::TERM);
        } else {
            host.remove("disk");
            host.run(&["daemon", "reload"]).success();
        }
        host.wait_for_state("disk", "detaching");
        signal(daemon.id().into(), Signal::KILL);
        daemon.wait();
        host.text("disk", &text);
        daemon = host.daemon(&[]);
        assert_eq!(host.kept("disk")["state"], "detaching", "{}", host.log());
        signal(target.into(), Signal::CONT);
        host.wait_for("disk", "to be attached again", |kept| kept["state"] == "running" && kept["pid"] != before);
        host.check_cleaned();
    }
    // A user's own detach stays one, also for a daemon that begins meanwhile.
    host.io("disk", &["write -P 6 0 64k", "flush"]);
    signal(target.into(), Signal::STOP);
    let mut detach = host.world.forebay().args(["detach", "disk"]).stdout(Stdio::null()).spawn().unwrap();
    host.world.wait_for_status("disk", "a detach that waits", |status| !status["detaching"].is_null());
    signal(daemon.id().into(), Signal::KILL);
    daemon.wait();
    let _daemon = host.daemon(&[]);
    signal(target.into(), Signal::CONT);
    host.wait_for_state("disk", "detached");
    assert!(detach.wait().unwrap().success());
}

#[test]
fn a_setting_that_an_attachment_refuses_at_a_reload_is_said_and_set_as_soon_as_it_takes_it() {
    let host = Host::new();
    host.file("disk", 0, CACHE);
    let _daemon = host.daemon(&[]);
    let id = pid(&host.kept("disk"));
    signal(id, Signal::STOP);
    host.file("disk", 0, &format!("{CACHE}mode = \"write-through\"\n"));
    let read = host.run(&["daemon", "reload", "--json"]).json();
    assert!(read["changed"][0]["refused"][0].as_str().unwrap().starts_with("cache.mode=write-through: "), "{read}");
    let said = host.run(&["status", "daemon"]).success();
    assert!(said.contains("not set yet, and tried again: cache.mode=write-through: "), "{said}");
    signal(id, Signal::CONT);
    host.wait_for("disk", "nothing is left to set", |kept| kept["not_set"].as_array().unwrap().is_empty());
    assert_eq!(host.world.status("disk")["settings"]["cache.mode"], "write-through");
    assert_eq!(pid(&host.kept("disk")), id);
}

#[test]
fn persist_attaches_also_what_was_detached_before_its_file_was_removed() {
    let host = Host::new();
    let url = host.target.url(0);
    let persist = ["attach", url.as_str(), "--name", "disk", "--persist"];
    let daemon = host.daemon(&[]);
    assert!(host.run(&persist).success().starts_with("ready: "));
    host.run(&["detach", "disk"]).success();
    host.wait_for_state("disk", "detached");
    host.remove("disk");
    let said = host.run(&persist).success();
    assert!(said.starts_with("ready: "), "{said}");
    // The same while no daemon runs.
    host.run(&["detach", "disk"]).success();
    host.wait_for_state("disk", "detached");
    assert_eq!(daemon.terminate().code, Some(0));
    host.remove("disk");
    assert!(host.run(&persist).success().contains("a daemon attaches it"));
    let _daemon = host.daemon(&[]);
    assert_eq!(host.kept("disk")["state"], "running");
}

#[test]
fn persist_that_is_interrupted_leaves_the_whole_file_or_none_and_nothing_else() {
    let host = Host::new();
    let url = host.target.url(0);
    let etc = host.world.path("etc");
    let persist = || {
        let mut command = host.world.forebay();
        command.args(["attach", &url, "--name", "disk", "--persist"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    for milliseconds in (0..60).step_by(2) {
        let mut asked = persist();
        std::thread::sleep(Duration::from_millis(milliseconds));
        signal(asked.id().into(), Signal::INT);
        asked.wait().unwrap();
        let names = fs::read_dir(&etc).unwrap().map(|entry| entry.unwrap().file_name());
        let others: Vec<_> = names.filter(|name| name != "disk.toml").collect();
        assert!(others.is_empty(), "after {milliseconds} ms: {others:?}");
        let _ = fs::remove_file(etc.join("disk.toml"));
    }
    // While a daemon starts it.
    let _daemon = host.daemon(&[]);
    signal(host.target.process.id().into(), Signal::STOP);
    let asked = persist();
    host.wait_for_state("disk", "starting");
    signal(asked.id().into(), Signal::INT);
    let said = asked.wait_with_output().unwrap();
    signal(host.target.process.id().into(), Signal::CONT);
    let words = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.code() == Some(1) && words.contains("ended by a signal; disk is kept in "), "{said:?}");
    host.wait_for_state("disk", "running");
}
