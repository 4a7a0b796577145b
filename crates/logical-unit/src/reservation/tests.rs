//! Reservations against the standard's tables.

use std::collections::VecDeque;
use std::future::{poll_fn, ready};
use std::sync::atomic::AtomicUsize;
use std::task::Poll;

use futures_util::FutureExt;
use scsi::cdb::{Blocks, Transfer};
use scsi::persistent_reservation::ReservationType as Kind;
use scsi::{Cdb, Sense};

use super::*;

const KEY_A: u64 = 0xa;
const KEY_B: u64 = 0xb;

fn nexus(name: &str) -> NexusId {
    NexusId::new(name)
}

fn register(key: Option<u64>, new: u64) -> Request {
    Request::Register { key, new, is_persistent: false, others: Vec::new() }
}

fn transfer() -> Transfer {
    Transfer { blocks: Blocks::new(0, 1), is_dpo: false, is_fua: false }
}

/// Carries out a request whose future does not wait.
fn ask(reservations: &Reservations, nexus: &NexusId, request: Request) -> Result<Vec<Effect>, Failure> {
    reservations.request(nexus, request).now_or_never().expect("nothing is waited for")
}

/// Nexuses a and b are registered, c is not; a holds a reservation of `kind`.
fn reserved(kind: Kind) -> Reservations {
    let reservations = Reservations::default();
    for (name, key) in [("a", KEY_A), ("b", KEY_B)] {
        let request = register(Some(0), key);
        assert_eq!(ask(&reservations, &nexus(name), request), Ok(vec![]));
    }
    assert_eq!(ask(&reservations, &nexus("a"), Request::Reserve { key: KEY_A, kind }), Ok(vec![]));
    reservations
}

fn allowed(reservations: &Reservations, name: &str) -> (bool, bool) {
    let may = |cdb: Cdb| reservations.check(&nexus(name), &cdb).is_ok();
    (may(Cdb::Read(transfer())), may(Cdb::Write(transfer())))
}

/// SPC-4 table 34: (read, write) of the holder, of a registrant, of any other nexus.
#[test]
fn each_type_allows_what_the_table_says() {
    for (kind, registrant, other) in [
        (Kind::WriteExclusive, (true, false), (true, false)),
        (Kind::ExclusiveAccess, (false, false), (false, false)),
        (Kind::WriteExclusiveRegistrantsOnly, (true, true), (true, false)),
        (Kind::ExclusiveAccessRegistrantsOnly, (true, true), (false, false)),
        (Kind::WriteExclusiveAllRegistrants, (true, true), (true, false)),
        (Kind::ExclusiveAccessAllRegistrants, (true, true), (false, false)),
    ] {
        let reservations = reserved(kind);
        assert_eq!(allowed(&reservations, "a"), (true, true), "{kind:?}");
        assert_eq!(allowed(&reservations, "b"), registrant, "{kind:?}");
        assert_eq!(allowed(&reservations, "c"), other, "{kind:?}");
        let inquiry = Cdb::Inquiry { is_vpd: false, page: 0, allocation_length: 36 };
        assert_eq!(reservations.check(&nexus("c"), &inquiry), Ok(()));
    }
}

#[test]
fn registering_asks_for_the_key_there_is() {
    let reservations = Reservations::default();
    let a = nexus("a");
    assert_eq!(ask(&reservations, &a, register(Some(1), 2)), Err(CONFLICT));
    assert!(ask(&reservations, &a, register(Some(0), 2)).is_ok());
    assert_eq!(ask(&reservations, &a, register(Some(0), 3)), Err(CONFLICT));
    assert!(ask(&reservations, &a, register(None, 3)).is_ok());
    assert_eq!((reservations.view().keys(), reservations.view().generation), (vec![3], 2));
    assert!(ask(&reservations, &a, register(Some(3), 0)).is_ok());
    assert_eq!((reservations.view().keys(), reservations.view().generation), (vec![], 3));
}

