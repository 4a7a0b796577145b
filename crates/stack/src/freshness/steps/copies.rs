//! Copies of a store, and which of them this host knows.

use super::*;

/// The state directory is from before that one was discarded.
#[tokio::test]
async fn another_store_in_the_place_of_a_registered_one_is_taken_where_the_user_wants_it() {
    for store in [Store::Cache, Store::Log] {
        let host = Host::new(serve(Watched::default()));
        host.use_once(store, Stop::Never, || ()).await.unwrap();
        let remotes = host.connect("own").await;
        let uuid = uuid_at(&host.place).filter(|_| store == Store::Log);
        let entry = Entry { store, uuid, ..Entry::new(&remotes.identity(), &host.place, "disk") };
        let mut settings = Settings::default();
        settings.give("cache.path", host.place.path.as_os_str(), Origin::Set).unwrap();
        let cache = CacheConfig::of(&settings).unwrap().unwrap();
        let check = |is_any_taken| match store {
            Store::Cache => cache.check_not_lost(&host.place, Some(&entry), (&host.caches, is_any_taken)),
            Store::Log => LogConfig::default().check_not_lost(&host.place, Some(&entry), is_any_taken),
        };
        check(false).expect("it is the one");
        let record = host.caches.find(&host.place).unwrap().unwrap();
        std::fs::remove_file(&host.place.path).unwrap();
        host.caches.forget(&host.place).unwrap();
        check(true).expect_err("nothing is there");
        host.use_once(store, Stop::InUse, || ()).await.unwrap();
        host.caches.note(&record).unwrap();
        let refused = check(false).expect_err("which is the newer one is not known");
        assert_eq!(refused.failure(), Failure::WouldLoseData);
        let refused = refused.to_string();
        let at = |words: &str| refused.find(words).unwrap_or_else(|| panic!("\"{words}\" is missing in: {refused}"));
        assert!(at("overwrite-changes=on") < at("bring the right one back") && at("bring the right") < at("discard"));
        check(true).unwrap();
        let promise = Promise { overwrites_changes: true, ..Promise::default() };
        let assessed = assess(&remotes, &host.caches, store, &host.place, promise).await.unwrap();
        assert_eq!(assessed.changed(), everything(), "nothing clean counts");
        assessed.begin_opening(&host.caches).unwrap();
        host.commit(&remotes, assessed).await;
        assert_eq!(host.caches.find(&host.place).unwrap().unwrap().uuid, uuid_at(&host.place));
    }
}

/// Its lines were clean and dirty at an earlier time: the mark at the target belongs to the newer
/// copy.
#[tokio::test]
async fn an_older_copy_of_a_store_in_its_own_place_is_refused_and_the_store_itself_is_not() {
    for store in [Store::Cache, Store::Log] {
        let host = Host::new(serve(Watched::default()));
        let copy = |name: &str| {
            let path = host.place.path.with_extension(name);
            std::fs::copy(&host.place.path, &path).unwrap();
            path
        };
        let put_back = |path: &std::path::Path| std::fs::copy(path, &host.place.path).map(drop).unwrap();
        let refused = async || {
            let refused = host.use_once(store, Stop::Never, || ()).await.expect_err("it is older");
            assert_eq!(refused.failure(), Failure::WouldLoseData);
            assert!(refused.to_string().contains("another copy"), "{refused}");
        };
        let mut in_use = None;
        host.use_once(store, Stop::Never, || in_use = Some(copy("in-use"))).await.unwrap();
        let ended = copy("ended");
        let in_use = in_use.expect("it was copied");
        let elsewhere =
            host.caches.check_is_last(&Place::new(&in_use, None).unwrap()).expect_err("nor at another path");
        assert_eq!(elsewhere.failure(), Failure::WouldLoseData);
        put_back(&in_use);
        refused().await;
        put_back(&ended);
        host.use_once(store, Stop::InUse, || ()).await.expect("the last one counts");
        let killed = copy("killed");
        put_back(&ended);
        refused().await;
        put_back(&killed);
        host.use_once(store, Stop::Never, || ())
            .await
            .expect("a crash leaves the list behind the store, never before it");
        // Without a record any copy is taken.
        host.caches.forget(&host.place).unwrap();
        put_back(&ended);
        host.use_once(store, Stop::Never, || ()).await.expect("nothing is known of it");
    }
}

