//! Settings of an attachment, wherever they are said: the command line, a file, the environment, and while it runs.

use std::fs;

use tests::World;

/// Exit code of a mistake of who typed it.
const USAGE: i32 = 2;

const LUN: [&str; 2] = ["--lun", "0=ram:16MiB"];

#[test]
fn a_file_says_what_to_attach_and_the_command_line_says_otherwise() {
    let world = World::new();
    let target = world.target(LUN);
    let text = format!(
        "url = \"{}\"\nname = \"disk\"\nconnections = 2\ninitiator-name = \"iqn.2026-11.org.example:file\"\n\
         [cache]\npath = \"disk.cache\"\nsize = \"8MiB\"\nclean-above = \"20%\"\nprefetch-lines = \
         true\n[timeout]\ncommand = \"7s\"\n",
        target.url(0)
    );
    fs::write(world.path("disk.toml"), text).unwrap();
    let disk =
        world.start(["attach", "--config", "disk.toml", "--set", "cache.clean-above=30%", "--cache-dirty-max", "60%"]);
    let status = world.status("disk");
    for (key, value) in [
        ("cache.clean-above", "30%"),
        ("cache.dirty-max", "60%"),
        ("cache.prefetch-lines", "true"),
        ("cache.mode", "write-back"),
        ("connections", "2"),
        ("timeout.command", "7s"),
        ("timeout.login", "15s"),
        ("initiator-name", "iqn.2026-11.org.example:file"),
    ] {
        assert_eq!(status["settings"][key], value, "{key}: {}", status["settings"]);
    }
    assert_eq!(status["cache"]["clean_above_percent"], 30, "{}", status["cache"]);
    assert_eq!(status["settings"]["log.durability"], serde_json::Value::Null, "there is no log");
    world.run(["set", "disk", "cache.clean-above=40%", "cache.prefetch-lines=off"]).success();
    let status = world.status("disk");
    assert_eq!(status["settings"]["cache.clean-above"], "40%");
    assert_eq!(status["cache"]["clean_above_percent"], 40);
    assert_eq!(status["cache"]["dirty_max_percent"], 60, "what was not said stays");
    disk.terminate().success();
}

/// The environment is between the two.
#[test]
fn the_environment_says_who_it_is_unless_the_command_line_does() {
    let world = World::new();
    let target = world.target(LUN);
    fs::write(world.path("disk.toml"), "initiator-name = \"iqn.2026-11.org.example:file\"\n").unwrap();
    let name = |more: &[&str], variable: Option<&str>| {
        let mut command = world.forebay();
        command.args(["attach", &target.url(0), "--name", "disk", "--config", "disk.toml"]).args(more);
        if let Some(value) = variable {
            command.env("FOREBAY_INITIATOR_NAME", value);
        }
        let disk = tests::Process::start(&mut command).expect("it attaches");
        let name = world.status("target")["sessions"][0]["initiator_name"].clone();
        disk.terminate().success();
        name
    };
    let by_environment = Some("iqn.2026-11.org.example:environment");
    assert_eq!(name(&[], None), "iqn.2026-11.org.example:file");
    assert_eq!(name(&[], by_environment), "iqn.2026-11.org.example:environment");
    let line = ["--set", "initiator-name=iqn.2026-11.org.example:line"];
    assert_eq!(name(&line, by_environment), "iqn.2026-11.org.example:line");
}

#[test]
fn what_is_no_setting_or_is_said_twice_is_refused_before_anything_is_looked_for() {
    let world = World::new();
    // Nobody is there: what is refused is refused before.
    let url = "iscsi://127.0.0.1:1/iqn.2026-11.org.example:disks/0";
    let refused = |more: &[&str], words: &[&str]| {
        world.run([&["attach", url][..], more].concat()).failure(USAGE, words);
    };
    refused(&["--set", "cache.mod=read-only"], &["\"cache.mod\" is no setting of an attachment", "cache.mode"]);
    refused(&["--set", "cache.path"], &["\"cache.path\" is no KEY=VALUE"]);
    refused(&["--cache", "c", "--set", "cache.path=d"], &["given twice, by --cache and by --set cache.path"]);
    refused(&["--set", "cache.size=1GiB"], &["--set cache.size needs cache.path"]);
    refused(&["--cache-size", "1GiB"], &["--cache-size needs --cache"]);
    refused(&["--set", "reconnect=now"], &["forebay set"]);
    world.run(["attach", url, "--config", "none.toml"]).failure(5, &["none.toml"]);
    let said = world.run(["attach", url, "--set", "chap.password=a-long-secret"]);
    assert!(!said.stderr.contains("a-long-secret"), "{said:?}");
    said.failure(USAGE, &["\"chap.password\" is no setting"]);
    fs::write(world.path("disk.toml"), "[cache]\npth = \"c\"\n").unwrap();
    refused(&["--config", "disk.toml"], &["disk.toml", "\"cache.pth\"", "cache.path"]);
    let said = world.run(["attach", "--set", "name=disk"]);
    assert!(said.code == Some(USAGE) && said.stderr.contains("URL"), "{said:?}");
    fs::write(world.path("empty.toml"), "").unwrap();
    world.run(["attach", "--config", "empty.toml"]).failure(USAGE, &["there is no URL"]);
}

#[test]
fn what_stays_while_it_runs_is_refused_by_set_as_that() {
    let world = World::new();
    let target = world.target(LUN);
    let disk = world.start(["attach", &target.url(0), "--name", "disk", "--cache", "c", "--cache-size", "8MiB"]);
    world.run(["set", "disk", "cache.path=d"]).failure(USAGE, &["cache.path stays as it is", "detach"]);
    world.run(["set", "disk", "cache.mdoe=read-only"]).failure(USAGE, &["is cache.mode"]);
    world.run(["set", "disk", "log.destage-age=9s"]).failure(USAGE, &["has no write log"]);
    world.run(["set", "disk", "cache.cutoff=1MiB", "cache.path=d"]).failure(USAGE, &["nothing was changed"]);
    assert_eq!(world.status("disk")["settings"]["cache.cutoff"], "off");
    disk.terminate().success();
}
