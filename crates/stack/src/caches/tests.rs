//! The list in a state directory: what is noted, refused and kept apart, also on a full disk.

use std::fs;

use store::Tokens;

use super::*;
use crate::registry::Entry;

#[test]
fn caches_are_listed_until_they_are_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
    let caches = Caches::open(&paths).unwrap();
    let identity = |serial: &str| Identity { target: "t".into(), unit: "u".into(), serial: serial.into() };
    let place = |name: &str| Place { path: name.into(), offset: None };
    let records = ["a", "b"].map(|name| StoreRecord::new(&place(name), 4096, &identity(name), "disk"));
    records.iter().rev().for_each(|record| caches.note(record).unwrap());
    caches.note(&records[0]).unwrap();
    assert_eq!(caches.list().unwrap(), records);
    caches.forget(&place("a")).unwrap();
    caches.forget(&place("a")).unwrap();
    assert_eq!(caches.list().unwrap(), records[1..]);
}

/// It may say of any store that it is an older copy, or that this host wrote to its LUN without it.
#[test]
fn a_record_that_cannot_be_read_or_is_of_another_version_is_said_and_never_taken_for_none() {
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
    let caches = Caches::open(&paths).unwrap();
    let place = |name: &str| Place { path: name.into(), offset: None };
    let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
    let record = StoreRecord::new(&place("/a"), 4096, &identity, "disk");
    caches.note(&record).unwrap();
    let file = caches.file(&place("/a"));
    let text = fs::read_to_string(&file).unwrap();
    for (damaged, why) in
        [(text.replace("\"version\": 1", "\"version\": 99"), "version 99 is not 1"), ("{".into(), "EOF")]
    {
        fs::write(&file, damaged).unwrap();
        let refused = [
            caches.find(&place("/a")).err(),
            caches.stores().err(),
            caches.note_stale(std::slice::from_ref(&identity), &[]).err(),
            caches.length_of(&place("/a")).err(),
            caches.other_copies(std::slice::from_ref(&identity), &[]).err(),
        ];
        for error in refused.into_iter().map(|error| error.expect("it is damaged")) {
            assert_eq!(error.failure(), Failure::Mismatch);
            let words = error.to_string();
            assert!(words.contains(why) && words.contains(file.to_str().unwrap()), "{words}");
        }
        caches.note(&StoreRecord::new(&place("/b"), 4096, &identity, "disk")).unwrap();
    }
    fs::remove_file(&file).unwrap();
    assert_eq!(caches.stores().unwrap().len(), 1);
}

#[test]
fn what_is_cut_beside_its_place_is_noted_once_it_has_that_and_of_no_other_store() {
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
    let caches = Caches::open(&paths).unwrap();
    let place = Place { path: directory.path().join("a"), offset: None };
    let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
    let uuid = Some(Uuid::from_bytes([1; 16]));
    caches.note(&StoreRecord { uuid, ..StoreRecord::new(&place, 4096, &identity, "disk") }).unwrap();
    caches.registry.insert(&Entry { uuid, ..Entry::new(&identity, &place, "disk") }).unwrap();
    let noted = || {
        let entry = caches.registry.find(&identity, Store::Cache).unwrap().unwrap();
        (entry.has_failed, caches.find(&place).unwrap().unwrap().is_cut)
    };
    let beside = OpenStore::default();
    caches.note_cut(&place, &beside).unwrap();
    caches.note_cut(&place, &OpenStore::at_place(Some(Uuid::from_bytes([2; 16])))).unwrap();
    assert_eq!(noted(), (false, false));
    caches.note_in_place(&place, &beside).unwrap();
    let tokens = Tokens { in_use: 1, closed: 2 };
    caches.note_succeeded(&place, tokens, Some(&beside)).unwrap();
    assert_eq!(noted(), (true, true));
    caches.note_succeeded(&place, tokens, None).unwrap();
    assert_eq!(noted(), (true, true), "it is the same one");
    caches.note_succeeded(&place, tokens, Some(&OpenStore::default())).unwrap();
    assert!(!noted().1, "it has gone");
}

