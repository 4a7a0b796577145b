use std::collections::BTreeSet;

use block::layer::multipath::Policy;
use cache::{Admission, CrashMode, Mode, Replacement};
use writelog::{DestageOrder, Durability};

use super::*;

fn given(all: &[(&str, &str, Origin)]) -> Result<Settings> {
    let mut settings = Settings::default();
    for (key, text, origin) in all {
        settings.give(key, OsStr::new(text), origin.clone())?;
    }
    settings.check().map(|()| settings)
}

fn refused(all: &[(&str, &str, Origin)]) -> String {
    let error = given(all).map(drop).unwrap_err();
    assert_eq!(error.failure(), Failure::Usage);
    error.to_string()
}

const FLAG: Origin = Origin::Flag("cache-size");

#[test]
fn no_key_and_no_flag_stands_twice_in_the_table_and_no_key_is_the_beginning_of_another() {
    let mut names = BTreeSet::new();
    for setting in rows() {
        assert!(names.insert(setting.key), "{}", setting.key);
        let below = format!("{}.", setting.key);
        assert!(!rows().any(|other| other.key.starts_with(&below)), "{} is a table of a file, too", setting.key);
    }
    let mut flags = BTreeSet::new();
    for flag in rows().flat_map(|setting| setting.flag.into_iter().chain(setting.old_flag)) {
        assert!(flags.insert(flag), "--{flag}");
    }
}

#[test]
fn every_row_is_whole() {
    for setting in rows() {
        let key = setting.key;
        if let Unset::Value(text) = setting.unset {
            assert!(setting.kind.parse(OsStr::new(text)).is_ok(), "{key}: its default is none of its values");
        }
        for needed in setting.needs {
            find(needed).unwrap();
        }
        assert!(!setting.help.ends_with('.') && setting.help.len() <= 120, "{key}: the help is one line");
        assert!(setting.more.is_empty() || setting.more.ends_with('.'), "{key}: the rest is sentences");
    }
}

#[test]
fn every_word_of_a_choice_stands_for_something_and_there_are_no_others() {
    fn check<T: FromStr<Err: Display>>(key: &str, count: usize) {
        let kind::Kind::Choice(words) = row(key).kind else { panic!("{key} is no choice") };
        assert_eq!(words.len(), count, "{key}");
        for word in words {
            assert!(word.parse::<T>().is_ok(), "{key}={word}");
        }
    }
    check::<Mode>("cache.mode", Mode::ALL.len());
    check::<CrashMode>("cache.crash", CrashMode::ALL.len());
    check::<Replacement>("cache.replacement", Replacement::ALL.len());
    check::<Admission>("cache.admission", 2);
    check::<Durability>("log.durability", 3);
    check::<DestageOrder>("log.destage-order", 3);
    let kind::Kind::Choice(policies) = row("multipath").kind else { panic!("it is a choice") };
    assert_eq!(policies, [Policy::Failover, Policy::RoundRobin].map(Policy::as_str));
}

#[test]
fn the_command_line_wins_over_the_environment_and_that_over_a_file() {
    let file = || Origin::File(FilePlace { path: "disk.toml".into(), line: 3 });
    let environment = || Origin::Environment("FOREBAY_INITIATOR_NAME");
    let key = "initiator-name";
    let all = [(key, "iqn.a:line", Origin::Set), (key, "iqn.a:env", environment()), (key, "iqn.a:file", file())];
    assert_eq!(given(&all).unwrap().text(key).as_deref(), Some("iqn.a:line"));
    assert_eq!(given(&all[1..]).unwrap().text(key).as_deref(), Some("iqn.a:env"));
    assert_eq!(given(&all[2..]).unwrap().text(key).as_deref(), Some("iqn.a:file"));
    let mut reversed = all.clone();
    reversed.reverse();
    assert_eq!(given(&reversed).unwrap().text(key).as_deref(), Some("iqn.a:line"));
    assert_eq!(given(&[]).unwrap().text(key), None);
}

#[test]
fn what_is_said_twice_on_the_command_line_or_in_a_file_is_refused_by_both_names() {
    let path = ("cache.path", "c", Origin::Set);
    let words = refused(&[path.clone(), ("cache.size", "1GiB", FLAG), ("cache.size", "2GiB", Origin::Set)]);
    assert_eq!(words, "cache.size is given twice, by --cache-size and by --set cache.size");
    let file = Origin::File(FilePlace { path: "disk.toml".into(), line: 3 });
    let words = refused(&[path, ("cache.size", "1GiB", file.clone()), ("cache.size", "1GiB", file)]);
    assert!(words.contains("disk.toml, line 3: cache.size"), "{words}");
}

#[test]
fn a_key_that_is_none_is_refused_with_the_near_ones_and_without_its_value() {
    for (key, near) in [
        ("cache.mod", "cache.mode"),
        ("cache-mode", "cache.mode"),
        ("log.mode", "cache.mode"),
        ("cash.mode", "cache.mode"),
        ("destage-age", "log.destage-age"),
        ("replacement-timeout", "timeout.replacement"),
    ] {
        let words = refused(&[(key, "secret", Origin::Set)]);
        assert!(words.contains(&format!("\"{key}\" is no setting")), "{words}");
        assert!(words.contains(near), "{words}");
        assert!(!words.contains("secret"), "{words}");
    }
    let words = refused(&[("chap.password", "a-long-secret", Origin::Set)]);
    assert!(!words.contains("a-long-secret"), "{words}");
    assert!(refused(&[("zzzzzz", "1", Origin::Set)]).contains("--help-all"));
}