/// Both copies began as one file. The one that was used more often is not a later state of the
/// other: its dirty data never belonged to this host.
#[tokio::test]
async fn a_copy_that_was_used_elsewhere_more_often_is_not_taken_for_the_store_that_this_host_used_last() {
    for store in [Store::Cache, Store::Log] {
        let address = serve(Watched::default());
        let (host, other) = (Host::new(address), Host::new(address));
        host.use_once(store, Stop::Never, || ()).await.unwrap();
        std::fs::copy(&host.place.path, &other.place.path).unwrap();
        host.use_once(store, Stop::Never, || ()).await.unwrap();
        let last = host.place.path.with_extension("last");
        std::fs::copy(&host.place.path, &last).unwrap();
        for _ in 0..4 {
            other.use_once(store, Stop::Never, || ()).await.expect("nothing is known of it there");
        }
        std::fs::copy(&other.place.path, &host.place.path).unwrap();
        let refused = host.use_once(store, Stop::Never, || ()).await.expect_err("it is another copy");
        assert_eq!(refused.failure(), Failure::WouldLoseData);
        std::fs::copy(&last, &host.place.path).unwrap();
        host.use_once(store, Stop::Never, || ()).await.expect("the last one counts");
    }
}

/// A state directory that was restored alone, with the store beside it that was used since.
#[tokio::test]
async fn a_store_that_the_list_is_older_than_is_taken_as_it_is_on_demand_and_nothing_clean_of_it_counts() {
    for store in [Store::Cache, Store::Log] {
        let host = Host::new(serve(Watched::default()));
        host.use_once(store, Stop::Never, || ()).await.unwrap();
        let directory = host.directory.path().join("state/caches");
        let files = std::fs::read_dir(&directory).unwrap().flatten().map(|entry| entry.path());
        let older: Vec<_> = files.filter_map(|path| std::fs::read(&path).ok().map(|text| (path, text))).collect();
        host.use_once(store, Stop::Never, || ()).await.unwrap();
        older.iter().for_each(|(path, text)| std::fs::write(path, text).unwrap());
        let remotes = host.connect("own").await;
        let refused = host.try_assess(&remotes, store).await.err().expect("it is another copy");
        for words in ["another copy", "the list is the older one", "overwrite-changes=on"] {
            assert!(refused.to_string().contains(words), "{refused}");
        }
        let others = host.caches.other_copies(&remotes.identities(), &[]).unwrap();
        assert_eq!(others.iter().map(StoreRecord::place).collect::<Vec<_>>(), std::slice::from_ref(&host.place));
        assert_eq!(host.caches.other_copies(&remotes.identities(), &[&host.place]).unwrap(), []);
        let promise = Promise { overwrites_changes: true, is_exclusive: Some(true), ..Promise::default() };
        let assessed = assess(&remotes, &host.caches, store, &host.place, promise).await.unwrap();
        assert_eq!(assessed.changed(), everything(), "{}", assessed.why);
        assert_eq!(assessed.kept(true).ranges(), []);
        assessed.begin_opening(&host.caches).unwrap();
        remotes.close().await.unwrap();
        let plain = Promise::default();
        // Whatever comes in between refuses the attach, which was told to take it.
        for promise in [plain, promise, plain] {
            let used = host.use_with(store, Stop::Opened, promise, || ()).await;
            let refused = used.err().map(|error| error.failure());
            let expected = (!promise.overwrites_changes).then_some(Failure::WouldLoseData);
            assert_eq!(refused, expected, "{store:?}: {promise:?}");
        }
        for promise in [promise, plain] {
            host.use_with(store, Stop::Never, promise, || ()).await.expect("it was open, and is known");
            assert!(host.caches.is_last(&host.place).unwrap());
        }
    }
}

