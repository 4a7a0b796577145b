//! The possible contents of every unit of the disk, from the requests and answers so far.
//!
//! Time in a history is counted in *ticks*, one for each event, so that "before" has a meaning even
//! where the clock stands still. A mutation takes effect between the tick of its invocation and
//! that of its acknowledgement; one with an unknown outcome may take effect at any later time. So a
//! unit may hold the content of a mutation unless another one has surely come after it: one that
//! was acknowledged before the moment in question, and that was invoked after the first was
//! acknowledged, or later than the first through the same device, which keeps overlapping requests
//! in order.
//!
//! The unit is the smallest piece that a disk writes whole, so that nothing is ever torn.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) const UNIT: u64 = 512;

/// The content of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Zeroes,
    /// Written by the mutation of this number.
    Stamp(u64),
}

impl Content {
    pub(crate) fn bytes(self, unit: u64) -> Vec<u8> {
        match self {
            Self::Zeroes => vec![0; UNIT as usize],
            Self::Stamp(id) => {
                [unit, id].map(u64::to_le_bytes).concat().into_iter().cycle().take(UNIT as usize).collect()
            }
        }
    }

    /// A unit's content, which must be whole and its own.
    pub(crate) fn parse(unit: u64, bytes: &[u8]) -> Self {
        let id = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        let content = if id == 0 { Self::Zeroes } else { Self::Stamp(id) };
        assert!(bytes == &content.bytes(unit)[..], "unit {unit} is torn or another's");
        content
    }
}

/// How a mutation may take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    /// Once, durably at its acknowledgement.
    Durable,
    /// Repeated when the disk may have lost its data.
    Volatile,
    /// A discard: the content may or may not be unchanged afterwards.
    Hint,
    /// Takes effect once or not at all, durably.
    Once,
}

#[derive(Clone, Debug)]
struct Mutation {
    content: Content,
    client: usize,
    nature: Nature,
    invoked: u64,
    acknowledged: Option<u64>,
    /// Whether it was answered that nothing was changed.
    is_void: bool,
    effects: u32,
}

impl Mutation {
    /// Whether `self` surely takes effect before `later`.
    fn is_before(&self, later: &Self) -> bool {
        let is_over = self.acknowledged.is_some_and(|acknowledged| acknowledged < later.invoked);
        is_over || (self.client == later.client && self.invoked < later.invoked)
    }
}

#[derive(Default)]
struct State {
    tick: u64,
    units: Vec<Vec<Mutation>>,
    id_next: u64,
    /// Units and stamps that a compare and write replaced after they were acknowledged.
    replaced: Vec<(u64, Content)>,
}

/// The possible contents of every unit of the disk. Clones are the same model.
#[derive(Clone)]
pub(crate) struct Model(Arc<Mutex<State>>);

/// A mutation that was begun.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    pub(crate) id: u64,
    pub(crate) invoked: u64,
    units: Range<u64>,
}