#[test]
fn what_needs_something_else_is_refused_without_it_in_the_words_of_who_said_it() {
    assert_eq!(refused(&[("cache.size", "1GiB", FLAG)]), "--cache-size needs --cache");
    assert_eq!(refused(&[("cache.size", "1GiB", Origin::Set)]), "--set cache.size needs cache.path");
    let words = refused(&[("generation", "1", Origin::Set)]);
    assert_eq!(words, "--set generation needs cache.path or difference.path");
    assert!(given(&[("generation", "1", Origin::Set), ("difference.path", "d", Origin::Set)]).is_ok());
    assert!(refused(&[("reconnect", "now", Origin::Set)]).contains("forebay set"));
}

#[test]
fn a_value_that_is_none_is_refused_where_it_was_said() {
    assert!(refused(&[("cache.size", "much", FLAG)]).starts_with("--cache-size much: it is a size"));
    let running = Settings::of_running("log.destage-writes", "0").map(drop).unwrap_err();
    assert_eq!(running.to_string(), "log.destage-writes 0: it is 1 to 256");
}

#[test]
fn a_file_says_the_same_by_tables_and_by_dots() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.toml");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let mut settings = Settings::default();
        settings.read(&path).map(|url| (url, settings))
    };
    for text in [
        "url = \"iscsi://h/iqn.a:b/0\"\nconnections = 2\n[cache]\npath = \"c\"\nchecksums = true\n",
        "cache.path = \"c\"\ncache.checksums = true\nconnections = \"2\"\nurl = \"iscsi://h/iqn.a:b/0\"\n",
    ] {
        let (url, settings) = read(text).unwrap();
        assert_eq!(url.as_deref(), Some("iscsi://h/iqn.a:b/0"));
        assert_eq!(settings.path("cache.path"), Some("c".into()));
        assert!(settings.is_on("cache.checksums"));
        assert_eq!(settings.number("connections"), Some(2));
    }
    for (text, words) in [
        (
            "[cache]\npath = \"c\"\nmod = \"read-only\"",
            "disk.toml, line 3: \"cache.mod\" is no setting of an attachment: is cache.mode",
        ),
        ("name = \"a\"\n\nconnections = 0", "disk.toml, line 3: connections 0: it is 1 to 32"),
        ("connections = 1.5", "disk.toml, line 1: connections is a text, a number, or true or false"),
        ("front = [\n \"nbd\",\n 1.5,\n]", "disk.toml, line 3: front is a text"),
        ("name = \"a\"\nconnections = ", "line 2"),
    ] {
        let error = read(text).map(drop).unwrap_err();
        assert_eq!(error.failure(), Failure::Usage);
        let error = error.to_string();
        assert!(error.contains(words) && error.contains("disk.toml"), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}

#[test]
fn what_is_missing_beside_a_setting_of_a_file_is_said_with_the_line() {
    let mut settings = Settings::default();
    settings.read_text("name = \"a\"\n[cache]\nsize = \"1GiB\"\n", "disk.toml".as_ref()).unwrap();
    assert_eq!(settings.check().unwrap_err().to_string(), "disk.toml, line 3: cache.size needs cache.path");
}

#[test]
fn the_file_of_a_target_is_known_by_its_tables() {
    assert!(file::is_of_target("portals = [\"[::1]:3260\"]\n[[target]]\niqn = \"iqn.a:b\"\nluns = []\n"));
    for text in ["url = \"iscsi://h/iqn.a:b/0\"", "target = \"x\"", "", "[[target"] {
        assert!(!file::is_of_target(text), "{text}");
    }
}

#[test]
fn what_is_in_effect_is_what_was_said_and_the_defaults_of_what_is_there() {
    let settings = given(&[("cache.path", "c", Origin::Set), ("cache.clean-above", "20%", Origin::Set)]).unwrap();
    let all: BTreeMap<&str, String> = settings.in_effect().collect();
    assert_eq!(all.get("cache.clean-above").map(String::as_str), Some("20%"));
    assert_eq!(all.get("cache.dirty-max").map(String::as_str), Some("90%"));
    assert_eq!(all.get("log.durability"), None, "there is no log");
    assert_eq!(all.get("cache.block-size"), None, "the cache says itself what it was made with");
}

/// Any caller of the control socket may ask, and waits for the answer on the thread that serves
/// data: to compare a key takes time by its length.
#[test]
fn a_key_as_long_as_a_message_may_be_is_compared_with_none_and_not_repeated() {
    let error = find(&"cache.mode".repeat(100_000)).unwrap_err().to_string();
    assert!(error.len() < 200 && error.contains("is no setting of an attachment; `forebay attach"), "{error}");
    assert!(find("cache.mod").unwrap_err().to_string().contains("cache.mode"));
}