#[test]
fn what_has_the_uuid_of_a_store_that_is_open_is_another_copy_at_every_place() {
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
    let caches = Caches::open(&paths).unwrap();
    let place = |name: &str| Place { path: directory.path().join(name), offset: None };
    let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
    let record = |name, uuid, tokens: &[u64]| StoreRecord {
        uuid: Some(Uuid::from_bytes([uuid; 16])),
        tokens: tokens.to_vec(),
        ..StoreRecord::new(&place(name), 4096, &identity, "disk")
    };
    for (name, uuid, tokens) in [("a", 1, &[1, 2][..]), ("b", 1, &[1, 2]), ("c", 1, &[5, 3, 4]), ("d", 2, &[1])] {
        caches.note(&record(name, uuid, tokens)).unwrap();
    }
    caches.note_opened(&record("a", 1, &[3, 4])).unwrap();
    let tokens = caches.stores().unwrap().into_iter().map(|record| record.tokens);
    assert_eq!(tokens.collect::<Vec<_>>(), [vec![3, 4], vec![3, 4], vec![5, 3, 4], vec![1]]);
}

#[test]
fn who_was_stopped_while_it_changes_records_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
    let caches = Caches::open(&paths).unwrap();
    let stopped = caches.begin_change().unwrap();
    let place = Place { path: "/a".into(), offset: None };
    let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
    let record = StoreRecord::new(&place, 4096, &identity, "disk");
    let error = caches.note(&record).unwrap_err();
    assert_eq!(error.failure(), Failure::InUse);
    assert!(error.to_string().contains("caches/lock"), "{error}");
    drop(stopped);
    caches.note(&record).unwrap();
}

#[test]
fn the_marks_of_a_store_that_is_given_up_are_kept_until_their_target_forgot_them() {
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
    let caches = Caches::open(&paths).unwrap();
    let identity = |serial: &str| Identity { target: "t".into(), unit: "u".into(), serial: serial.into() };
    let place = Place { path: "/a".into(), offset: None };
    let marks = [1, 2].map(|byte| MarkRecord::new([byte; 16], 7));
    let mut record = StoreRecord::new(&place, 4096, &identity("one"), "disk");
    record.luns = vec![
        LunRecord::new(&identity("one"), Some(marks[0].clone())),
        LunRecord::new(&identity("two"), Some(marks[1].clone())),
        LunRecord::new(&identity("three"), None),
    ];
    caches.note(&record).unwrap();
    let released = |serial| caches.released_marks(&identity(serial)).unwrap();
    assert_eq!(released("one"), [], "its store is there");
    caches.forget(&place).unwrap();
    assert_eq!((released("one"), released("two")), (vec![marks[0].clone()], vec![marks[1].clone()]));
    assert_eq!(caches.stores().unwrap(), []);
    caches.note_forgotten(&marks[0]).unwrap();
    assert_eq!((released("one"), released("two").len()), (vec![], 1));
    caches.note(&record).unwrap();
    assert_eq!(released("two"), [], "a store has it again");
}

/// `/dev/full` is in the place of each new file.
#[test]
fn on_a_full_disk_a_store_is_noted_as_cut_and_struck_from_the_list() {
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
    let (caches, registry) = (Caches::open(&paths).unwrap(), Registry::open(&paths).unwrap());
    let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
    let place = Place { path: "/a".into(), offset: None };
    let mut record = StoreRecord::new(&place, 4096, &identity, "disk");
    let mark = MarkRecord::new([1; 16], 7);
    record.luns = vec![LunRecord::new(&identity, Some(mark.clone()))];
    caches.note(&record).unwrap();
    registry.insert(&Entry::new(&identity, &place, "disk")).unwrap();
    let fill = || {
        let files = [paths.caches(), paths.registry()].map(|folder| record_file::files_in(&folder, "json").unwrap());
        for file in files.into_iter().flatten().chain([caches.released.file(&mark)]) {
            let new = PathBuf::from(format!("{}.new", file.display()));
            let _ = fs::remove_file(&new);
            std::os::unix::fs::symlink("/dev/full", new).unwrap();
        }
    };
    fill();
    caches.note_cut(&place, &OpenStore::at_place(None)).unwrap();
    assert!(caches.find(&place).unwrap().unwrap().is_cut && caches.list().unwrap()[0].is_cut);
    let [entry] = &registry.entries().unwrap()[..] else { panic!("it is there") };
    assert!(entry.has_failed && registry.find(&identity, Store::Cache).unwrap().unwrap().has_failed);
    fill();
    registry.insert(entry).and_then(|()| caches.note(&record)).expect("as `discard` looks whether it can write them");
    registry.remove_cache(&place).and_then(|()| caches.forget(&place)).unwrap();
    assert_eq!((registry.entries().unwrap(), caches.stores().unwrap()), (vec![], vec![]));
}

