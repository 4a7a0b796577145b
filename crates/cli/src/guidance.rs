//! Guidance for users beyond the flags: examples, environment, exit codes.
//!
//! Tables here become the help, the manual pages and `docs/reference/`; a test parses every example.

use clap::{Command, CommandFactory};
use stack::Failure;

use crate::arguments::Arguments;
use crate::settings_help;

/// What it does, and what to type.
pub type Example = (&'static str, &'static str);

const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "forebay",
        &[
            ("The main job on this machine alone", "forebay demo"),
            (
                "Serve a file as LUN 0",
                "forebay target serve --iqn iqn.2026-11.org.example:disks --lun 0=file:disk.img,size=10GiB",
            ),
            (
                "Attach it through a cache",
                "forebay attach iscsi://127.0.0.1/iqn.2026-11.org.example:disks/0 --cache disk.cache --cache-size 1GiB",
            ),
        ],
    ),
    (
        "forebay demo",
        &[(
            "Both runs shorter, figures as JSON, the report elsewhere",
            "forebay demo --run-time 4s --json --report /tmp/demo.html",
        )],
    ),
    ("forebay target", &[("What a target is doing", "forebay target status --json")]),
    (
        "forebay target serve",
        &[
            (
                "A file, made sparse with this size when it is not there",
                "forebay target serve --iqn iqn.2026-11.org.example:disks --lun 0=file:disk.img,size=10GiB",
            ),
            (
                "A RAM LUN that is as slow as a disk, and a second one with 4 KiB blocks",
                "forebay target serve --iqn iqn.2026-11.org.example:disks --lun 0=ram:1GiB,disk=7200rpm --lun \
                 1=ram:1GiB,block=4096",
            ),
            (
                "For other machines, with CHAP",
                "forebay target serve --portal 0.0.0.0:3260 --allow-remote --iqn iqn.2026-11.org.example:disks \
                 --lun 0=file:disk.img --chap-user alice --chap-file alice.secret",
            ),
            (
                "Several targets, with metrics for Prometheus",
                "forebay target serve --config target.toml --metrics 127.0.0.1:9860",
            ),
        ],
    ),
    (
        "forebay target reload",
        &[
            ("After a change of the file that `target serve --config` was given", "forebay target reload"),
            ("A target with a name of its own", "forebay target reload disks --json"),
        ],
    ),
    ("forebay target check", &[("Before a reload", "forebay target check target.toml")]),
    ("forebay target status", &[("As JSON", "forebay target status --json")]),
    ("forebay discover", &[("Port 3260 is the default", "forebay discover 192.0.2.7")]),
    (
        "forebay inquiry",
        &[(
            "Size, blocks and identity as JSON",
            "forebay inquiry --json iscsi://192.0.2.7/iqn.2026-11.org.example:disks/0",
        )],
    ),
    ("forebay locks", &[("Who shares it", "forebay locks iscsi://192.0.2.7/iqn.2026-11.org.example:disks/0")]),
    (
        "forebay locks fence",
        &[(
            "A host that hangs, so that others go on at once",
            "forebay locks fence 3.12 iscsi://192.0.2.7/iqn.2026-11.org.example:disks/0",
        )],
    ),
    (
        "forebay attach",
        &[
            (
                "Through a write-back cache, made now, for anything that speaks NBD",
                "forebay attach iscsi://192.0.2.7/iqn.2026-11.org.example:disks/0 --name disk --cache \
                 /var/cache/disk.cache --cache-size 10GiB --as nbd:unix:/run/disk.nbd",
            ),
            (
                "Beside other caches in one disk",
                "forebay attach iscsi://192.0.2.7/iqn.2026-11.org.example:disks/0 --name disk --cache \
                 /dev/disk/by-id/nvme-1 --cache-size 10GiB --set cache.offset=10GiB",
            ),
            (
                "Again, with the same cache",
                "forebay attach iscsi://192.0.2.7/iqn.2026-11.org.example:disks/0 --name disk --cache \
                 /var/cache/disk.cache",
            ),
            (
                "Through a write log: small synchronous writes at the speed of a local disk",
                "forebay attach iscsi://192.0.2.7/iqn.2026-11.org.example:disks/0 --name disk --log \
                 /var/cache/disk.log --log-size 1GiB",
            ),
            (
                "Through a write log that gives way to applications until it is half full or its data a minute old",
                "forebay attach iscsi://192.0.2.7/iqn.2026-11.org.example:disks/0 --name disk --log \
                 /var/cache/disk.log --set log.destage-start=50% --set log.destage-age=60s",
            ),
            (
                "Two LUNs of two targets as one, 64 KiB on each in turn",
                "forebay attach iscsi://san1/iqn.2026-11.org.example:a/0,iscsi://san2/iqn.2026-11.org.example:b/0 \
                 --stripe 64KiB --name wide",
            ),
            (
                "One LUN by two portals, a request to each in turn",
                "forebay attach iscsi://san1/iqn.2026-11.org.example:a/0,iscsi://san2/iqn.2026-11.org.example:a/0 \
                 --multipath round-robin --name disk",
            ),
            (
                "At boot, when the target may not be there yet",
                "forebay attach iscsi://192.0.2.7/iqn.2026-11.org.example:disks/0 --name disk --wait",
            ),
            (
                "Now and after each start of the system, by the daemon",
                "forebay attach iscsi://192.0.2.7/iqn.2026-11.org.example:disks/0 --name disk --persist",
            ),
            (
                "Without a cache, with CHAP, read-only",
                "forebay attach iscsi://alice@192.0.2.7/iqn.2026-11.org.example:disks/0 --chap-file alice.secret \
                 --read-only",
            ),
        ],
    ),
    (
        "forebay detach",
        &[
            ("Write everything dirty back first", "forebay detach disk"),
            ("At once; the data stays dirty in the cache", "forebay detach disk --keep-dirty"),
            ("For good: the daemon does not start it any more", "forebay detach disk --forget"),
            ("The daemon alone; its attachments go on", "forebay detach daemon"),
        ],
    ),
    (
        "forebay daemon",
        &[
            ("Keep what `attach --persist` and files in the usual directory name", "forebay daemon"),
            ("Files in a directory of your own", "forebay daemon --directory attachments"),
            ("What it keeps, and how that is", "forebay status daemon"),
        ],
    ),
    ("forebay daemon reload", &[("After a change of a file", "forebay daemon reload")]),
    ("forebay daemon start", &[("What was detached, or has failed", "forebay daemon start disk")]),
    (
        "forebay status",
        &[
            ("Everything that runs on this host", "forebay status"),
            ("One of it, part by part", "forebay status disk"),
            ("All that is known of it, as JSON", "forebay status disk --json"),
            ("In a script, until what was started in the background serves", "forebay status disk --wait 10s"),
        ],
    ),
    (
        "forebay top",
        &[
            ("Until Ctrl-C", "forebay top"),
            ("In a script, and in a pipe", "forebay top --once"),
            ("Numbers for a program", "forebay top --once --json"),
        ],
    ),
    (
        "forebay events",
        &[
            ("What happened on this host", "forebay events"),
            ("To one attachment, now and from now on", "forebay events disk --follow"),
            ("For a program that watches", "forebay events --follow --json"),
        ],
    ),
    (
        "forebay flush",
        &[
            ("Before the power is taken away", "forebay flush disk"),
            ("In a script: where it is durable, and how much of it is dirty there", "forebay flush disk --json"),
        ],
    ),
    ("forebay clean", &[("Before a snapshot at the target", "forebay clean disk")]),
    (
        "forebay set",
        &[
            ("Clean, then stop keeping anything dirty", "forebay set disk cache.mode=write-through"),
            ("Look at once for a target that is away", "forebay set disk reconnect=now"),
            ("Stop imitating a disk", "forebay set target lun.0.disk=off"),
        ],
    ),
    ("forebay log", &[("Whose log it is, and how much is dirty", "forebay log inspect disk.log")]),
    ("forebay log list", &[("With their LUNs, as JSON", "forebay log list --json")]),
    ("forebay log inspect", &[("As JSON", "forebay log inspect disk.log --json")]),
    (
        "forebay log check",
        &[("Exit code 7 when there is damage, with the bytes it is in", "forebay log check disk.log")],
    ),
    (
        "forebay log replay",
        &[(
            "After a crash, without attaching",
            "forebay log replay disk.log iscsi://192.0.2.7/iqn.2026-11.org.example:disks/0",
        )],
    ),
    ("forebay log discard", &[("Asks when data would be lost", "forebay log discard disk.log")]),
    ("forebay cache", &[("Whose cache it is, and how much is dirty", "forebay cache inspect disk.cache")]),
    (
        "forebay cache list",
        &[
            ("With their LUNs and what is dirty, as JSON", "forebay cache list --json"),
            ("And what they have to do, measured for two seconds", "forebay cache list --load 2"),
            ("Without those whose files were removed", "forebay cache list --prune"),
        ],
    ),
    ("forebay cache move", &[("From a cache that has too much", "forebay cache move 2GiB --from disk --to database")]),
    ("forebay cache inspect", &[("As JSON", "forebay cache inspect disk.cache --json")]),
    ("forebay cache check", &[("Exit code 7 when there is damage", "forebay cache check disk.cache")]),
    (
        "forebay cache discard",
        &[
            ("Asks when data would be lost", "forebay cache discard disk.cache"),
            (
                "What a logical unit that was made smaller has no room for",
                "forebay cache discard disk.cache --beyond-end",
            ),
            ("One of several in a disk", "forebay cache discard /dev/disk/by-id/nvme-1 --cache-offset 10GiB"),
        ],
    ),
    (
        "forebay bench",
        &[
            ("An attachment, random reads", "forebay bench disk --rw randread --bs 4KiB --depth 8 --seconds 5"),
            (
                "A LUN without a cache, writes over a link of 10 ms",
                "forebay bench iscsi://192.0.2.7/iqn.2026-11.org.example:scratch/0 --rw randwrite --link-round-trip \
                 10ms --allow-data-loss",
            ),
        ],
    ),
    ("forebay lab", &[("What there is to run", "forebay lab list")]),
    ("forebay lab list", &[("As JSON", "forebay lab list --json")]),
    (
        "forebay lab run",
        &[
            (
                "On this machine; as root, in network namespaces with frames of different sizes",
                "forebay lab run multi-throughput",
            ),
            ("Over models of the paper's machines", "forebay lab run queue-depth --clock virtual"),
            ("PostMark on a LUN, as root; without --quick it takes hours", "forebay lab run icache-postmark --quick"),
        ],
    ),
    ("forebay lab report", &[("One page with all figures", "forebay lab report --out forebay-lab")]),
    (
        "forebay mount",
        &[
            (
                "Until `umount` or `forebay detach`",
                "forebay mount iscsi://192.0.2.7/iqn.2026-11.org.example:disks/0 /mnt/data",
            ),
            ("Look at what an image holds", "forebay mount disk.img /mnt/data --read-only --name look"),
        ],
    ),
    (
        "forebay mkfs",
        &[
            ("An attachment", "forebay mkfs disk --label data"),
            (
                "A LUN that holds something, for many small files",
                "forebay mkfs iscsi://192.0.2.7/iqn.2026-11.org.example:disk/0 --bytes-per-inode 4KiB --allow-data-loss",
            ),
        ],
    ),
    (
        "forebay replay",
        &[
            ("The first 10,000 requests, eight in flight", "forebay replay trace.csv disk --depth 8 --requests 10000"),
            ("What a trace needs", "forebay replay trace.csv.zst --dry-run"),
            ("At its own pace, on a smaller disk", "forebay replay trace.csv disk --pace recorded --rebase"),
        ],
    ),
];

