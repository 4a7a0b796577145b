//! How an attachment ends: what is told of losses, and what stays noted of a store that is not closed.

use cache::CrashMode;

use super::*;
use crate::status::Report;

/// A layer below may still hold a request, and write to the cache when this host knows only one
/// token.
#[tokio::test]
async fn a_cache_that_was_not_closed_in_time_is_not_noted_as_closed() {
    let gate = Gate::new();
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let attachment =
        Attachment::start(config(address, directory.path(), Percent::ALL), &paths, pending()).await.unwrap().unwrap();
    let cache = attachment.stack.cache().unwrap();
    cache.write(0, filled(1), false).await.unwrap();
    gate.stop_at(is_flush);
    let cleaning = tokio::spawn(async move { cache.clean(|_| {}).await });
    gate.reached.notified().await;
    let ended = attachment.run(ready(())).await;
    let tokens = Caches::open(&paths).unwrap().list().unwrap()[0].tokens.clone();
    assert!(tokens.len() > 1, "{tokens:?} after {ended:?}");
    gate.opened.notify_one();
    cleaning.abort();
}

/// Whoever asked first may have been interrupted.
#[tokio::test]
async fn a_second_detach_shows_how_far_the_first_has_come_and_has_its_result() {
    let gate = Gate::new();
    let (reached, opened) = (Arc::clone(&gate.reached), Arc::clone(&gate.opened));
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let config = config(address, directory.path(), Percent::ALL);
    let attachment = Attachment::start(config, &paths, pending()).await.unwrap().unwrap();
    let place = attachment.fronts.places()[0].clone();
    attachment.stack.device().write(0, filled(7), true).await.unwrap();
    let socket = paths.control_socket("disk");
    let detach = |remove_cache| ControlRequest::Detach { keep_dirty: false, remove_cache };
    let asking = async {
        let (_client, driver) = front::NbdClient::connect(&place.parse().unwrap()).await.unwrap();
        tokio::spawn(driver);
        gate.stop_at(is_flush);
        let (first, plain) = (detach(false), detach(false));
        let second = async {
            reached.notified().await;
            let removing = call(&socket, &detach(true), |_| {}).await.unwrap_err();
            assert!(removing.failure() == Failure::InUse && removing.to_string().contains("its cache stays"));
            let slower = ControlRequest::Set { key: "cache.clean-max".to_owned(), value: "1MiB".to_owned() };
            call(&socket, &slower, |_| {}).await.expect("how fast it is cleaned can be changed");
            let show = |report: &Report| {
                if matches!(report, Report::Destaged { bytes_total: 4096, .. }) {
                    opened.notify_one();
                }
            };
            call(&socket, &plain, show).await.unwrap()
        };
        let (first, second) = tokio::join!(call(&socket, &first, |_| {}), second);
        (first.unwrap(), second)
    };
    let (ran, (first, second)) = tokio::join!(attachment.run(pending()), asking);
    ran.unwrap();
    assert_eq!((&first["dirty_bytes"], &second["dirty_bytes"]), (&0.into(), &0.into()), "{first} {second}");
    assert_eq!(first["in_use"][0]["users"], 1, "the client that was there: {first}");
}

/// A flush of the cache's own: no application has asked for one.
#[tokio::test]
async fn a_loss_that_closing_the_cache_tells_is_told_as_one_and_the_cache_is_not_needed_any_more() {
    let gate = Gate::new();
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let mut config = config(address, directory.path(), Percent::ALL);
    let cache = config.stack.cache.as_mut().unwrap();
    (cache.mode, cache.crash_mode) = (Mode::WriteThrough, Some(CrashMode::Warm));
    let attachment = Attachment::start(config, &paths, pending()).await.unwrap().unwrap();
    gate.fails_flush.store(true, Ordering::Relaxed);
    attachment.stack.device().write(0, filled(7), false).await.unwrap();
    gate.reached.notified().await;
    let told = attachment.run(ready(())).await.unwrap_err().to_string();
    assert!(told.contains("what applications wrote to it before its last flush may be lost"), "{told}");
    assert_eq!(Registry::open(&paths).unwrap().entries().unwrap(), [], "nothing is dirty there");
}

/// Nobody there can write again what is lost.
#[tokio::test]
async fn a_loss_fails_one_flush_by_the_control_socket_and_is_kept_from_nobody() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let config = config(address, directory.path(), Percent::ALL);
    let attachment = Attachment::start(config, &paths, pending()).await.unwrap().unwrap();
    let (progress, _reports) = tokio::sync::mpsc::unbounded_channel();
    let flush = async || attachment.stack.flush(progress.clone()).await;
    attachment.stack.device().write(0, filled(7), false).await.unwrap();
    let flushed = flush().await.unwrap();
    assert_eq!((flushed.durable_in.as_str(), flushed.dirty_bytes), ("cache", 4096));
    let losses = attachment.stack.losses();
    let mut application = losses.reader();
    losses.note(block::Error::new(block::ErrorKind::Media, "the device lost it"));
    let told = flush().await.unwrap_err().to_string();
    assert!(told.contains("may be lost") && told.contains("the device lost it"), "{told}");
    flush().await.unwrap();
    assert!(losses.check_known().is_err(), "no application knows of it");
    assert!(application.end(Ok(())).is_err(), "it is told all the same");
    application.note_delivered();
    attachment.run(ready(())).await.unwrap();
}