#[test]
fn only_a_registrant_reserves_and_only_the_holder_releases() {
    let kind = Kind::WriteExclusiveRegistrantsOnly;
    let reservations = reserved(kind);
    let reserve = |name: &str, key, kind| ask(&reservations, &nexus(name), Request::Reserve { key, kind });
    assert_eq!(reserve("c", 0, kind), Err(CONFLICT));
    assert_eq!(reserve("b", KEY_B, kind), Err(CONFLICT));
    assert_eq!(reserve("a", KEY_A, Kind::ExclusiveAccess), Err(CONFLICT));
    assert_eq!(reserve("a", KEY_A, kind), Ok(vec![]));
    let release = |name: &str, key, kind| ask(&reservations, &nexus(name), Request::Release { key, kind });
    assert_eq!(release("b", KEY_B, kind), Ok(vec![]));
    assert!(reservations.view().reservation().is_some());
    let wrong = Failure::Sense(Sense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION);
    assert_eq!(release("a", KEY_A, Kind::ExclusiveAccess), Err(wrong));
    assert_eq!(release("a", KEY_A, kind), Ok(vec![Effect::Tell(nexus("b"), Sense::RESERVATIONS_RELEASED)]));
    assert_eq!(allowed(&reservations, "c"), (true, true));
}

#[test]
fn all_registrants_hold_it_until_the_last_is_gone() {
    let reservations = reserved(Kind::ExclusiveAccessAllRegistrants);
    let unregister = |name: &str, key| ask(&reservations, &nexus(name), register(Some(key), 0));
    assert_eq!(reservations.view().reservation().map(|reservation| reservation.key), Some(0));
    assert_eq!(unregister("a", KEY_A), Ok(vec![]));
    assert_eq!(allowed(&reservations, "b"), (true, true));
    assert_eq!(allowed(&reservations, "a"), (false, false));
    assert_eq!(unregister("b", KEY_B), Ok(vec![]));
    assert_eq!(allowed(&reservations, "a"), (true, true));
}

#[test]
fn preempting_the_holder_takes_its_reservation() {
    let reservations = reserved(Kind::ExclusiveAccess);
    let preempt = Request::Preempt { key: KEY_B, victim: KEY_A, kind: Kind::WriteExclusive, is_aborting: true };
    let effects = ask(&reservations, &nexus("b"), preempt);
    let a = nexus("a");
    let expected = [Effect::AbortTasksOf(a.clone()), Effect::Tell(a, Sense::REGISTRATIONS_PREEMPTED)];
    assert_eq!(effects.as_deref(), Ok(&expected[..]));
    assert_eq!(reservations.view().keys(), [KEY_B]);
    assert_eq!(allowed(&reservations, "a"), (true, false));
    assert_eq!(allowed(&reservations, "b"), (true, true));
    let nobody = Request::Preempt { key: KEY_B, victim: 0x77, kind: Kind::WriteExclusive, is_aborting: false };
    assert_eq!(ask(&reservations, &nexus("b"), nobody), Err(CONFLICT));
}

#[test]
fn preempting_a_registration_leaves_the_reservation() {
    let reservations = reserved(Kind::WriteExclusive);
    let preempt = Request::Preempt { key: KEY_A, victim: KEY_B, kind: Kind::WriteExclusive, is_aborting: false };
    let told = Effect::Tell(nexus("b"), Sense::REGISTRATIONS_PREEMPTED);
    assert_eq!(ask(&reservations, &nexus("a"), preempt), Ok(vec![told]));
    assert_eq!(reservations.view().keys(), [KEY_A]);
    assert!(reservations.view().reservation().is_some());
}

#[test]
fn clearing_ends_everything_and_tells_the_others() {
    let reservations = reserved(Kind::ExclusiveAccess);
    assert_eq!(ask(&reservations, &nexus("c"), Request::Clear { key: 0 }), Err(CONFLICT));
    let told = Effect::Tell(nexus("a"), Sense::RESERVATIONS_PREEMPTED);
    assert_eq!(ask(&reservations, &nexus("b"), Request::Clear { key: KEY_B }), Ok(vec![told]));
    assert_eq!((reservations.view().keys(), reservations.view().reservation()), (vec![], None));
}

#[test]
fn reserve_6_keeps_others_out_and_goes_with_its_nexus() {
    let reservations = Reservations::default();
    assert_eq!(reservations.reserve_6(&nexus("a")), Ok(()));
    assert_eq!(reservations.reserve_6(&nexus("a")), Ok(()));
    assert_eq!(reservations.reserve_6(&nexus("b")), Err(CONFLICT));
    assert_eq!(reservations.check(&nexus("b"), &Cdb::TestUnitReady), Err(CONFLICT));
    assert_eq!(allowed(&reservations, "a"), (true, true));
    reservations.release_of(&nexus("b"));
    assert_eq!(allowed(&reservations, "b"), (false, false));
    reservations.release_of(&nexus("a"));
    assert_eq!(allowed(&reservations, "b"), (true, true));
}

