//! `forebay top`: the load of all attachments as numbers and as a table, also where one of them stands still.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::World;

const CACHE: [&str; 6] = ["--cache", "disk.cache", "--cache-size", "8MiB", "--cache-clean-above", "100%"];

fn row<'t>(said: &'t Value, name: &str) -> &'t Value {
    let rows = said["attachments"].as_array().expect("there are rows");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name} is missing: {said}"))
}

fn signal(id: u32, signal: Signal) {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw).expect("it is a process");
    kill_process(id, signal).expect("it is our child");
}

#[test]
fn a_load_is_in_the_numbers_of_its_attachment_and_one_that_is_stopped_has_a_row_that_says_so() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB", "--lun", "1=ram:16MiB"]);
    assert_eq!(world.run(["top", "--once"]).success(), "no attachment runs\n");
    let _disk = world.start([&["attach", &target.url(0), "--name", "disk"][..], &CACHE].concat());
    let idle = world.start(["attach", &target.url(1), "--name", "idle"]);
    let load = ["bench", "disk", "--rw", "randrw", "--seconds", "600", "--allow-data-loss"];
    let mut load = world.forebay().args(load).spawn().expect("the binary is there");
    world.wait_for_status("disk", "a load", |status| status["nbd"]["read"]["requests"].as_u64() > Some(100));
    let said = world.run(["top", "--once", "--json"]).json();
    let disk = row(&said, "disk");
    for key in ["reads_per_second", "writes_per_second", "read_bytes_per_second", "latency_ns", "hit_ratio"] {
        assert!(disk[key].as_f64() > Some(0.0), "{key}: {said}");
    }
    assert!(disk["dirty_bytes"].as_u64() > Some(0) && disk["dirty_age_seconds"].is_number(), "{said}");
    assert_eq!((&disk["state"], &disk["connections"], &disk["clients"]), (&"online".into(), &1.into(), &1.into()));
    let other = row(&said, "idle");
    assert_eq!((&other["reads_per_second"], &other["dirty_bytes"]), (&0.0.into(), &Value::Null), "{said}");
    assert_eq!(said["attachments"].as_array().unwrap().len(), 2, "the target is none: {said}");
    signal(idle.id(), Signal::STOP);
    let table = world.run(["top", "--once"]).success();
    signal(idle.id(), Signal::CONT);
    assert!(table.starts_with(" NAME") && !table.contains('\u{1b}'), "{table}");
    assert!(table.lines().any(|line| line.starts_with(" disk") && line.contains("online")), "{table}");
    assert!(table.lines().any(|line| line.starts_with(" idle") && line.contains("silent")), "{table}");
    assert!(table.contains("\"idle\" does not answer: its process"), "{table}");
    load.kill().expect("it is our child");
    load.wait().expect("it is our child");
}

#[test]
fn it_goes_on_until_nobody_reads_it() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let _disk = world.start(["attach", &target.url(0), "--name", "disk"]);
    let mut top = world.forebay().args(["top", "--json"]).stdout(Stdio::piped()).spawn().expect("the binary is there");
    let lines = BufReader::new(top.stdout.take().expect("it is piped")).lines();
    for line in lines.take(2) {
        let said: Value = serde_json::from_str(&line.unwrap()).expect("it is JSON");
        assert_eq!(row(&said, "disk")["reads_per_second"], 0.0, "{said}");
    }
    let ended = top.wait().expect("it is our child");
    assert!(ended.success(), "{ended}");
}
