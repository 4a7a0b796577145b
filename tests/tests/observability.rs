//! What a running target and an attachment tell: status, metrics, logs, the service manager.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use prometheus_parse::{Sample, Scrape, Value as Metric};
use serde_json::Value;
use tests::{IQN, PATIENCE, Process, World, forebay_binary, wait_until};

/// `http://ADDRESS/metrics`, its head and its body.
fn get(address: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("metrics are served");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: metrics\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("it is HTTP");
    (head.to_owned(), body.to_owned())
}

fn scrape(address: &str) -> Vec<Sample> {
    let (head, body) = get(address);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.to_ascii_lowercase().contains("content-type: application/openmetrics-text"), "{head}");
    Scrape::parse(body.lines().map(|line| Ok(line.to_owned()))).expect("it is in the format").samples
}

fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has = |sample: &&Sample| {
        sample.metric == name && labels.iter().all(|(key, value)| sample.labels.get(key) == Some(*value))
    };
    match samples.iter().find(has)?.value {
        Metric::Counter(value) | Metric::Gauge(value) | Metric::Untyped(value) => Some(value),
        Metric::Histogram(_) | Metric::Summary(_) => None,
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A port that nobody listens on now.
fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Sizes of PDUs and counts of TCP segments of an attachment with digests.
fn assert_traffic(remote: &Value, metrics: &str) {
    for direction in ["sent", "received"] {
        let sizes = &remote["pdu_sizes"][direction];
        let classes = sizes["histogram"].as_array().unwrap();
        assert_eq!(sizes["count"], remote[format!("pdus_{direction}")], "{remote}");
        assert_eq!(classes[0]["le_bytes"], 63);
        assert!(classes[0]["count"].as_u64().unwrap() > 0, "a header with its digest has 52 bytes");
        assert_eq!(classes.last().unwrap()["count"], sizes["count"]);
        let segments = |key: &str| remote["tcp_segments"][key].as_u64().expect("Linux counts segments");
        let with_data = segments(&format!("{direction}_with_data"));
        assert!(with_data > 0 && segments(direction) >= with_data, "{remote}");
    }
    let samples = scrape(metrics);
    assert!(value(&samples, "forebay_remote_tcp_segments_sent_total", &[]).unwrap() > 0.0);
    assert!(samples.iter().any(|sample| sample.metric == "forebay_remote_pdu_size_bytes"));
}

#[test]
fn status_and_metrics_agree_on_what_was_done() {
    let world = World::new();
    let (target_metrics, attach_metrics) = (free_port(), free_port());
    let target = world.target(["--lun", "0=ram:16MiB", "--lun", "1=ram:16MiB", "--metrics", &target_metrics]);
    let attach = ["attach", &target.url(0), "--name", "disk", "--digests", "--metrics", &attach_metrics];
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB"];
    let _attachment = world.start(attach.into_iter().chain(cache));
    let bench = ["bench", &target.url(1), "--rw", "randrw", "--requests", "4000", "--allow-data-loss"];
    world.run(bench).success();

    assert_traffic(&world.status("disk")["remote"], &attach_metrics);
    let status = world.run(["target", "status", "--json"]).json();
    let session = &status["sessions"][0];
    assert_eq!(session["target_name"], IQN);
    assert_eq!(session["session_type"], "Normal");
    assert_eq!(session["isid"].as_str().unwrap().len(), 12);
    assert_eq!(session["commands_under_way"], 0);
    assert_eq!(session["oldest_command_ms"], Value::Null);
    let negotiated = &session["negotiated"];
    assert_eq!(negotiated["HeaderDigest"], "CRC32C");
    assert_eq!(negotiated["ImmediateData"], true);
    assert_eq!(negotiated["ErrorRecoveryLevel"], session["error_recovery_level"]);
    assert_eq!(negotiated["MaxRecvDataSegmentLength"]["target"], 256 << 10);
    assert_eq!(negotiated.as_object().unwrap().len(), 17);
    let connection = &status["connections"][0];
    assert_eq!((&connection["state"], &connection["tsih"]), (&Value::from("full-feature"), &session["tsih"]));
    assert_eq!((&connection["data_digest"], &connection["digest_errors"]), (&Value::from("CRC32C"), &Value::from(0)));
    assert!(connection["bytes_sent"].as_u64().unwrap() > 0 && connection["pdus_received"].as_u64().unwrap() > 0);
    let lun = status["luns"].as_array().unwrap().iter().find(|lun| lun["lun"] == 1).expect("it was used");
    let (reads, writes) = (lun["reads"].as_u64().unwrap(), lun["writes"].as_u64().unwrap());
    assert!(reads + writes >= 4000, "{lun}");
    assert_eq!(lun["read_latency"]["count"], reads);
    assert_eq!(lun["read_latency"]["histogram"].as_array().unwrap().last().unwrap()["count"], reads);
    let percentiles = ["p50_ns", "p99_ns", "max_ns"].map(|key| lun["read_latency"][key].as_u64().unwrap());
    assert!(percentiles.is_sorted(), "{lun}");
    assert!(lun["rates"]["window_ms"].as_u64().is_some(), "{lun}");

    let samples = scrape(&target_metrics);
    assert_eq!(value(&samples, "forebay_target_sessions", &[]), Some(1.0));
    let of = |operation| [("target", IQN), ("lun", "1"), ("operation", operation)];
    assert_eq!(value(&samples, "forebay_lun_operations_total", &of("read")), Some(reads as f64));
    assert_eq!(value(&samples, "forebay_lun_operations_total", &of("write")), Some(writes as f64));
    let is_histogram = |sample: &&Sample| sample.metric == "forebay_lun_latency_seconds";
    assert!(matches!(samples.iter().find(is_histogram).unwrap().value, Metric::Histogram(_)));

    let status = world.status("disk");
    assert_eq!(status["remote"]["negotiated"]["DataDigest"], "CRC32C");
    let samples = scrape(&attach_metrics);
    assert_eq!(value(&samples, "forebay_remote_online", &[]), Some(1.0));
    assert_eq!(value(&samples, "forebay_cache_lines", &[]), status["cache"]["lines"].as_f64());
    assert_eq!(value(&samples, "forebay_remote_sessions_total", &[]), Some(1.0));
}

#[test]
fn metrics_stay_on_this_machine_unless_told_otherwise() {
    let world = World::new();
    let serve = ["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--lun", "0=ram:1MiB"];
    world.run(serve.into_iter().chain(["--metrics", "0.0.0.0:0"])).failure(2, &["0.0.0.0:0", "--allow-remote"]);
    let address = free_port();
    let target = world.target(["--lun", "0=ram:1MiB", "--metrics", &address]);
    // An attachment has no flag that would allow it, and advises none.
    let refused = world.run(["attach", &target.url(0), "--metrics", "0.0.0.0:0"]);
    assert!(!refused.stderr.contains("--allow-remote"), "{refused:?}");
    refused.failure(2, &["0.0.0.0:0", "loopback", "127.0.0.1:PORT"]);
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET /other HTTP/1.1\r\nHost: metrics\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
}

#[test]
fn logs_are_json_with_fields_and_without_secrets() {
    const RIGHT: &str = "a-right-secret-of-24-b";
    const WRONG: &str = "a-wrong-secret-of-24-b";
    let world = World::new();
    fs::write(world.path("right"), format!("{RIGHT}\n")).unwrap();
    fs::write(world.path("wrong"), format!("{WRONG}\n")).unwrap();
    let mut command = world.forebay();
    command.env("FOREBAY_LOG", "trace").args(["--log-format", "json", "target", "serve", "--portal", "127.0.0.1:0"]);
    command.args(["--iqn", IQN, "--lun", "0=ram:16MiB", "--chap-user", "alice", "--chap-file", "right"]);
    let target = Process::start(&mut command).unwrap();
    let url = format!("iscsi://alice@{}/{IQN}/0", target.ready);
    world.run(["inquiry", &url, "--chap-file", "right"]).success();
    let refused = world.run(["inquiry", &url, "--chap-file", "wrong"]);
    assert_eq!(refused.code, Some(4));
    let log = target.terminate().stderr;
    assert!(!log.contains(RIGHT) && !log.contains(WRONG), "a secret is in the log: {log}");
    let lines: Vec<Value> = log.lines().map(json).collect();
    let line = |message: &str| lines.iter().find(|line| line["message"] == message).expect(message);
    let began = line("session began");
    assert_eq!((&began["level"], &began["target"]), (&Value::from("INFO"), &Value::from(IQN)));
    assert_eq!((&began["user"], &began["session"]), (&Value::from("alice"), &Value::from(1)));
    assert!(began["initiator"].is_string() && began["connection"].is_string(), "{began}");
    let refused = line("login refused");
    assert_eq!((&refused["level"], &refused["status"]), (&Value::from("WARN"), &Value::from("0201")));
    assert!(refused["detail"].is_string(), "{refused}");
    assert_eq!(line("connection ended")["reason"], "the initiator logged out");
}

/// The target's status as soon as it is as wanted.
fn status_when(world: &World, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = world.run(["target", "status", "--json"]).json();
        if is_wanted(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{status}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn limits_are_kept_and_answered() {
    let world = World::new();
    let config = format!(
        "portals = [\"127.0.0.1:0\"]\n[limits]\nsessions = 1\nlogin-idle = \"3s\"\nunauthenticated-per-address = 2\n\
         [[target]]\niqn = \"{IQN}\"\nluns = [\"0=ram:16MiB\"]\n"
    );
    fs::write(world.path("target.toml"), config).unwrap();
    let target = world.start(["target", "serve", "--config", "target.toml"]);
    let url = format!("iscsi://{}/{IQN}/0", target.ready);
    let first = world.start(["attach", &url, "--name", "first"]);
    let second = ["inquiry", &url, "--initiator-name", "iqn.2026-11.io.forebay:second"];
    let refused = world.run(second);
    assert_ne!(refused.code, Some(0), "one session is all there is");
    // A client hears that it is refused a moment before the target has taken it off its tables.
    let status = status_when(&world, |status| status["connections"].as_array().is_some_and(|all| all.len() == 1));
    assert!(status["logins_refused_by_status"]["0302"].as_u64() >= Some(1), "{status}");
    // Two who say nothing are taken, and closed for their silence; for a third one the first is closed at once.
    let mut silent: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(&target.ready).unwrap()).collect();
    for stream in &mut silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // Goes on where a signal interrupts it, which a plain read with a time limit does not.
        assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0, "the target hangs up");
    }
    let status = world.run(["target", "status", "--json"]).json();
    assert_eq!(status["connections_refused"], 1);
    drop(first);
}