#[test]
fn reserve_6_and_registrations_do_not_go_together() {
    let reservations = reserved(Kind::WriteExclusive);
    assert_eq!(reservations.reserve_6(&nexus("a")), Err(CONFLICT));
}

#[test]
fn a_full_table_of_registrations_refuses() {
    let reservations = Reservations::default();
    for index in 0..crate::limits::REGISTRATIONS_MAX {
        let request = register(Some(0), 1);
        assert!(ask(&reservations, &nexus(&index.to_string()), request).is_ok());
    }
    let full = Failure::Sense(Sense::INSUFFICIENT_REGISTRATION_RESOURCES);
    assert_eq!(ask(&reservations, &nexus("more"), register(Some(0), 1)), Err(full));
}

/// A nexus that is registered already, or replaces the one that moves, needs no more room.
#[test]
fn a_registration_is_moved_into_a_full_table_only_where_it_takes_no_more_room() {
    let reservations = reserved(Kind::WriteExclusive);
    for index in 2..crate::limits::REGISTRATIONS_MAX {
        let outcome = ask(&reservations, &nexus(&format!("n{index}")), register(Some(0), 1));
        assert_eq!(outcome, Ok(vec![]));
    }
    let move_to = |from: &str, key, name: &str, is_unregistering| {
        let request = Request::Move { key, new: 0xc, to: nexus(name), is_unregistering, is_persistent: false };
        ask(&reservations, &nexus(from), request)
    };
    let full = Failure::Sense(Sense::INSUFFICIENT_REGISTRATION_RESOURCES);
    assert_eq!(move_to("a", KEY_A, "c", false), Err(full));
    assert_eq!(allowed(&reservations, "a"), (true, true), "it is where it was");
    assert_eq!(move_to("a", KEY_A, "b", false), Ok(vec![]));
    assert_eq!(move_to("b", 0xc, "c", true), Ok(vec![]));
    assert_eq!(allowed(&reservations, "c"), (true, true));
    assert_eq!(reservations.view().keys().len(), crate::limits::REGISTRATIONS_MAX);
}

/// SPC-4 5.12.8.
#[test]
fn a_registration_is_moved_with_the_reservation() {
    let reservations = reserved(Kind::WriteExclusive);
    let to = |name: &str, new| Request::Move {
        key: KEY_A,
        new,
        to: nexus(name),
        is_unregistering: true,
        is_persistent: false,
    };
    assert_eq!(
        ask(
            &reservations,
            &nexus("b"),
            Request::Move { key: KEY_B, new: 1, to: nexus("c"), is_unregistering: false, is_persistent: false }
        ),
        Err(CONFLICT)
    );
    let invalid = Failure::Sense(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(8));
    assert_eq!(ask(&reservations, &nexus("a"), to("c", 0)), Err(invalid));
    assert_eq!(ask(&reservations, &nexus("a"), to("c", 0xc)), Ok(vec![]));
    assert_eq!(reservations.view().keys(), [KEY_B, 0xc]);
    assert_eq!(allowed(&reservations, "a"), (true, false));
    assert_eq!(allowed(&reservations, "c"), (true, true));
}

/// SPC-4 5.12.7.3: SPEC_I_PT.
#[test]
fn others_are_registered_together_or_not_at_all() {
    let reservations = Reservations::default();
    let request = |others: &[&str]| Request::Register {
        key: Some(0),
        new: KEY_A,
        is_persistent: false,
        others: others.iter().map(|name| nexus(name)).collect(),
    };
    assert_eq!(ask(&reservations, &nexus("a"), request(&["b", "c"])), Ok(vec![]));
    assert_eq!(reservations.view().keys(), [KEY_A; 3]);
    let invalid = Failure::Sense(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(24));
    assert_eq!(ask(&reservations, &nexus("d"), request(&["e", "b"])), Err(invalid));
    assert_eq!(reservations.view().keys().len(), 3);
}

/// A store that keeps what it gets, until the test lets it fail.
#[derive(Default)]
struct Shelf {
    saved: Mutex<SavedReservations>,
    is_broken: AtomicBool,
}

