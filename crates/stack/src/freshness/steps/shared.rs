//! Stores of a LUN that several hosts share.

use super::*;

/// A LUN that several hosts share.
fn serve_shared() -> SocketAddr {
    serve_shared_with(Watched::default())
}

fn serve_shared_with(marks: Watched) -> SocketAddr {
    let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
    let lun = Arc::new(MemoryDevice::new(16 * MIB, identity));
    test_target::serve_shared(lun, Arc::new(marks), system_clock().unwrap())
}

/// The ranges that it was asked to drop.
#[derive(Default)]
struct Asked(Mutex<Vec<ByteRange>>);

impl block::Keeper for Asked {
    fn revoke(&self, range: ByteRange) -> block::Dropped {
        self.0.lock().unwrap().push(range);
        Box::pin(async {})
    }
}

impl Host {
    pub(super) async fn assess_shared(&self, remotes: &Remotes) -> Assessed {
        let promise = Promise { is_shared: true, ..Promise::default() };
        assess(remotes, &self.caches, Store::Cache, &self.place, promise).await.unwrap()
    }

    /// Attaches a LUN that hosts share, and detaches; only the steps before `stop`. The store keeps
    /// all lines.
    pub(super) async fn share_once(&self, stop: Stop) {
        let remotes = self.connect_as("own", true).await;
        let assessed = self.assess_shared(&remotes).await;
        let renewal = MarkRenewal::start(vec![self.commit_to(&keeping_all(), &remotes, assessed).await.unwrap()], None);
        if stop != Stop::InUse {
            renewal.empty_shared().await;
        }
        if stop == Stop::Never {
            renewal.note_telling();
            renewal.finish(true).await;
        }
        remotes.close().await.unwrap();
    }
}

pub(super) fn keeping_all() -> Opened {
    Opened { clean_ranges: vec![ByteRange { offset: 0, length: 16 * MIB }], ..Opened::default() }
}

/// One change comes when the store is being opened, and one when it is open: the second report
/// contains the former, and this host is called back for the latter.
#[tokio::test]
async fn a_change_between_the_report_and_the_registration_of_what_a_store_keeps_is_not_lost() {
    let host = Host::new(serve_shared());
    host.share_once(Stop::Never).await;
    let remotes = host.connect_as("own", true).await;
    let asked = Arc::<Asked>::default();
    let keeper: Arc<dyn block::Keeper> = asked.clone();
    remotes.device().copies().unwrap().add_keeper(Arc::downgrade(&keeper));
    let assessed = host.assess_shared(&remotes).await;
    assert!(matches!(assessed.freshness(), Freshness::Unchanged) && assessed.keeps_shared());
    let other = host.connect("other").await;
    let others = other.device();
    others.write(3 * MIB, Buffer::zeroed(4096), false).await.unwrap();
    let opened = keeping_all();
    let record = StoreRecord::new(&host.place, 4096, &remotes.identity(), "disk");
    let (reported, _held) = assessed.commit(&host.caches, record, (&opened, false)).await.unwrap();
    assert_eq!((reported.state.as_str(), reported.changed_ranges), ("partly", 1), "{}", reported.why);
    assert_eq!(*opened.invalidated.lock().unwrap(), [ByteRange { offset: 3 * MIB, length: MIB }]);
    assert_eq!(*asked.0.lock().unwrap(), [], "nobody knew that it had anything there");
    others.write(5 * MIB, Buffer::zeroed(4096), false).await.unwrap();
    assert_eq!(*asked.0.lock().unwrap(), [ByteRange { offset: 5 * MIB, length: 4096 }]);
}

/// The copies that it was asked for were dropped in memory, but not on its disk.
#[tokio::test]
async fn a_store_of_a_shared_lun_that_did_not_come_to_an_orderly_end_counts_for_nothing() {
    let host = Host::new(serve_shared());
    for stop in [Stop::InUse, Stop::Closed] {
        host.share_once(Stop::Never).await;
        assert_eq!(host.mark().stage(), MarkStage::Cleared);
        host.share_once(stop).await;
        assert_eq!(host.mark().stage(), MarkStage::Owing);
        let remotes = host.connect_as("own", true).await;
        let assessed = host.assess_shared(&remotes).await;
        assert!(!assessed.keeps_shared() && assessed.why.contains("orderly end"), "{}", assessed.why);
        remotes.close().await.unwrap();
    }
}

/// As where several marks of this host have cost others their share of the time: the next command is answered BUSY for
/// some seconds.
#[tokio::test]
async fn a_target_whose_disk_is_slow_is_waited_for_until_the_mark_of_a_shared_lun_is_empty() {
    let marks = Watched::default();
    let host = Host::new(serve_shared_with(marks.clone()));
    host.share_once(Stop::Never).await;
    let remotes = host.connect_as("own", true).await;
    let assessed = host.assess_shared(&remotes).await;
    let renewal = MarkRenewal::start(vec![host.commit_to(&keeping_all(), &remotes, assessed).await.unwrap()], None);
    let mark = host.mark();
    marks.seen().slowness = Duration::from_millis(450);
    let lun = Arc::clone(&remotes.member_luns()[0].luns[0]);
    for _ in 0..3 {
        let report = report_of(&lun, mark.id()).await.unwrap();
        assert!(lun.clear_mark(mark.id(), mark.newest(), report.sequence).await.unwrap());
    }
    renewal.empty_shared().await;
    marks.seen().slowness = Duration::ZERO;
    renewal.note_telling();
    renewal.finish(true).await;
    assert_eq!(host.mark().stage(), MarkStage::Cleared);
    remotes.close().await.unwrap();
}

/// Others use it at the same time: the promise was about another time.
#[tokio::test]
async fn a_promise_of_before_does_not_count_while_the_lun_is_shared_nor_afterwards() {
    let host = Host::new(serve_shared());
    host.share_once(Stop::Never).await;
    let record = host.caches.find(&host.place).unwrap().unwrap();
    host.caches.note(&StoreRecord { is_exclusive: true, ..record }).unwrap();
    host.share_once(Stop::InUse).await;
    let record = host.caches.find(&host.place).unwrap().unwrap();
    assert!(!record.is_exclusive && record.is_stale);
}
