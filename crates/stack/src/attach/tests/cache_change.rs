//! A cache that another replaces while it is used, and what this host notes of it.

use std::collections::BTreeSet;

use super::*;
use crate::content::uuid_at;
use crate::status::fronts::FrontsStatus;

/// Requests go to the new cache already, even if the list of caches cannot be written; and the next
/// start takes that cache.
#[tokio::test]
async fn a_cache_that_was_changed_is_used_also_where_the_list_cannot_say_so() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let start = async || {
        Attachment::start(config(address, directory.path(), Percent::ALL), &paths, pending()).await.unwrap().unwrap()
    };
    let attachment = start().await;
    let lines = attachment.stack.cache().unwrap().status().lines;
    let caches = Caches::open(&paths).unwrap();
    let meanwhile = async {
        while caches.list().unwrap()[0].uuid.is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Makes the next note fail.
        let mut records = std::fs::read_dir(paths.caches()).unwrap().map(|entry| entry.unwrap().path());
        let record = records.find(|path| path.extension().is_some_and(|found| found == "json")).unwrap();
        let in_the_way = record.with_extension("json.new");
        std::fs::create_dir(&in_the_way).unwrap();
        in_the_way
    };
    let (changed, in_the_way) = tokio::join!(attachment.stack.set("cache.size", "8MiB"), meanwhile);
    let error = changed.expect_err("it cannot be noted").to_string();
    assert!(error.contains("the cache was changed, and the list of caches does not say so"), "{error}");
    assert!(attachment.stack.cache().unwrap().status().lines > lines, "requests go to the new one");
    attachment.stack.cache().unwrap().write(0, filled(3), false).await.unwrap();
    std::fs::remove_dir(in_the_way).unwrap();
    attachment.run(ready(())).await.unwrap();

    let again = start().await;
    assert_eq!(again.stack.cache().unwrap().read(0, Buffer::zeroed(4096)).await.unwrap()[..], [3; 4096]);
    again.run(ready(())).await.unwrap();
}

/// Each of them gets two tokens, and any of them may be refused.
#[tokio::test]
async fn the_list_has_the_tokens_of_the_cache_that_is_there_and_none_of_those_before_it() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let caches = Caches::open(&paths).unwrap();
    let tokens = || caches.list().unwrap()[0].tokens.clone();
    let start = async || {
        Attachment::start(config(address, directory.path(), Percent::ALL), &paths, pending()).await.unwrap().unwrap()
    };
    let attachment = start().await;
    let mut known = vec![tokens()];
    for size in ["8MiB", "4MiB", "8MiB"] {
        attachment.stack.set("cache.size", size).await.unwrap();
        known.push(tokens());
        attachment.stack.set("cache.size", "64KiB").await.expect_err("a cache is larger");
        assert_eq!(tokens(), *known.last().unwrap());
    }
    assert!(known.iter().all(|tokens| tokens.len() == 2), "{known:?}");
    let all: BTreeSet<u64> = known.into_iter().flatten().collect();
    assert_eq!(all.len(), 8);
    attachment.stack.cache().unwrap().write(0, filled(3), false).await.unwrap();
    attachment.run(ready(())).await.unwrap();
    start().await.run(ready(())).await.expect("the next attach takes it");
}

/// What is noted of the one that was cut would keep what the new one alone has from its LUN.
#[tokio::test]
async fn what_is_noted_of_a_cache_that_was_cut_does_not_concern_the_one_that_takes_its_place() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let with_cache = config(address, directory.path(), Percent::ALL);
    let cache_config = with_cache.stack.cache.clone().unwrap();
    let attachment = Attachment::start(with_cache, &paths, pending()).await.unwrap().unwrap();
    let device = attachment.stack.device();
    device.write(0, filled(7), true).await.unwrap();
    attachment.stack.clean(tokio::sync::mpsc::unbounded_channel().0).await.unwrap();
    let (caches, registry) = (Caches::open(&paths).unwrap(), Registry::open(&paths).unwrap());
    let noted = || (registry.entries().unwrap().remove(0), caches.list().unwrap().remove(0));
    let cut = |bytes: u64| {
        let file = std::fs::OpenOptions::new().write(true).open(&cache_config.path).unwrap();
        file.set_len(bytes / 2).and_then(|()| file.set_len(bytes)).unwrap();
    };
    cut(4 * MIB);
    // It is looked at when something is read there.
    device.read(0, Buffer::zeroed(4096)).await.unwrap();
    attachment.stack.cache().unwrap().flush().await.unwrap();
    let (entry, record) = noted();
    assert!(entry.has_failed && record.is_cut);
    attachment.stack.set("cache.size", "8MiB").await.unwrap();
    device.write(0, filled(8), true).await.unwrap();
    let (entry, record) = noted();
    let place = record.place();
    assert!(!entry.has_failed && !record.is_cut);
    assert!(entry.uuid.is_some() && entry.uuid == uuid_at(&place));
    let checked = cache_config.check_not_lost(&place, Some(&entry), (&caches, false));
    checked.expect("the next attach takes it after a crash");
    let report = attachment.stack.status(FrontsStatus::default());
    assert_eq!(report.troubles, Vec::<String>::new());
    cut(8 * MIB);
    device.read(0, Buffer::zeroed(4096)).await.expect_err("it is dirty there");
    let (entry, record) = noted();
    assert!(entry.has_failed && record.is_cut, "the new one can be cut as well");
    attachment.run(ready(())).await.expect_err("what was dirty is lost");
}