impl ReservationStore for Shelf {
    fn save(&self, reservations: SavedReservations) -> Saving {
        if self.is_broken.load(Ordering::Relaxed) {
            return Box::pin(ready(Err("the shelf is broken".into())));
        }
        *self.saved.lock().unwrap() = reservations;
        Box::pin(ready(Ok(())))
    }
}

/// SPC-4 5.12.5: APTPL as of the last registration decides for all of them.
#[test]
fn with_aptpl_they_outlive_the_process() {
    let shelf = Arc::new(Shelf::default());
    let restart = || Reservations::restored(&shelf.saved.lock().unwrap(), Some(shelf.clone()));
    let persistent = |key, new| Request::Register { key, new, is_persistent: true, others: Vec::new() };
    let kind = Kind::ExclusiveAccess;
    let reservations = restart();
    assert!(ask(&reservations, &nexus("b"), register(Some(0), KEY_B)).is_ok());
    assert_eq!(restart().view().keys(), [], "nobody asked for it");
    assert!(ask(&reservations, &nexus("a"), persistent(Some(0), KEY_A)).is_ok());
    assert!(ask(&reservations, &nexus("a"), Request::Reserve { key: KEY_A, kind }).is_ok());
    let restarted = restart();
    assert_eq!(restarted.view().keys(), [KEY_B, KEY_A]);
    assert_eq!(allowed(&restarted, "b"), (false, false));
    assert_eq!(allowed(&restarted, "a"), (true, true));
    shelf.is_broken.store(true, Ordering::Relaxed);
    let full = Failure::Sense(Sense::INSUFFICIENT_REGISTRATION_RESOURCES);
    assert_eq!(ask(&restarted, &nexus("a"), Request::Release { key: KEY_A, kind }), Err(full));
    assert_eq!(allowed(&restarted, "b"), (false, false), "what cannot be saved does not happen");
    shelf.is_broken.store(false, Ordering::Relaxed);
    assert!(ask(&restarted, &nexus("a"), register(Some(KEY_A), KEY_A)).is_ok());
    assert_eq!(restart().view().keys(), [], "without APTPL it is over");
}

/// A store whose saves end when the test decides how.
#[derive(Default)]
struct SlowShelf {
    begun: AtomicUsize,
    outcomes: Arc<Mutex<VecDeque<Result<(), String>>>>,
}

impl ReservationStore for SlowShelf {
    fn save(&self, _: SavedReservations) -> Saving {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let outcomes = Arc::clone(&self.outcomes);
        Box::pin(poll_fn(move |_| outcomes.lock().unwrap().pop_front().map_or(Poll::Pending, Poll::Ready)))
    }
}

/// A save takes as long as the disk, and the calling thread serves other units meanwhile.
#[test]
fn requests_wait_for_what_is_saved_one_after_another_and_hold_nobody_up() {
    let shelf = Arc::new(SlowShelf::default());
    let reservations = Reservations::restored(&SavedReservations::default(), Some(shelf.clone()));
    let persistent = |key, new| Request::Register { key, new, is_persistent: true, others: Vec::new() };
    let (a, b) = (nexus("a"), nexus("b"));
    let mut first = Box::pin(reservations.request(&a, persistent(Some(0), KEY_A)));
    let mut second = Box::pin(reservations.request(&b, persistent(Some(0), KEY_B)));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    assert_eq!(shelf.begun.load(Ordering::Relaxed), 1, "one at a time");
    assert_eq!(reservations.view().keys(), [], "what is not durable does not count");
    assert_eq!(allowed(&reservations, "c"), (true, true));
    assert_eq!(reservations.reserve_6(&nexus("c")), Err(Failure::Status(Status::Busy)));
    shelf.outcomes.lock().unwrap().push_back(Err("the shelf is broken".into()));
    let full = Failure::Sense(Sense::INSUFFICIENT_REGISTRATION_RESOURCES);
    assert_eq!(first.as_mut().now_or_never(), Some(Err(full)));
    assert!(second.as_mut().now_or_never().is_none());
    shelf.outcomes.lock().unwrap().push_back(Ok(()));
    assert_eq!(second.as_mut().now_or_never(), Some(Ok(vec![])));
    assert_eq!(reservations.view().keys(), [KEY_B], "what failed has changed nothing");
}