/// Environment variables and what they mean.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "FOREBAY_RUNTIME_DIR",
        "absolute path of the directory of control sockets and default NBD sockets; default /run/forebay for root, \
         else $XDG_RUNTIME_DIR/forebay, else forebay-UID in the temporary directory",
    ),
    (
        "FOREBAY_STATE_DIR",
        "absolute path of the directory of the registry of dirty caches, of the locks on logical units in use and of \
         sidecars of block devices; default /var/lib/forebay for root, else $XDG_STATE_HOME/forebay, else \
         ~/.local/state/forebay",
    ),
    (
        "FOREBAY_CONFIG_DIR",
        "absolute path of the directory of the files of `forebay daemon`, one for each attachment; default \
         /etc/forebay for root, else $XDG_CONFIG_HOME/forebay, else ~/.config/forebay",
    ),
    ("FOREBAY_CHAP_PASSWORD", "CHAP secret of the user in the URL or --chap-user, where there is no --chap-file"),
    ("FOREBAY_MUTUAL_CHAP_PASSWORD", "CHAP secret of --mutual-chap-user, where there is no --mutual-chap-file"),
    ("FOREBAY_INITIATOR_NAME", "the initiator's name, where there is no --initiator-name"),
    ("FOREBAY_LOG", "what is logged to standard error, as a tracing filter (`info`, `cache=debug`); wins over -v"),
    ("LISTEN_FDS", "set by the service manager: sockets to serve on instead of the portals (sd_listen_fds(3))"),
    (
        "NOTIFY_SOCKET",
        "set by the service manager: where `target serve`, `attach` and `daemon` say how they are (sd_notify(3))",
    ),
    (
        "FOREBAY_END_NOTE",
        "set by `forebay daemon`: the file in which `attach` notes how it ended, for a daemon that is not its parent",
    ),
    (
        "FOREBAY_UNSAFE_PANIC_IN",
        "for tests: NAME:PATH ends the process as a defect in the background work NAME would, once there is a file at \
         PATH",
    ),
    (
        "FOREBAY_UNSAFE_SHARED_WRITE_BACK",
        "for tests: a cache of a shared logical unit may delay writes, with the faults that docs/protocol/sharing.md \
         names",
    ),
];

