//! What is saved of a LUN that several hosts share, and what that makes of its next start: who may claim
//! back what it held, and who has left or was fenced and may not.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use block::layer::crash::CrashLayer;
use common::changing::SIZE;
use common::shared_unit::{LEASE, MOMENT, World, lock, options, register};
use common::{BLOCK_BYTES, memory};
use logical_unit::change_marks::Saving;
use logical_unit::limits::ENDED_SPANS_MAX;
use logical_unit::{EndedLives, LifeSecret, NexusId, SavedSharing, SharingOptions, SharingStore};
use scsi::sharing::{LifeBefore, Lock, MessageBody, Mode, NO_PROOF, Parameters, Report, ReportRecord, Resource};
use scsi::{Cdb, Sense};

/// A store that keeps every saved state, in order.
#[derive(Default)]
struct Shelf {
    saved: Mutex<Vec<SavedSharing>>,
    /// Whether nothing can be saved.
    is_full: AtomicBool,
}

impl SharingStore for Shelf {
    fn save(&self, sharing: SavedSharing) -> Saving {
        if self.is_full.load(Ordering::Relaxed) {
            return Box::pin(async { Err("the disk is full".to_owned()) });
        }
        self.put(sharing);
        Box::pin(async { Ok(()) })
    }
}

impl Shelf {
    fn put(&self, sharing: SavedSharing) {
        self.saved.lock().unwrap().push(sharing);
    }

    fn refuse(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    fn last(&self) -> SavedSharing {
        self.saved.lock().unwrap().last().cloned().unwrap_or_default()
    }

    fn options(self: &Arc<Self>) -> SharingOptions {
        let secret = Some(LifeSecret::from_bytes([5; 32]));
        let saved = SavedSharing { secret, ..self.last() }.next_start();
        self.put(saved.clone());
        SharingOptions { store: Some(Arc::clone(self) as Arc<dyn SharingStore>), saved, ..options() }
    }
}

#[test]
fn after_a_restart_only_reclaims_are_granted_for_the_longest_lease() {
    let shelf = Arc::<Shelf>::default();
    let mut world = World::with(memory(), shelf.options());
    let before = world.life("host", 1);
    assert_eq!(before.client >> 32, 1, "the first start");
    let kept = SavedSharing { boot_epoch: 1, reclaimable_from: 1, longest_lease_ms: Some(10_000), ..shelf.last() };
    assert!(shelf.last() == kept && !kept.may_lack_writes, "durable before it was answered");
    let mut world = World::with(memory(), shelf.options());
    let (stock, host) = (world.nexus("stock"), world.nexus("host"));
    assert_eq!(
        world.order(&host, before.client, &Parameters::Renew { taken: 0 }).sense,
        Some(Sense::SHARING_UNKNOWN_CLIENT)
    );
    let change = world.write(&stock, 0, 1);
    assert!(!change.is_over(), "who has copies of before is not known");
    let again = Parameters::Register { key: [1; 16], registers_reads: true, before: Some(before) };
    world.ordered(&host, 0, &again);
    let (_, message) = world.luns.poll_message(&host, Waker::noop()).unwrap();
    assert!(matches!(message.body, MessageBody::Registered { grace_ms: 10_000, .. }), "{message:?}");
    world.ordered(&host, 0, &again);
    let (_, same) = world.luns.poll_message(&host, Waker::noop()).unwrap();
    assert_eq!(same.client, message.client, "the answer was lost, and it asks again");
    assert_eq!(message.client >> 32, 2);
    let host = (host, message.client);
    let asked = lock(1, Resource::Metadata(1), Mode::MetadataExclusive);
    assert_eq!(world.order(&host.0, host.1, &asked).sense, Some(Sense::SHARING_GRACE));
    let locks = vec![Lock { resource: Resource::Metadata(0), mode: Some(Mode::MetadataExclusive), grant: 0 }];
    let reclaim = Parameters::Lock { request: 2, transaction: 0, is_reclaim: true, locks };
    world.ordered(&host.0, host.1, &reclaim);
    assert!(matches!(world.messages(&host.0)[..], [(3, MessageBody::Granted { request: 2, .. })]));
    world.write(&host.0, 0, 7).good();
    for _ in 0..2 {
        world.advance(LEASE / 2);
        world.renew(&host);
    }
    change.good();
    assert_eq!(shelf.last().reclaimable_from, 2, "what others are granted now cannot be reclaimed later");
    world.ordered(&host.0, host.1, &asked);
    assert!(matches!(world.messages(&host.0)[..], [(4, MessageBody::Granted { request: 1, .. })]));
}

/// The time for reclaims is extended as well.
#[test]
fn a_target_that_is_not_run_in_the_time_after_its_start_waits_for_its_clients_as_long() {
    let shelf = Arc::<Shelf>::default();
    let mut world = World::with(memory(), shelf.options());
    world.client("host", 1);
    let mut world = World::with(memory(), shelf.options());
    let stock = world.nexus("stock");
    let change = world.write(&stock, 0, 1);
    world.executor.clock().advance(LEASE * 2);
    world.settle();
    assert!(!change.is_over());
    world.advance(LEASE - MOMENT);
    assert!(!change.is_over());
    world.advance(MOMENT);
    change.good();
}

/// The same where the target itself ended, and its clients' writes are still in the cache of its
/// disk.
#[test]
fn what_was_written_before_a_start_is_durable_before_others_have_its_locks() {
    let (shelf, device) = (Arc::<Shelf>::default(), Arc::new(CrashLayer::new(SIZE, 1)));
    let mut world = World::with(device.clone(), shelf.options());
    let writer = world.client("writer", 1);
    world.write(&writer.0, 0, 1).good();
    let mut world = World::with(device.clone(), shelf.options());
    world.advance(LEASE);
    assert_eq!(shelf.last().reclaimable_from, 2, "others may have them");
    assert_eq!(device.durable_bytes(0, BLOCK_BYTES), [1; BLOCK_BYTES]);
}

fn reclaim_unit(request: u64) -> Parameters {
    let locks = vec![Lock { resource: Resource::File(0), mode: Some(Mode::Exclusive), grant: 0 }];
    Parameters::Lock { request, transaction: 0, is_reclaim: true, locks }
}

fn register_after(key: u8, before: LifeBefore) -> Parameters {
    Parameters::Register { key: [key; 16], registers_reads: true, before: Some(before) }
}

/// The nexus of a host that came before.
fn known(name: &str) -> NexusId {
    NexusId::new(&format!("{name},i,0x1,target,t,0x1"))
}

impl World {
    /// A host that names the life it had before, at the start that this world is of.
    fn come_back(&mut self, name: &str, key: u8, before: LifeBefore) -> Result<(NexusId, u64), Sense> {
        let nexus = self.nexus(name);
        if let Some(sense) = self.order(&nexus, 0, &register_after(key, before)).sense {
            return Err(sense);
        }
        let (_, message) = self.luns.poll_message(&nexus, Waker::noop()).unwrap();
        Ok((nexus, message.client))
    }