impl Model {
    pub(crate) fn new(units: u64) -> Self {
        let zeroes = Mutation {
            content: Content::Zeroes,
            client: usize::MAX,
            nature: Nature::Durable,
            invoked: 0,
            acknowledged: Some(0),
            is_void: false,
            effects: 0,
        };
        let state = State { tick: 1, units: vec![vec![zeroes]; units as usize], id_next: 1, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The next tick.
    pub(crate) fn tick(&self) -> u64 {
        self.lock().next_tick()
    }

    /// Begins a mutation, to stamps or to zeroes.
    pub(crate) fn begin(&self, client: usize, units: Range<u64>, nature: Nature, is_stamped: bool) -> Begun {
        let mut state = self.lock();
        let (id, invoked) = (state.id_next, state.next_tick());
        state.id_next += 1;
        let content = if is_stamped { Content::Stamp(id) } else { Content::Zeroes };
        for unit in units.clone() {
            state.units[unit as usize].push(Mutation {
                content,
                client,
                nature,
                invoked,
                acknowledged: None,
                is_void: false,
                effects: 0,
            });
        }
        Begun { id, invoked, units }
    }

    /// Notes its acknowledgement.
    pub(crate) fn acknowledge(&self, begun: &Begun) {
        let mut state = self.lock();
        let tick = state.next_tick();
        state.each(begun, |mutation| mutation.acknowledged = Some(tick));
    }

    /// Notes the answer that nothing was changed.
    pub(crate) fn void(&self, begun: &Begun) {
        self.lock().each(begun, |mutation| {
            assert_eq!(mutation.effects, 0, "{mutation:?} had an effect, and its answer denies it");
            mutation.is_void = true;
        });
    }

    /// Notes the acknowledgement of a compare and write that replaced `expected`: no other may have
    /// replaced the same content.
    pub(crate) fn swap(&self, begun: &Begun, expected: Content) {
        let mut state = self.lock();
        let unit = begun.units.start;
        let is_settled = state.units[unit as usize].iter().any(|mutation| {
            mutation.content == expected && mutation.acknowledged.is_some_and(|tick| tick < begun.invoked)
        });
        if is_settled && expected != Content::Zeroes {
            let replaced = (unit, expected);
            assert!(!state.replaced.contains(&replaced), "unit {unit}: {expected:?} was replaced twice");
            state.replaced.push(replaced);
        }
        drop(state);
        self.acknowledge(begun);
    }

    /// Whether a unit may have held `content` at some moment from `start` on, up to now.
    pub(crate) fn may_hold(&self, unit: u64, content: Content, start: u64) -> bool {
        self.lock().may_hold(unit, |found| found == content, start)
    }

    /// Whether a unit may have held anything but `content` at some moment from `start` on, up to now.
    pub(crate) fn may_hold_other(&self, unit: u64, content: Content, start: u64) -> bool {
        self.lock().may_hold(unit, |found| found != content, start)
    }

    /// Checks the content of units that was read at some moment from `start` on.
    pub(crate) fn check(&self, first: u64, bytes: &[u8], start: u64, what: &str) {
        for (unit, bytes) in (first..).zip(bytes.chunks(UNIT as usize)) {
            let content = Content::parse(unit, bytes);
            let may_hold = self.may_hold(unit, content, start);
            assert!(may_hold, "{what}: unit {unit} holds {content:?}; {:#?}", self.lock().units[unit as usize]);
        }
    }

    /// Notes that the disk carried out a mutation just now.
    pub(crate) fn witness(&self, unit: u64, bytes: &[u8]) {
        let content = Content::parse(unit, bytes);
        let mut state = self.lock();
        let tick = state.next_tick();
        assert!(
            state.may_hold(unit, |found| found == content, tick),
            "unit {unit}: {content:?} takes effect after a later one was acknowledged; {:#?}",
            state.units[unit as usize]
        );
        let Content::Stamp(_) = content else { return };
        let mutation = state.units[unit as usize].iter_mut().find(|mutation| mutation.content == content).unwrap();
        mutation.effects += 1;
        match mutation.nature {
            Nature::Volatile => {}
            Nature::Once => assert_eq!(mutation.effects, 1, "unit {unit}: {mutation:?} took effect twice"),
            _ => assert_eq!(mutation.acknowledged, None, "unit {unit}: {mutation:?} took effect again, too late"),
        }
    }

    /// Checks that every mutation was answered, or has an unknown outcome.
    pub(crate) fn check_all_answered(&self) {
        for (unit, mutations) in self.lock().units.iter().enumerate() {
            let unanswered = mutations.iter().find(|mutation| {
                mutation.acknowledged.is_none() && !mutation.is_void && mutation.nature != Nature::Once
            });
            assert!(unanswered.is_none(), "unit {unit}: somebody waits for ever for {unanswered:?}");
        }
    }
}

impl State {
    fn next_tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    fn each(&mut self, begun: &Begun, change: impl Fn(&mut Mutation)) {
        for unit in begun.units.clone() {
            let mutations = self.units[unit as usize].iter_mut();
            mutations.filter(|mutation| mutation.invoked == begun.invoked).for_each(&change);
        }
    }

    fn may_hold(&self, unit: u64, is_meant: impl Fn(Content) -> bool, start: u64) -> bool {
        let mutations = &self.units[unit as usize];
        let is_overwritten = |mutation: &Mutation| {
            mutations.iter().any(|later| {
                let is_over = later.acknowledged.is_some_and(|acknowledged| acknowledged < start);
                is_over && later.nature != Nature::Hint && mutation.is_before(later)
            })
        };
        let mut meant = mutations.iter().filter(|mutation| is_meant(mutation.content) && !mutation.is_void);
        meant.any(|mutation| !is_overwritten(mutation))
    }
}