/// The examples of the command with this full name (`forebay cache check`).
pub fn examples(name: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(command, _)| *command == name).map_or(&[], |(_, examples)| *examples)
}

/// A long command line over several lines, broken before options as a shell takes it.
pub fn wrapped(line: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for (index, part) in line.split(" --").enumerate() {
        let part = if index == 0 { part.to_owned() } else { format!("--{part}") };
        if index > 0 && column + part.len() > EXAMPLE_COLUMNS {
            text.push_str(" \\\n    ");
            column = 4;
        } else if index > 0 {
            text.push(' ');
        }
        column += part.len() + 1;
        text.push_str(&part);
    }
    text
}

/// Width of an example: with its indent and the backslash it fits a terminal of 100 columns.
const EXAMPLE_COLUMNS: usize = 90;

/// Every exit code with its meaning.
pub fn exit_codes() -> impl Iterator<Item = (u8, &'static str)> {
    std::iter::once((0, "success"))
        .chain(Failure::ALL.into_iter().map(|failure| (failure.exit_code(), failure.meaning())))
}

/// The command line with its guidance: what the parser, the help and every generated page are made of.
pub fn command() -> Command {
    with_examples(Arguments::command(), "forebay")
        .after_long_help(root_guidance())
        .mut_subcommand("attach", with_settings)
        .mut_subcommand("set", |command| {
            let text = format!("{}\n\n{}", settings_help::live_in_words(), examples_in_words(examples("forebay set")));
            command.after_help(text)
        })
}