#[tokio::test]
async fn a_loss_that_nobody_was_told_of_is_told_at_the_end() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    for is_told in [false, true] {
        let config = config(address, directory.path(), Percent::ALL);
        let attachment = Attachment::start(config, &paths, pending()).await.unwrap().unwrap();
        let losses = attachment.stack.losses();
        losses.note(block::Error::new(block::ErrorKind::Media, "the device lost it"));
        if is_told {
            let mut client = losses.reader();
            assert!(client.end(Ok(())).is_err());
            client.note_delivered();
        }
        let ended = attachment.run(ready(())).await;
        assert_eq!(ended.is_ok(), is_told);
        if let Err(error) = ended {
            assert!(
                error.to_string().contains("it is not known that any of them was told (the device lost it"),
                "{error}"
            );
        }
    }
}

/// What it has sent is dirty on its device until it is closed. If the LUN were used without it
/// meanwhile, it would be sent again over newer data.
#[tokio::test]
async fn a_store_that_could_not_be_closed_in_time_is_asked_for_by_the_next_attach() {
    for has_log in [false, true] {
        let gate = Gate::new();
        let (memory, reached, opened) = (Arc::clone(&gate.inner), Arc::clone(&gate.reached), Arc::clone(&gate.opened));
        let address = serve(gate.clone(), Arc::new(MemoryChanges));
        let directory = tempfile::tempdir().unwrap();
        let paths = open_paths(directory.path());
        let with_store = || {
            let mut config = config(address, directory.path(), Percent::new(0));
            if has_log {
                (config.stack.cache, config.stack.log) = (None, Some(log_config(directory.path())));
            }
            config
        };
        let attachment = Attachment::start(with_store(), &paths, pending()).await.unwrap().unwrap();
        let device = attachment.stack.device();
        device.write(0, filled(7), true).await.unwrap();
        let is_sent = async {
            while memory.read(0, Buffer::zeroed(4096)).await.unwrap()[..] != [7; 4096] {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), is_sent).await.expect("it is sent");
        gate.stop_at(|operation| matches!(operation, Operation::Read { .. }));
        let reading = tokio::spawn(device.read(MIB, Buffer::zeroed(4096)));
        reached.notified().await;
        // Its requests end after this, or not at all.
        let _ = attachment.run(ready(())).await;
        assert_eq!(Registry::open(&paths).unwrap().entries().unwrap().len(), 1, "log: {has_log}");
        opened.notify_one();
        let _ = reading.await;

        let mut without = with_store();
        (without.stack.cache, without.stack.log) = (None, None);
        let refused = Attachment::start(without, &paths, pending()).await.err().expect("data may be missing there");
        assert_eq!(refused.failure(), Failure::WouldLoseData, "{refused}");
    }
}

/// Somebody cuts its file. On its device it is still in use, and what it has written back long ago is dirty there.
#[tokio::test]
async fn a_store_whose_end_could_not_be_stored_is_asked_for_by_the_next_attach() {
    for (has_log, file) in [(false, "disk.cache"), (true, "disk.log")] {
        let address = serve(Gate::new(), Arc::new(MemoryChanges));
        let directory = tempfile::tempdir().unwrap();
        let paths = open_paths(directory.path());
        let mut config = config(address, directory.path(), Percent::ALL);
        if has_log {
            let log = LogConfig { record_cache_bytes: Some(0), ..log_config(directory.path()) };
            (config.stack.cache, config.stack.log) = (None, Some(log));
        }
        let attachment = Attachment::start(config, &paths, pending()).await.unwrap().unwrap();
        let device = attachment.stack.device();
        device.write(0, filled(7), true).await.unwrap();
        attachment.stack.clean(tokio::sync::mpsc::unbounded_channel().0).await.unwrap();
        std::fs::OpenOptions::new().write(true).open(directory.path().join(file)).unwrap().set_len(0).unwrap();
        // It is looked at when something cannot be read there.
        assert_eq!(device.read(0, Buffer::zeroed(4096)).await.unwrap()[..], [7; 4096], "{file}");
        attachment.run(ready(())).await.expect_err("its end cannot be stored");
        assert_eq!(Registry::open(&paths).unwrap().entries().unwrap().len(), 1, "{file}");
    }
}
