//! How an attach begins: what refuses it, what interrupts it, and what it leaves then.

use futures_util::FutureExt;
use logical_unit::change_marks::{ChangeStore, MarkUpdate, Saving};
use tokio::sync::Notify;

use super::*;
use crate::awaited::Awaited;
use crate::caches::{MarkRecord, StoreRecord};
use crate::difference_note::{DifferenceNote, Fate};
use crate::difference_place::DifferenceConfig;
use crate::limits::TELLING_TIME_MAX;
use crate::place::Place;
use crate::test_target::serve_removable;

/// Dirty data in the cache was compared with what other hosts had written before the target was
/// asked. Later writes of others are newer, and the cache must send nothing before it knows of
/// them.
#[tokio::test]
async fn dirty_data_does_not_go_over_what_others_write_while_the_cache_is_being_opened() {
    let gate = Gate::new();
    let (memory, reached, opened) = (Arc::clone(&gate.inner), Arc::clone(&gate.reached), Arc::clone(&gate.opened));
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
    let attachment =
        Attachment::start(config(address, directory.path(), Percent::ALL), &paths, pending()).await.unwrap().unwrap();
    attachment.stack.cache().unwrap().write(0, filled(1), false).await.unwrap();
    attachment.run(ready(())).await.unwrap();

    let caches = Caches::open(&paths).unwrap();
    let mark = || -> MarkRecord { caches.list().unwrap()[0].luns[0].mark.clone().unwrap() };
    let mark_before = mark();
    let others = remotes(address, "other").connect(&system_clock().unwrap()).await.unwrap();
    // Opening in write-back flushes the LUN.
    gate.stop_at(is_flush);
    let attaching = Attachment::start(config(address, directory.path(), Percent::new(0)), &paths, pending());
    let meanwhile = async {
        reached.notified().await;
        let mark_now = mark();
        assert!(mark_now != mark_before && mark_now == mark_now.clone().settled(), "the target has told of changes");
        others.device().write(0, filled(2), true).await.unwrap();
        opened.notify_one();
    };
    let (attached, ()) = tokio::join!(attaching, meanwhile);
    assert_eq!(attached.err().expect("both have written there").failure(), Failure::WouldLoseData);
    assert_eq!(memory.read(0, Buffer::zeroed(4096)).await.unwrap()[..], [2; 4096]);
}

#[tokio::test]
async fn a_cache_and_a_log_that_would_lie_over_each_other_are_refused_as_that() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let disk = directory.path().join("disk");
    std::fs::File::create(&disk).unwrap().set_len(64 * MIB).unwrap();
    let at = |cache_offset: u64, log_offset: u64| {
        let mut config = config(address, directory.path(), Percent::ALL);
        let cache = config.stack.cache.as_mut().unwrap();
        (cache.path, cache.offset) = (disk.clone(), Some(cache_offset));
        config.stack.log = Some(LogConfig { path: disk.clone(), offset: Some(log_offset), ..log_config(&disk) });
        config
    };
    for (cache_offset, log_offset) in [(MIB, MIB), (MIB, 4 * MIB), (16 * MIB, MIB)] {
        let refused = Attachment::start(at(cache_offset, log_offset), &paths, pending()).await;
        let error = refused.err().expect("one lies over the other");
        assert_eq!(error.failure(), Failure::Usage, "{error}");
        assert!(error.to_string().contains("would lie over each other"), "{error}");
    }
    let apart = Attachment::start(at(MIB, 5 * MIB), &paths, pending()).await.unwrap().unwrap();
    apart.run(ready(())).await.unwrap();
}

/// The files in `directory`, without the directories of this host's state.
fn files_in(directory: &std::path::Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = names.filter(|name| !["run", "state"].contains(&name.as_str())).collect();
    files.sort();
    files
}