    /// Fences a client, and waits until its lease is over while `others` renew theirs.
    fn fence(&mut self, client: u64, others: &[&(NexusId, u64)]) {
        let administrator = self.nexus("administrator");
        self.ordered(&administrator, 0, &Parameters::Fence { client });
        for _ in 0..2 {
            self.advance(LEASE / 2);
            others.iter().for_each(|other| self.renew(other));
        }
    }
}

const NOT_RECLAIMABLE: Sense = Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(24);

/// It was frozen, and knows neither that it was fenced nor what others have written since.
#[test]
fn who_was_fenced_claims_nothing_back_after_a_start_and_who_was_not_does() {
    let shelf = Arc::<Shelf>::default();
    let mut world = World::with(memory(), shelf.options());
    let (frozen, honest) = (world.life("frozen", 1), world.life("honest", 2));
    let other = (known("honest"), honest.client);
    world.fence(frozen.client, &[&other]);
    let mut world = World::with(memory(), shelf.options());
    assert_eq!(world.come_back("frozen", 1, frozen), Err(NOT_RECLAIMABLE));
    let (nexus, client) = world.come_back("honest", 2, honest).unwrap();
    world.ordered(&nexus, client, &reclaim_unit(1));
    assert!(matches!(world.messages(&nexus)[..], [.., (_, MessageBody::Granted { request: 1, .. })]));
    let fresh = world.client("newcomer", 3);
    assert_eq!(fresh.1 >> 32, 2, "as somebody new it may come");
}

/// Each of them is refused, whatever comes of the start in between.
#[test]
fn who_was_fenced_claims_nothing_back_after_several_starts_either() {
    let shelf = Arc::<Shelf>::default();
    let mut world = World::with(memory(), shelf.options());
    let (frozen, honest, fenced_later) = (world.life("frozen", 1), world.life("honest", 2), world.life("later", 3));
    let other = (known("honest"), honest.client);
    let later = (known("later"), fenced_later.client);
    world.fence(frozen.client, &[&other, &later]);
    // Nobody is granted anything at the second start: what was held at the first one still counts.
    let mut world = World::with(memory(), shelf.options());
    let (_, again) = world.come_back("later", 3, fenced_later).unwrap();
    let administrator = world.nexus("administrator");
    world.ordered(&administrator, 0, &Parameters::Fence { client: again });
    world.settle();
    let mut world = World::with(memory(), shelf.options());
    assert_eq!(world.come_back("frozen", 1, frozen), Err(NOT_RECLAIMABLE));
    assert_eq!(world.come_back("later", 3, fenced_later), Err(NOT_RECLAIMABLE), "by the life that it had claimed");
    world.come_back("honest", 2, honest).unwrap();
    // The time for reclaims is over: a client that missed a whole start has nothing any more.
    for _ in 0..3 {
        world.advance(LEASE / 2);
    }
    let mut world = World::with(memory(), shelf.options());
    assert_eq!(world.come_back("honest", 2, honest), Err(NOT_RECLAIMABLE));
}

#[test]
fn who_left_claims_nothing_back_after_a_start() {
    let shelf = Arc::<Shelf>::default();
    let mut world = World::with(memory(), shelf.options());
    let (gone, _stays) = (world.life("gone", 1), world.life("stays", 2));
    world.ordered(&known("gone"), gone.client, &Parameters::Leave);
    world.settle();
    let mut world = World::with(memory(), shelf.options());
    assert_eq!(world.come_back("gone", 1, gone), Err(NOT_RECLAIMABLE));
}

/// A client that comes when all others are gone makes the next start wait again; those of before
/// are no less gone for that.
#[test]
fn who_was_fenced_before_the_unit_was_left_by_all_claims_nothing_back() {
    let shelf = Arc::<Shelf>::default();
    let mut world = World::with(memory(), shelf.options());
    let frozen = world.life("frozen", 1);
    world.fence(frozen.client, &[]);
    assert_eq!(shelf.last().longest_lease_ms, None);
    world.life("later", 2);
    let mut world = World::with(memory(), shelf.options());
    assert_eq!(world.come_back("frozen", 1, frozen), Err(NOT_RECLAIMABLE));
}

/// The target may end at any moment: before the note nothing of the client has passed on, and it may
/// claim that back; after it, it may not.
#[test]
fn that_a_client_was_fenced_is_durable_before_what_it_held_passes_on() {
    let shelf = Arc::<Shelf>::default();
    let mut world = World::with(memory(), shelf.options());
    let frozen = world.life("frozen", 1);
    world.ordered(&known("frozen"), frozen.client, &lock(1, Resource::File(0), Mode::Exclusive));
    let other = world.client("other", 2);
    world.ordered(&other.0, other.1, &lock(1, Resource::File(0), Mode::Exclusive));
    world.messages(&other.0);
    shelf.refuse(true);
    world.fence(frozen.client, &[&other]);
    assert_eq!(world.messages(&other.0), [], "it waits for the note");
    let crashed = Arc::<Shelf>::default();
    crashed.put(shelf.last());
    let mut after = World::with(memory(), crashed.options());
    let (nexus, client) = after.come_back("frozen", 1, frozen).unwrap();
    after.ordered(&nexus, client, &reclaim_unit(1));
    assert!(matches!(after.messages(&nexus)[..], [.., (_, MessageBody::Granted { request: 1, .. })]));
    shelf.refuse(false);
    world.renew(&other);
    world.advance(Duration::from_secs(2));
    assert!(matches!(world.messages(&other.0)[..], [(_, MessageBody::Granted { request: 1, .. })]));
    let mut world = World::with(memory(), shelf.options());
    assert_eq!(world.come_back("frozen", 1, frozen), Err(NOT_RECLAIMABLE));
}

/// Of hosts that stay between others that go there are more than can be noted apart.
#[test]
fn where_not_every_end_can_be_noted_nobody_claims_anything_back() {
    let shelf = Arc::<Shelf>::default();
    let secret = Some(LifeSecret::from_bytes([5; 32]));
    let spans = (1..=ENDED_SPANS_MAX as u64).map(|index| (1 << 32) + 3 * index + 1_000);
    let ended = EndedLives::from_spans(spans.map(|life| life..=life));
    shelf.put(SavedSharing { secret, ended, ..SavedSharing::default() });
    let options = SharingOptions {
        saved: SavedSharing { boot_epoch: 1, reclaimable_from: 1, ..shelf.last() },
        ..shelf.options()
    };
    let mut world = World::with(memory(), options);
    let (honest, frozen) = (world.life("honest", 1), world.life("frozen", 2));
    let other = (known("honest"), honest.client);
    world.fence(frozen.client, &[&other]);
    let mut world = World::with(memory(), shelf.options());
    assert_eq!(world.come_back("honest", 1, honest), Err(NOT_RECLAIMABLE));
    world.advance(LEASE);
    assert!(shelf.last().ended.is_empty(), "those of before can reclaim nothing in any case");
}

/// Ids of lives are no secret: a report lists them, and the next ones can be guessed.
#[test]
fn nobody_claims_what_a_life_held_that_was_not_its_own() {
    let shelf = Arc::<Shelf>::default();
    let mut world = World::with(memory(), shelf.options());
    let (victim, thief) = (world.life("victim", 1), world.life("thief", 2));
    let mut world = World::with(memory(), shelf.options());
    let (stranger, host) = (world.nexus("thief"), world.nexus("victim"));
    let register =
        |key: u8, before| Parameters::Register { key: [key; 16], registers_reads: true, before: Some(before) };
    let mut altered = victim;
    altered.proof[31] ^= 1;
    for before in [LifeBefore { proof: NO_PROOF, ..victim }, LifeBefore { client: victim.client, ..thief }, altered] {
        // Also with the victim's key: each process draws a new one, and it proves nothing about an
        // earlier life.
        for key in [1, 2] {
            let refused = world.order(&stranger, 0, &register(key, before)).sense.expect("it is not its own");
            assert_eq!(refused, Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(32), "{before:?}");
        }
    }
    world.ordered(&host, 0, &register(1, victim));
    world.ordered(&stranger, 0, &register(2, thief));
    // A life of an earlier start, whose locks were not granted to others since.
    let mut world = World::with(memory(), shelf.options());
    let host = world.nexus("victim");
    world.ordered(&host, 0, &register(1, victim));
    // A unit without a secret accepts no claim.
    let mut world = World::with(
        memory(),
        SharingOptions { saved: SavedSharing { secret: None, ..shelf.last() }.next_start(), ..options() },
    );
    let host = world.nexus("victim");
    let refused = world.order(&host, 0, &register(1, victim)).sense;
    assert_eq!(refused, Some(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(32)));
    assert_eq!(world.life("other", 3).proof, NO_PROOF);
}

/// A host that was fenced and does not know it registers in its next session: accepted, it would be
/// one more living client, until it learns of the fence and leaves.
#[test]
fn the_key_of_a_fenced_client_makes_no_new_one() {
    let mut world = World::new();
    let (one, two) = (world.client("one", 1), world.client("two", 2));
    let stock = world.nexus("stock");
    world.ordered(&stock, 0, &Parameters::Fence { client: one.1 });
    let again = world.nexus("again");
    for nexus in [&one.0, &again] {
        assert_eq!(world.order(nexus, 0, &register(1)).sense, Some(Sense::SHARING_FENCED));
    }
    world.advance(LEASE / 2);
    world.renew(&two);
    world.advance(LEASE / 2);
    let clients = |record: &ReportRecord| matches!(record, ReportRecord::Client { .. });
    assert_eq!(world.report(&stock).into_iter().filter(clients).count(), 1);
    assert_ne!(world.register(&again, 3), one.1, "another key is another host");
    world.ordered(&two.0, two.1, &Parameters::Leave);
    assert_ne!(world.register(&two.0, 2), two.1, "who left in order may come again");
}

/// An administrator picks the client to fence from the report: it must be listed, also afterwards.
#[test]
fn a_report_names_the_hosts_and_those_that_were_fenced() {
    let mut world = World::new();
    let (one, two) = (world.client("one", 1), world.client("two", 2));
    let stock = world.nexus("stock");
    let names = |world: &mut World| Report::names(&world.report_with_names(&stock));
    let both = [(one.1, "one,i,0x1".to_owned()), (two.1, "two,i,0x1".to_owned())];
    assert_eq!(names(&mut world), both);
    world.ordered(&stock, 0, &Parameters::Fence { client: one.1 });
    world.advance(LEASE / 2);
    world.renew(&two);
    world.advance(LEASE / 2);
    assert_eq!(names(&mut world), both);
    assert!(world.report(&stock).contains(&ReportRecord::Fenced { client: one.1 }));
    world.luns.remove_nexus(&one.0);
    assert_eq!(names(&mut world), both[1..]);
}

#[test]
fn a_start_waits_for_nobody_when_nobody_can_hold_anything() {
    let shelf = Arc::<Shelf>::default();
    let mut world = World::with(memory(), shelf.options());
    let client = world.client("client", 1);
    assert!(shelf.last().longest_lease_ms.is_some());
    world.ordered(&client.0, client.1, &Parameters::Leave);
    world.settle();
    assert_eq!(shelf.last().longest_lease_ms, None);
    let mut world = World::with(memory(), shelf.options());
    let stock = world.nexus("stock");
    world.write(&stock, 0, 1).good();
    assert_eq!(world.client("client", 1).1 >> 32, 2);
    assert!(shelf.last().longest_lease_ms.is_some());
}

/// After a start no host reads before those are back that may have dirty data.
#[test]
fn that_a_host_may_have_writes_of_its_own_is_durable_before_it_holds_a_range_alone() {
    let shelf = Arc::<Shelf>::default();
    let mut world = World::with(memory(), shelf.options());
    let (holder, stock) = (world.client("holder", 1), world.nexus("stock"));
    assert!(!shelf.last().may_lack_writes);
    let locks = [(Resource::File(0), Mode::IntentionExclusive), (Resource::Group(0, 0), Mode::Exclusive)];
    let locks = locks.map(|(resource, mode)| Lock { resource, mode: Some(mode), grant: 0 }).to_vec();
    let asked = Parameters::Lock { request: 1, transaction: 0, is_reclaim: false, locks };
    world.ordered(&holder.0, holder.1, &asked);
    assert!(shelf.last().may_lack_writes);
    let read = world.read(&stock, 0);
    assert!(!read.is_over(), "it waits for the holder");
    let mut world = World::with(memory(), shelf.options());
    let stock = world.nexus("stock");
    let read = world.read(&stock, 0);
    assert!(!read.is_over(), "it waits for whoever may claim it back");
    for _ in 0..2 {
        world.advance(LEASE / 2);
    }
    read.good();
    assert!(!shelf.last().may_lack_writes, "nobody is left who could");
}

/// Allocated blocks are what a copy of the unit reads: without a host's dirty data it would miss
/// some.
#[test]
fn nobody_is_told_what_is_allocated_where_a_host_may_have_writes_of_its_own() {
    let mut world = World::new();
    let (holder, stock) = (world.client("holder", 1), world.nexus("stock"));
    let locks = [(Resource::File(0), Mode::IntentionExclusive), (Resource::Group(0, 0), Mode::Exclusive)];
    let locks = locks.map(|(resource, mode)| Lock { resource, mode: Some(mode), grant: 0 }).to_vec();
    world.ordered(&holder.0, holder.1, &Parameters::Lock { request: 1, transaction: 0, is_reclaim: false, locks });
    world.messages(&holder.0);
    let asked = Cdb::GetLbaStatus { lba: 0, allocation_length: 256 };
    let by_holder = world.start(&holder.0, asked, &[]);
    by_holder.good();
    let by_stock = world.start(&stock, asked, &[]);
    assert!(!by_stock.is_over(), "it waits for the holder");
    world.advance(Duration::from_millis(20));
    let callback = match world.messages(&holder.0)[..] {
        [(_, MessageBody::CallBack { callback, .. })] => callback,
        ref other => panic!("{other:?}"),
    };
    world.write(&holder.0, 0, 7).good();
    world.acknowledge(&holder, callback);
    let told = by_stock.outcome();
    let runs = scsi::lba_status::parse(&told.data_in).unwrap();
    assert_eq!(runs.first().map(|run| run.lba), Some(0));
}
