//! The documentation is true: its examples run, its generated pages are what the binary prints, its links lead
//! somewhere.
//!
//! Of the README, the tutorial and every guide, the blocks tagged `sh` run one after the other in one bash, in a world
//! of their own. Changed are only the portal, `127.0.0.1:3260`, that of a target for other hosts, `192.0.2.7:3260`, and
//! that of a gateway, `127.0.0.1:3261`, which become free ports of the loopback; and each command in the background is
//! noted, since one that ends with an error is one that the page should not say. Blocks tagged `console` or `text` are
//! shown and not run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use tests::{World, finish, forebay_binary};

/// The portal that the pages use.
const PORTAL: &str = "127.0.0.1:3260";
/// The portal of a target that other hosts use.
const REMOTE_PORTAL: &str = "192.0.2.7:3260";
/// The address of the gateway that a page makes.
const GATEWAY: &str = "127.0.0.1:3261";
/// Longest run of one page; some measure for a few seconds.
const PAGE_SECONDS_MAX: &str = "150";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace is there")
}

/// Every Markdown page of the project.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = markdown_in(&root());
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        pages.extend(markdown_in(&folder));
        folders.extend(entries(&folder).into_iter().filter(|path| path.is_dir()));
    }
    pages.sort();
    assert!(pages.len() > 20, "pages are missing: {pages:?}");
    pages
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("the folder is there").map(|entry| entry.expect("it can be read").path()).collect()
}

fn markdown_in(folder: &Path) -> Vec<PathBuf> {
    entries(folder).into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A page taken apart: the lines of its `sh` blocks, and its prose.
#[derive(Default)]
struct Parts {
    shell: String,
    prose: String,
}

fn parts(path: &Path) -> Parts {
    let mut parts = Parts::default();
    let mut block: Option<String> = None;
    for line in read(path).lines() {
        match (line.strip_prefix("```"), &block) {
            (Some(tag), None) => {
                let is_known = ["sh", "console", "text", "json", "toml", "rust"].contains(&tag);
                assert!(is_known, "{}: a block tagged \"{tag}\": is it to be run (sh) or not (text)?", path.display());
                block = Some(tag.to_owned());
            }
            (Some(_), Some(_)) => block = None,
            (None, Some(tag)) if tag == "sh" => parts.shell.extend([line, "\n"]),
            (None, Some(_)) => {}
            (None, None) => parts.prose.extend([line, "\n"]),
        }
    }
    assert!(block.is_none(), "{}: a block does not end", path.display());
    parts
}

fn free_portal() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("the loopback has a free port");
    listener.local_addr().expect("it is bound").to_string()
}

/// Puts a program into the world's own `bin`.
fn install(world: &World, name: &str, text: &str) {
    let path = world.path("bin").join(name);
    fs::write(&path, text).expect("the world can be written to");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

/// How to become root without being asked, if that is possible: the pages say `sudo`.
fn sudo() -> Option<&'static str> {
    if rustix::process::geteuid().is_root() {
        return Some("exec \"$@\"");
    }
    let is_allowed = Command::new("sudo").args(["-n", "true"]).output().is_ok_and(|output| output.status.success());
    is_allowed.then_some("exec /usr/bin/sudo -n \"$@\"")
}