/// Checks that nothing is dirty, nothing is locked, and nothing listens.
async fn check_that_nothing_was_begun(address: SocketAddr, directory: &std::path::Path, paths: &Paths) {
    assert!(Registry::open(paths).unwrap().entries().unwrap().is_empty());
    assert!(!files_in(directory).contains(&"disk.nbd".to_owned()), "{:?}", files_in(directory));
    let again = Attachment::start(config(address, directory, Percent::ALL), paths, pending()).await.unwrap().unwrap();
    again.run(ready(())).await.unwrap();
}

#[tokio::test]
async fn a_start_ends_at_a_signal_while_the_target_does_not_answer_the_login() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let config = config(silent.local_addr().unwrap(), directory.path(), Percent::ALL);
    let accepted = async { std::mem::forget(silent.accept().await.unwrap()) };
    assert!(Attachment::start(config, &paths, accepted).await.unwrap().is_none());
    assert_eq!(files_in(directory.path()), [""; 0]);
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    check_that_nothing_was_begun(address, directory.path(), &paths).await;
}

/// The alignment of a new cache's lines is read from the LUN.
#[tokio::test]
async fn a_start_that_is_ended_while_a_cache_is_made_leaves_no_part_of_it() {
    let gate = Gate::new();
    let (reached, opened) = (Arc::clone(&gate.reached), Arc::clone(&gate.opened));
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    gate.stop_at(|operation| matches!(operation, Operation::Read { .. }));
    let config = config(address, directory.path(), Percent::ALL);
    assert!(Attachment::start(config, &paths, reached.notified()).await.unwrap().is_none());
    assert_eq!(files_in(directory.path()), [""; 0]);
    opened.notify_one();
    check_that_nothing_was_begun(address, directory.path(), &paths).await;
}

#[tokio::test]
async fn a_start_that_is_ended_while_a_dirty_cache_is_opened_leaves_what_is_dirty() {
    let gate = Gate::new();
    let (reached, opened) = (Arc::clone(&gate.reached), Arc::clone(&gate.opened));
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let start = |signal| Attachment::start(config(address, directory.path(), Percent::ALL), &paths, signal);
    let attachment = start(pending().boxed_local()).await.unwrap().unwrap();
    attachment.stack.device().write(0, filled(7), true).await.unwrap();
    attachment.run(ready(())).await.unwrap();
    let entries = || Registry::open(&paths).unwrap().entries().unwrap().len();
    assert_eq!(entries(), 1, "it is dirty");

    gate.stop_at(is_flush);
    assert!(start(reached.notified().boxed_local()).await.unwrap().is_none());
    assert_eq!(entries(), 1, "and stays so");
    assert_eq!(files_in(directory.path()), ["disk.cache"]);
    opened.notify_one();
    let again = start(pending().boxed_local()).await.unwrap().unwrap();
    assert_eq!(again.stack.device().read(0, Buffer::zeroed(4096)).await.unwrap()[..], [7; 4096]);
    again.run(ready(())).await.unwrap();
}

/// With a difference in `directory`, and what the user takes.
fn over_base(
    address: SocketAddr,
    directory: &std::path::Path,
    (accepts_loss, overwrites_changes): (bool, bool),
) -> AttachConfig {
    let mut config = config(address, directory, Percent::ALL);
    config.stack.cache = None;
    config.stack.overwrites_changes = overwrites_changes;
    config.stack.difference = Some(DifferenceConfig {
        path: directory.join("own"),
        size_bytes: Some(4 * MIB),
        chunk_bytes: None,
        generation: None,
        accepts_loss,
    });
    config
}