/// Messages of the service manager's socket until one has `word`.
fn told_until(socket: &UnixDatagram, word: &str) -> Vec<String> {
    let mut told = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let length = match socket.recv(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            received => received.unwrap_or_else(|error| panic!("no {word} but {told:?}: {error}")),
        };
        told.extend(String::from_utf8_lossy(&buffer[..length]).lines().map(str::to_owned));
        if told.iter().any(|line| line == word) {
            return told;
        }
    }
}

#[test]
fn the_service_manager_passes_the_socket_and_is_told() {
    let world = World::new();
    let notify = UnixDatagram::bind(world.path("notify")).unwrap();
    notify.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = free_port();
    let mut command = Command::new("systemd-socket-activate");
    command
        .args(["--listen", &address])
        .args(["--setenv", &format!("NOTIFY_SOCKET={}", world.path("notify").display())])
        .args(["--setenv", "WATCHDOG_USEC=200000"])
        .args(["--setenv", &format!("FOREBAY_RUNTIME_DIR={}", world.path("run").display())])
        .args(["--setenv", &format!("FOREBAY_STATE_DIR={}", world.path("state").display())])
        .arg(forebay_binary())
        .args(["target", "serve", "--iqn", IQN, "--lun", "0=ram:16MiB"])
        .stdout(std::process::Stdio::null());
    let mut child = command.spawn().expect("tests/tools/install-packages installs systemd-socket-activate");
    let is_listening = || TcpStream::connect(&address).is_ok();
    wait_until("the service manager listens", is_listening);
    told_until(&notify, "READY=1");
    world.run(["inquiry", &format!("iscsi://{address}/{IQN}/0")]).success();
    let status = world.run(["target", "status", "--json"]).json();
    assert_eq!(status["address"], address, "what was passed is served, not the default portal");
    let told = told_until(&notify, "WATCHDOG=1");
    assert!(told.iter().any(|line| line.starts_with("STATUS=")), "{told:?}");
    let signal = |signal| rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
    // There is no file to read again, which is another matter: that it tried is told, with the time
    // (Type=notify-reload), and that it goes on.
    signal(rustix::process::Signal::HUP);
    let told = told_until(&notify, "RELOADING=1");
    assert!(told.iter().any(|line| line.starts_with("MONOTONIC_USEC=")), "{told:?}");
    told_until(&notify, "READY=1");
    signal(rustix::process::Signal::TERM);
    told_until(&notify, "STOPPING=1");
    assert!(child.wait().unwrap().success());
}