/// Of the many examples and settings of `attach`, `--help` has a few, and `--help-all` every one.
fn with_settings(command: Command) -> Command {
    let all = examples("forebay attach");
    let few = examples_in_words(&all[..ATTACH_EXAMPLES.min(all.len())]);
    let more = "All settings and more examples: --help-all; sizes like 64KiB or 10GiB, times like 8.5ms or 2s.";
    let long = format!("{}\n\n{}", settings_help::in_words(), examples_in_words(all));
    command.after_help(format!("{few}\n\n{more}")).after_long_help(long)
}

/// Examples in `attach --help`.
const ATTACH_EXAMPLES: usize = 2;

fn with_examples(command: Command, name: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = names.iter().fold(command, |command, sub| {
        command.mut_subcommand(sub, |command| with_examples(command, &format!("{name} {sub}")))
    });
    match examples(name) {
        [] => command,
        examples => command.after_help(examples_in_words(examples)),
    }
}

fn examples_in_words(examples: &[Example]) -> String {
    let comment = textwrap::Options::new(EXAMPLE_COLUMNS).initial_indent("  # ").subsequent_indent("  # ");
    let in_words = |(says, line): &Example| {
        format!("{}\n  {}", textwrap::fill(says, &comment), wrapped(line).replace('\n', "\n  "))
    };
    let lines: Vec<String> = examples.iter().map(in_words).collect();
    format!("Examples:\n{}", lines.join("\n"))
}