/// By the base, by a front, or by the user who gave leave for one of two.
#[tokio::test]
async fn a_refused_attach_leaves_the_note_of_a_lost_difference_and_what_is_known_of_its_base() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let (accepted, overwritten, both) = ((true, false), (false, true), (true, true));
    let start = async |taken| Attachment::start(over_base(address, directory.path(), taken), &paths, pending()).await;
    let refusal = async |taken| start(taken).await.err().map(|error| error.failure());
    let attachment = start((false, false)).await.unwrap().unwrap();
    attachment.stack.device().write(0, filled(7), true).await.unwrap();
    attachment.run(ready(())).await.unwrap();
    let place = Place::new(&directory.path().join("own"), None).unwrap();
    let note = DifferenceNote::of(&paths, &place).unwrap();
    note.write(Fate::Cut, "disk", uuid::Uuid::new_v4()).unwrap();
    let clock = system_clock().unwrap();
    let others = remotes(address, "other").connect(&clock).await.unwrap();
    others.device().write(MIB, filled(9), true).await.unwrap();
    others.close().await.unwrap();
    for taken in [accepted, overwritten, accepted] {
        assert_eq!(refusal(taken).await, Some(Failure::WouldLoseData), "{taken:?}");
    }
    let config = over_base(address, directory.path(), both);
    let Listeners { control, metrics, .. } = Listeners::open("disk", None, &config.fronts, &paths).unwrap();
    let listeners = Listeners { control, metrics, fronts: Fronts::of(vec![fronts::unopenable()]) };
    let stack = Stack::open(config.stack, &paths, clock, &Sender::new(false)).await.unwrap();
    let error = Attachment::with_listeners(listeners, stack).await.err().unwrap().to_string();
    assert!(error.contains("it does not open"), "{error}");
    for taken in [overwritten, accepted] {
        assert_eq!(refusal(taken).await, Some(Failure::WouldLoseData), "{taken:?}");
    }
    for taken in [both, (false, false)] {
        let attachment = start(taken).await.unwrap().unwrap();
        assert_eq!(attachment.stack.device().read(0, Buffer::zeroed(4096)).await.unwrap()[..], [7; 4096]);
        attachment.run(ready(())).await.unwrap();
    }
}

/// It keeps marks after a while, in which the test acts.
#[derive(Default)]
struct SlowChanges {
    reached: Notify,
}

impl ChangeStore for SlowChanges {
    fn save(&self, _: Vec<MarkUpdate>) -> Saving {
        self.reached.notify_one();
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(())
        })
    }
}

/// For longer than an attach that does not wait for its target.
#[tokio::test]
async fn who_waits_for_a_target_waits_also_for_a_lun_that_goes_again_after_the_login() {
    let store = Arc::<SlowChanges>::default();
    let (address, lun) = serve_removable(Gate::new(), Arc::clone(&store) as Arc<_>, false);
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let mut config = config(address, directory.path(), Percent::ALL);
    config.waits_for_target = true;
    config.stack.remotes.remotes[0].waits.replacement = Duration::from_millis(500);
    let awaited = Awaited::start(config, &paths).unwrap();
    let go_and_come = async {
        store.reached.notified().await;
        lun.remove();
        lun.put_back_after(TELLING_TIME_MAX + Duration::from_secs(3)).await;
    };
    let (attached, ()) = tokio::join!(awaited.attach(&paths, pending()), go_and_come);
    attached.unwrap().expect("nothing ended it").run(ready(())).await.unwrap();
}

/// Nothing was written, so that what other stores have of the LUN is as good as it was.
#[tokio::test]
async fn an_attach_that_ends_before_its_targets_have_told_notes_nothing_of_stores_at_other_places() {
    let store = Arc::<SlowChanges>::default();
    let address = serve(Gate::new(), Arc::clone(&store) as Arc<_>);
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let caches = Caches::open(&paths).unwrap();
    let looking = remotes(address, "looking").connect(&system_clock().unwrap()).await.unwrap();
    let place = Place::new(&directory.path().join("other"), None).unwrap();
    caches.note(&StoreRecord::new(&place, 4096, &looking.identity(), "other")).unwrap();
    looking.close().await.unwrap();
    let is_stale = || caches.find(&place).unwrap().expect("it is noted").is_stale;
    let config = || config(address, directory.path(), Percent::ALL);
    let ended = Attachment::start(config(), &paths, store.reached.notified()).await;
    assert!(ended.unwrap().is_none(), "its mark is being made");
    assert!(!is_stale());
    let attached = Attachment::start(config(), &paths, pending()).await;
    attached.unwrap().expect("nothing ended it").run(ready(())).await.unwrap();
    assert!(is_stale(), "that one could write");
}