/// What is clean in it may be in a hole.
#[tokio::test]
async fn nothing_clean_of_a_store_counts_whose_file_was_cut_while_it_was_in_use() {
    let host = Host::new(serve(Watched::default()));
    host.use_once(Store::Cache, Stop::Never, || ()).await.unwrap();
    let remotes = host.connect("own").await;
    assert_eq!(host.assess(&remotes).await.freshness(), Freshness::Unchanged);
    remotes.close().await.unwrap();
    let device = open_or_make(PlaceKind::Cache, &host.place, &host.caches, None, async |_| Ok(()));
    let device = device.await.unwrap();
    let file = std::fs::File::options().write(true).open(&host.place.path).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 4096).unwrap();
    device.read(0, Buffer::zeroed(4096)).await.expect_err("it was cut");
    drop(device);
    file.set_len(length).unwrap();
    let remotes = host.connect("own").await;
    assert_eq!(host.assess(&remotes).await.freshness(), Freshness::Changed(everything()));
    remotes.close().await.unwrap();
    host.use_once(Store::Cache, Stop::Never, || ()).await.unwrap();
    assert!(!host.caches.find(&host.place).unwrap().unwrap().is_cut, "it was dropped, and is whole");
}

/// The list has a token before the store has it, and drops one only when the store has another.
#[tokio::test]
async fn a_crash_at_any_step_of_an_opening_and_a_close_leaves_a_store_that_this_host_knows() {
    let steps = [
        (Stop::Opened, false),
        (Stop::Opened, true),
        (Stop::InUse, false),
        (Stop::Closed, false),
        (Stop::Closed, true),
    ];
    for store in [Store::Cache, Store::Log] {
        let host = Host::new(serve(Watched::default()));
        let path = &host.place.path;
        for (stop, is_one_copy_older) in steps {
            host.use_once(store, Stop::Never, || ()).await.unwrap();
            let before = std::fs::read(path).unwrap();
            // Only the list was changed, twice.
            host.caches.note_opening(&host.place, draw_tokens(), false).unwrap();
            host.caches.note_opening(&host.place, draw_tokens(), false).unwrap();
            let mut earlier = before.clone();
            let in_use = || earlier = std::fs::read(path).unwrap();
            host.use_once(store, stop, in_use).await.expect("the one that it had before is known");
            if is_one_copy_older {
                // The power failed between the last copy of the superblock, which is written first
                // here, and the first.
                let mut bytes = std::fs::read(path).unwrap();
                bytes[..4096].copy_from_slice(&earlier[..4096]);
                std::fs::write(path, bytes).unwrap();
            }
            host.use_once(store, Stop::Never, || ()).await.unwrap_or_else(|error| panic!("{stop:?}: {error}"));
            let last = std::fs::read(path).unwrap();
            std::fs::write(path, before).unwrap();
            let refused = host.use_once(store, Stop::Never, || ()).await.expect_err("it is older");
            assert_eq!(refused.failure(), Failure::WouldLoseData);
            std::fs::write(path, last).unwrap();
        }
    }
}

/// The other superblock holds the store's identity, and which copy it is.
#[tokio::test]
async fn another_copy_of_a_store_is_refused_also_where_its_first_superblock_is_damaged() {
    let host = Host::new(serve(Watched::default()));
    host.use_once(Store::Cache, Stop::Never, || ()).await.unwrap();
    let older = std::fs::read(&host.place.path).unwrap();
    host.use_once(Store::Cache, Stop::Never, || ()).await.unwrap();
    let last = std::fs::read(&host.place.path).unwrap();
    let put = |mut bytes: Vec<u8>| {
        bytes[..4096].fill(0xa5);
        std::fs::write(&host.place.path, bytes).unwrap();
    };
    put(older);
    let refused = host.use_once(Store::Cache, Stop::Never, || ()).await.expect_err("it is older");
    assert_eq!(refused.failure(), Failure::WouldLoseData);
    put(last);
    host.use_once(Store::Cache, Stop::Never, || ()).await.expect("the last one counts");
}

/// The target is not involved.
#[tokio::test]
async fn a_host_that_lost_its_state_directory_says_that_it_does_not_know_the_store() {
    for store in [Store::Cache, Store::Log] {
        let mut host = Host::new(serve(Watched::default()));
        host.use_once(store, Stop::Never, || ()).await.unwrap();
        let state = tempfile::tempdir().unwrap();
        let paths = Paths::new(state.path().join("run"), state.path().join("state")).unwrap();
        host.caches = Caches::open(&paths).unwrap();
        let remotes = host.connect("own").await;
        let why = host.try_assess(&remotes, store).await.unwrap().conflict(4096).to_string();
        assert!(why.contains("this host has no record of the store") && why.contains("the state directory"), "{why}");
        remotes.close().await.unwrap();
    }
}