/// `/dev/full` is in the place of each new file. The target comes back again and again, and attaches are refused.
#[test]
fn that_a_store_was_cut_is_noted_on_a_full_disk_whatever_was_noted_before() {
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
    let caches = Caches::open(&paths).unwrap();
    let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
    let place = Place { path: "/a".into(), offset: None };
    let with = |name: String| {
        let mark = MarkRecord::new([1; 16], 7);
        let luns = vec![LunRecord::new(&identity, Some(mark))];
        StoreRecord { luns, tokens: vec![1], ..StoreRecord::new(&place, 4096, &identity, &name) }
    };
    caches.note(&with("disk".into())).unwrap();
    let file = caches.file(&place);
    let fill = || std::os::unix::fs::symlink("/dev/full", format!("{}.new", file.display())).unwrap();
    for number in 0..100 {
        let mark = MarkRecord::new([1; 16], u64::MAX - number);
        let mark = mark.with_candidate(u64::MAX - number).with_stage(MarkStage::TokenOwed);
        fill();
        caches.note_mark(&place, &mark).unwrap();
        fill();
        caches.note_mark(&place, &mark.settled()).unwrap();
        fill();
        caches.note_successor(&place, Tokens { in_use: number, closed: u64::MAX }).unwrap();
        let record = caches.find(&place).unwrap().unwrap();
        fill();
        caches.note(&StoreRecord { tokens: vec![u64::MAX, number, 1], ..record }).unwrap();
    }
    // The longest for which there is room.
    let named = |length: usize| {
        fill();
        caches.note(&with("n".repeat(length)))
    };
    let longest = (0..4096).rev().find(|&length| named(length).is_ok()).unwrap();
    assert!(longest > 512, "{longest}");
    fill();
    caches.note_cut(&place, &OpenStore::at_place(None)).unwrap();
    let record = caches.find(&place).unwrap().unwrap();
    assert!(record.is_cut && record.name.len() == longest);
}

#[test]
fn caches_of_one_device_are_apart() {
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
    let caches = Caches::open(&paths).unwrap();
    let disk = directory.path().join("disk");
    fs::write(&disk, vec![1; 64 << 10]).unwrap();
    let at = |offset| Place { path: disk.clone(), offset };
    let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s7".into() };
    let record = StoreRecord::new(&at(Some(8192)), 8192, &identity, "first");
    caches.note(&record).unwrap();
    assert_eq!(caches.length_of(&at(Some(8192))).unwrap(), Some(8192));
    let check = |offset, length| caches.check_apart(&at(Some(offset)), ByteRange { offset, length });
    assert!(check(0, 8192).is_ok() && check(16384, 8192).is_ok() && check(8192, 8192).is_ok());
    let whole = ByteRange { offset: 0, length: u64::MAX };
    for error in [check(0, 12288), check(12288, 4096), caches.check_apart(&at(None), whole)] {
        let error = error.unwrap_err();
        assert_eq!(error.failure(), Failure::InUse);
        for word in ["\"first\"", "serial s7", "takes 8KiB", "--cache-offset 8KiB"] {
            assert!(error.to_string().contains(word), "{error}");
        }
    }
    // Other names of the same cache.
    let names = ["hard", "soft"].map(|name| directory.path().join(name));
    fs::hard_link(&disk, &names[0]).unwrap();
    std::os::unix::fs::symlink(&disk, &names[1]).unwrap();
    for name in names {
        let place = Place { path: name, offset: Some(8192) };
        let error = caches.check_apart(&place, ByteRange { offset: 8192, length: 8192 }).unwrap_err();
        assert_eq!(error.failure(), Failure::InUse);
        let by_its_name = format!("{} --cache-offset 8KiB", disk.display());
        assert!(error.to_string().contains("(a link)") && error.to_string().ends_with(&by_its_name), "{error}");
    }
    // A store that was wiped protects no bytes any more.
    fs::write(&disk, vec![0; 64 << 10]).unwrap();
    assert!(check(0, 12288).is_ok());
    fs::remove_file(&disk).unwrap();
    assert!(caches.check_apart(&at(None), whole).is_ok());
}
