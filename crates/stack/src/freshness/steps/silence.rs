//! A LUN that is taken out of its target, and put back as it was.

use super::shared::keeping_all;
use super::*;
use crate::test_target::Removable;

const MOMENT: Duration = Duration::from_millis(300);

fn serve_removable(is_shared: bool) -> (Host, Removable) {
    let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
    let lun = Arc::new(MemoryDevice::new(16 * MIB, identity));
    let (address, lun) = test_target::serve_removable(lun, Arc::new(Watched::default()), is_shared);
    (Host::new(address), lun)
}

#[tokio::test]
async fn a_lun_that_is_not_there_for_a_moment_of_an_attach_costs_neither_dirty_data_nor_clean_lines() {
    let (host, lun) = serve_removable(false);
    host.attach_once().await;
    let remotes = host.connect("own").await;
    lun.remove();
    let (assessed, ()) = tokio::join!(host.try_assess(&remotes, Store::Cache), lun.put_back_after(MOMENT));
    let assessed = assessed.unwrap();
    assert_eq!(assessed.freshness(), Freshness::Unchanged, "{}", assessed.why);
    assert!(!assessed.is_mark_lost);
    host.commit(&remotes, assessed).await;
    assert_eq!(host.mark().stage(), MarkStage::Cleared);
}

/// A mark of an attempt that came to nothing would be taken again in the next session, and tell of changes by nobody.
#[tokio::test]
async fn attempts_of_an_attach_have_one_mark_and_dirty_data_is_not_refused_after_them() {
    let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
    let host = Host::new(test_target::serve_away_at_mark(Arc::new(MemoryDevice::new(16 * MIB, identity))));
    let attached = Attached::new(&host).await;
    let marks = attached.remotes.member_luns()[0].luns[0].marks().await.unwrap();
    assert_eq!(marks.iter().map(|mark| mark.id).collect::<Vec<_>>(), [host.mark().id()]);
    attached.cache.write(0, ones(), false).await.unwrap();
    attached.lose_session().await;
    assert_eq!(attached.guard.trouble(), None);
    attached.end(false).await;
}

/// As that of a LUN that is not there at its login.
#[tokio::test]
async fn an_attach_of_a_lun_that_does_not_come_back_is_refused_and_the_next_one_finds_all_as_it_was() {
    let (host, lun) = serve_removable(false);
    host.attach_once().await;
    let other = host.connect("other").await;
    other.device().write(3 * MIB, Buffer::zeroed(4096), false).await.unwrap();
    let remotes = test_target::connect_impatiently(host.address, "own", Duration::from_millis(500)).await;
    let before = host.mark();
    lun.remove();
    let promise = Promise { overwrites_changes: true, ..Promise::default() };
    let refused = assess(&remotes, &host.caches, Store::Cache, &host.place, promise).await.err().unwrap();
    assert_eq!(refused.failure(), Failure::Unreachable);
    for words in ["is not there, or busy", "try again", "disk.cache"] {
        assert!(refused.to_string().contains(words), "{refused}");
    }
    assert!(!refused.to_string().contains("discard"), "{refused}");
    let left = host.mark();
    assert_eq!((left.id(), left.stage()), (before.id(), MarkStage::Cleared));
    release_refused(&remotes, &host.caches).await;
    drop(remotes);
    lun.put_back();
    let remotes = host.connect("own").await;
    assert_eq!(host.assess(&remotes).await.changed(), [ByteRange { offset: 3 * MIB, length: MIB }]);
}

/// Where the target could not tell at the time of the dirty data, an attach that comes to nothing is no reason to
/// refuse it.
#[tokio::test]
async fn an_attach_whose_mark_cannot_be_cleared_now_comes_to_nothing() {
    let (host, lun) = serve_removable(false);
    let remotes = test_target::connect_impatiently(host.address, "own", Duration::from_millis(500)).await;
    host.caches.note(&StoreRecord::new(&host.place, 4096, &remotes.identity(), "disk")).unwrap();
    let assessed = host.assess(&remotes).await;
    assert!(!assessed.is_mark_lost, "{}", assessed.why);
    lun.remove();
    let opened = Opened { is_dirty: true, ..Opened::default() };
    let refused = host.commit_to(&opened, &remotes, assessed).await.err().unwrap();
    assert_eq!(refused.failure(), Failure::Unreachable, "{refused}");
    assert_eq!(host.mark().stage(), MarkStage::New);
    lun.put_back();
    drop(remotes);
    let remotes = host.connect("own").await;
    let assessed = host.assess(&remotes).await;
    assert!(!assessed.is_mark_lost, "{}", assessed.why);
}

#[tokio::test]
async fn what_is_kept_of_a_shared_lun_that_is_not_there_when_it_is_registered_stays() {
    let (host, lun) = serve_removable(true);
    host.share_once(Stop::Never).await;
    let remotes = host.connect_as("own", true).await;
    let assessed = host.assess_shared(&remotes).await;
    lun.remove();
    let opened = keeping_all();
    let refused = host.commit_to(&opened, &remotes, assessed).await.err().unwrap();
    assert_eq!(refused.failure(), Failure::Unreachable, "{refused}");
    assert_eq!(*opened.invalidated.lock().unwrap(), []);
    assert_eq!(host.mark().stage(), MarkStage::Cleared);
    lun.put_back();
    drop(remotes);
    let remotes = host.connect_as("own", true).await;
    assert!(host.assess_shared(&remotes).await.keeps_shared());
}