fn root_guidance() -> String {
    let mut text = examples_in_words(examples("forebay"));
    text.push_str(
        "\n\nSizes: 512, 64KiB, 10GiB (KiB, MiB, GiB, TiB are powers of two). Durations: 100us, 8.5ms, \
         2s.\n\nEnvironment:\n",
    );
    for (name, meaning) in ENVIRONMENT {
        text.push_str(&format!("  {name}\n      {meaning}\n"));
    }
    text.push_str("\nExit codes:\n");
    for (code, meaning) in exit_codes() {
        text.push_str(&format!("  {code:>2}  {meaning}\n"));
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Full names of all commands that people see.
    fn names(command: &Command, name: &str) -> Vec<String> {
        let subs = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let below = subs.flat_map(|sub| names(sub, &format!("{name} {}", sub.get_name())));
        std::iter::once(name.to_owned()).chain(below).collect()
    }

    #[test]
    fn every_command_has_an_example_and_every_example_a_command() {
        let mut expected = names(&command(), "forebay");
        let mut there: Vec<String> = EXAMPLES.iter().map(|(name, _)| (*name).to_owned()).collect();
        expected.sort();
        there.sort();
        assert_eq!(expected, there);
    }

    /// The help is wrapped where a line is longer, and what was one argument is two when it is pasted.
    #[test]
    fn no_line_of_an_example_is_wrapped_by_a_terminal() {
        let texts = EXAMPLES.iter().map(|(_, examples)| examples_in_words(examples));
        for line in texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()) {
            assert!(line.len() <= 100, "{} columns: {line}", line.len());
        }
    }

    /// The most needed options only: users do not read more than two screens.
    #[test]
    fn the_help_of_attach_fits_sixty_lines() {
        let mut root = command().term_width(100);
        root.build();
        let attach = root.find_subcommand_mut("attach").expect("it is a command");
        let help = attach.render_help().to_string();
        assert!(help.lines().count() <= 60, "{} lines:\n{help}", help.lines().count());
        for word in ["--cache-size", "--set", "--config", "--help-all"] {
            assert!(help.contains(word), "{word}: {help}");
        }
        assert!(!help.contains("--cache-cutoff"), "{help}");
        let all = attach.render_long_help().to_string();
        assert!(all.contains("cache.cutoff=SIZE"), "{all}");
    }

    /// Options of their own, which the help does not name any more.
    #[test]
    fn every_setting_is_an_option_of_attach() {
        for setting in stack::settings::table::rows() {
            for flag in setting.flag.into_iter().chain(setting.old_flag) {
                let line = ["forebay", "attach", "iscsi://h/iqn.a:b/0"];
                let plain = command().try_get_matches_from(line.into_iter().chain([&*format!("--{flag}")]));
                let with_value = command().try_get_matches_from(line.into_iter().chain([&*format!("--{flag}=1")]));
                assert!(plain.is_ok() || with_value.is_ok(), "--{flag}");
            }
        }
    }

    #[test]
    fn every_example_is_a_command_line() {
        for (says, line) in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            command().try_get_matches_from(line.split_whitespace()).unwrap_or_else(|error| panic!("{says}: {error}"));
        }
    }
}