/// The script, which fails at its end when a command in the background has ended with an error. One that the page
/// killed is none of these.
fn with_jobs_checked(script: &str) -> String {
    let noted = script.lines().map(|line| match line.strip_suffix(" &") {
        Some(command) => format!("{line}\nbackground+=(\"$!:\"{})\n", shell_word(command)),
        None => format!("{line}\n"),
    });
    let check = "
        for job in \"${background[@]}\"; do
            kill -0 \"${job%%:*}\" 2>/dev/null && continue
            code=0
            wait \"${job%%:*}\" 2>/dev/null || code=$?
            [ \"$code\" -eq 0 ] || [ \"$code\" -ge 127 ] || { echo \"exit code $code of: ${job#*:}\" >&2; exit 1; }
        done
    ";
    format!("background=()\n{}{check}", noted.collect::<String>())
}

/// The text as one word of a shell.
fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[test]
fn a_command_in_the_background_that_fails_fails_its_page() {
    let run = |script: &str| {
        finish(Command::new("bash").args(["-c", &format!("set -euo pipefail\n{}", with_jobs_checked(script))]))
    };
    run("sh -c 'exit 6' &\nsleep 0.5\ntrue\n").failure(1, &["exit code 6 of: sh -c 'exit 6'"]);
    run("true &\nsleep 60 &\nkill $!\nwait $! || true\n").success();
    run("echo none\n").success();
}

/// Runs the blocks of the page.
#[track_caller]
fn run_page(page: &str) {
    let shell = parts(&root().join(page)).shell;
    // The port of the loopback that it becomes would need no option.
    let mut remote = shell.lines().filter(|line| line.contains("target serve") && line.contains(REMOTE_PORTAL));
    assert!(remote.all(|line| line.contains("--allow-remote")), "{page}: a target for others that lets none in");
    let script = [PORTAL, REMOTE_PORTAL, GATEWAY]
        .into_iter()
        .fold(shell, |script, address| script.replace(address, &free_portal()));
    assert!(!script.is_empty(), "{page} has nothing to run");
    let world = World::new();
    fs::create_dir(world.path("bin")).expect("the world can be written to");
    fs::create_dir(world.path("work")).expect("the world can be written to");
    std::os::unix::fs::symlink(forebay_binary(), world.path("bin/forebay")).expect("the world can be written to");
    match sudo() {
        Some(sudo) => install(&world, "sudo", &format!("#!/bin/sh\n{sudo}\n")),
        None if script.contains("sudo ") => {
            println!("skipped: {page} needs root for losetup and mount, and `sudo -n` does not give it");
            return;
        }
        None => {}
    }
    // Whatever happens, nothing stays mounted or running.
    let tidy = "trap '
        code=$?
        set +e
        mountpoint -q files 2>/dev/null && sudo umount files
        [ -z \"${loop:-}\" ] || sudo losetup --detach \"$loop\" 2>/dev/null
        [ ! -e export ] || sudo umount export 2>/dev/null
        jobs -p | xargs -r kill 2>/dev/null
        exit $code
    ' EXIT\n";
    let mut command = Command::new("timeout");
    command
        .args([
            "--kill-after=10",
            PAGE_SECONDS_MAX,
            "bash",
            "-c",
            &format!("set -euo pipefail\n{tidy}{}", with_jobs_checked(&script)),
        ])
        .current_dir(world.path("work"))
        .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", world.path("bin").display()))
        .env("FOREBAY_RUNTIME_DIR", world.path("run"))
        .env("FOREBAY_STATE_DIR", world.path("state"))
        // Nobody who types a page has it set.
        .env_remove("FOREBAY_CONFIG_DIR")
        .env_remove("FOREBAY_CHAP_PASSWORD");
    let finished = finish(&mut command);
    assert_eq!(finished.code, Some(0), "{page}:\n{}\n{}", finished.stdout, finished.stderr);
}

#[test]
fn the_readme_runs() {
    run_page("README.md");
}

#[test]
fn the_tutorial_runs() {
    run_page("docs/tutorial.md");
}

#[test]
fn the_guide_to_virtual_machines_runs() {
    run_page("docs/guides/virtual-machine.md");
}

#[test]
fn the_guide_to_local_disks_runs() {
    run_page("docs/guides/local-disk.md");
}

#[test]
fn the_guide_to_gateways_runs() {
    run_page("docs/guides/gateway.md");
}

#[test]
fn the_guide_to_shared_luns_runs() {
    run_page("docs/guides/shared-lun.md");
}

#[test]
fn the_guide_to_mounts_runs() {
    run_page("docs/guides/mount.md");
}

#[test]
fn the_guide_to_recovery_runs() {
    run_page("docs/guides/recovery.md");
}

#[test]
fn the_guide_to_serving_runs() {
    run_page("docs/guides/serving.md");
}

#[test]
fn the_guide_to_measuring_runs() {
    run_page("docs/guides/measuring.md");
}

#[test]
fn the_guide_to_several_paths_and_luns_runs() {
    run_page("docs/guides/several.md");
}

#[test]
fn the_guide_to_write_logs_runs() {
    run_page("docs/guides/write-log.md");
}

#[test]
fn the_guide_to_the_daemon_runs() {
    run_page("docs/guides/daemon.md");
}

#[test]
fn the_guide_to_systemd_runs() {
    run_page("docs/guides/systemd.md");
}

/// A new guide gets a test above.
#[test]
fn every_guide_is_run() {
    let this = read(&root().join("tests/tests/documentation.rs"));
    for guide in markdown_in(&root().join("docs/guides")) {
        let name = guide.file_name().expect("it is a file").to_string_lossy().into_owned();
        assert!(this.contains(&format!("run_page(\"docs/guides/{name}\")")), "{name} is not run");
    }
}

#[test]
fn generated_pages_are_what_the_binary_prints() {
    let world = World::new();
    world.run(["generate", "reference", "made"]).success();
    for made in entries(&world.path("made")) {
        let name = made.file_name().expect("it is a file").to_string_lossy().into_owned();
        let kept = root().join("docs/reference").join(&name);
        assert!(
            read(&made) == fs::read_to_string(kept).unwrap_or_default(),
            "docs/reference/{name} is not what the binary prints; `make build` and then \
             `target/release/forebay generate reference docs/reference` write it anew"
        );
    }
}

#[test]
fn manual_pages_are_without_warnings() {
    let world = World::new();
    world.run(["generate", "man", "man"]).success();
    let pages = entries(&world.path("man"));
    assert!(pages.iter().any(|page| page.ends_with("forebay-cache-discard.1")), "{pages:?}");
    for page in pages {
        let text = read(&page);
        for section in [".SH EXAMPLES", ".SH ENVIRONMENT", ".SH \"EXIT STATUS\"", ".SH \"SEE ALSO\""] {
            assert_eq!(text.matches(section).count(), 1, "{section} in {}", page.display());
        }
    }
}

/// The targets of the Markdown links in `prose`.
fn links(prose: &str) -> impl Iterator<Item = &str> {
    prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
}

/// By the oldest systemd that is supported, where this runs on it: what that does not know it says, and goes on
/// without.
#[test]
fn the_units_are_understood_by_systemd() {
    let world = World::new();
    for name in ["forebay-target.service", "forebay-target.socket", "forebay-attach@.service", "forebay.service"] {
        let unit = read(&root().join("docs/systemd").join(name)).replace("/usr/bin/forebay", "/bin/true");
        fs::write(world.path(name), unit).expect("the world can be written to");
    }
    // A template is verified as one of its instances.
    let units =
        ["forebay-target.service", "forebay-attach@disk.service", "forebay.service"].map(|name| world.path(name));
    let finished = finish(Command::new("systemd-analyze").arg("verify").args(&units));
    let said: Vec<&str> = finished.stderr.lines().filter(|line| line.contains("forebay-")).collect();
    assert!(said.is_empty(), "{said:?}");
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let prose = parts(&page).prose;
        for link in links(&prose).filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let folder = page.parent().expect("a page is in a folder");
            let target = if path.is_empty() { page.clone() } else { folder.join(path) };
            let is_there = target.exists() && !leaves(&root(), &target);
            if !is_there || !(anchor.is_empty() || has_heading(&target, anchor)) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Whether a path, `..` and all, leads out of `root`.
fn leaves(root: &Path, path: &Path) -> bool {
    let mut depth = 0_i32;
    for component in path.strip_prefix(root).expect("pages are below the root").components() {
        depth += if component == Component::ParentDir { -1 } else { 1 };
        if depth < 0 {
            return true;
        }
    }
    false
}

fn has_heading(page: &Path, anchor: &str) -> bool {
    let as_anchor = |heading: &str| {
        let kept = heading.trim().to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect::<String>()
    };
    read(page).lines().any(|line| line.starts_with('#') && as_anchor(line.trim_start_matches('#')) == anchor)
}

/// A page for everybody names nothing of the machine it was written on.
#[test]
fn no_page_names_private_paths() {
    let home = std::env::var("HOME").unwrap_or_default();
    let here = root().display().to_string();
    for page in pages() {
        let text = read(&page);
        for private in ["/root/", "/home/", "/work/", here.as_str(), home.as_str()] {
            let is_named = private.len() > 1 && text.contains(private);
            assert!(!is_named, "{} names {private}", page.display());
        }
    }
}

/// Words like names of tests that pages use for something else.
const NO_TESTS: &[&str] = &["io_uring_enter", "bytes_read_checked", "longest_lease_ms", "may_lack_writes"];
/// These name keys and metrics; other tests hold them against what runs.
const PAGES_OF_KEYS: &[&str] = &["status.md", "metrics.md", "commands.md"];

/// Every test, and every behaviour of the conformance suite, that a page cites is there.
#[test]
fn every_cited_test_exists() {
    let sources = sources();
    let (mut missing, mut count) = (Vec::new(), 0);
    for page in pages().iter().filter(|page| !PAGES_OF_KEYS.iter().any(|keys| page.ends_with(keys))) {
        for name in tests_named_in(&parts(page).prose).into_iter().filter(|name| !NO_TESTS.contains(name)) {
            count += 1;
            let behaviour = root().join("conformance/src/behaviours").join(format!("{name}.rs"));
            if !sources.contains(&format!("fn {name}(")) && !behaviour.exists() {
                missing.push(format!("{}: {name}", page.display()));
            }
        }
    }
    assert!(count > 600, "{count} names are found");
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Names of tests in a page: sentences, which are words joined by at least two underscores, set as code.
fn tests_named_in(page: &str) -> Vec<&str> {
    let is_name = |word: &&str| {
        word.matches('_').count() >= 2 && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    page.split('`').skip(1).step_by(2).filter(is_name).collect()
}

/// All Rust source of the project.
fn sources() -> String {
    let mut folders: Vec<PathBuf> = ["crates", "tests", "sim"].map(|folder| root().join(folder)).into();
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&read(&path));
            }
        }
    }
    text
}

/// A bound whose test was renamed or lost is a bound without a test.
#[test]
fn every_test_that_the_page_of_limits_names_is_there() {
    let page = read(&root().join("docs/concepts/limits.md"));
    let names = tests_named_in(&page);
    assert!(names.len() > 50, "{} names are found", names.len());
    let sources = sources();
    let missing: Vec<_> = names.iter().filter(|name| !sources.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

#[test]
fn every_row_of_the_page_of_limits_names_a_test_or_says_why_there_is_none() {
    let page = read(&root().join("docs/concepts/limits.md"));
    let rows = page.lines().filter(|line| line.starts_with('|') && !line.starts_with("|--"));
    let is_bare = |row: &&str| row.trim_end_matches('|').rsplit('|').next().is_none_or(|cell| cell.trim().is_empty());
    let bare: Vec<_> = rows.filter(is_bare).collect();
    assert!(bare.is_empty(), "no test, and no reason: {bare:#?}");
}
