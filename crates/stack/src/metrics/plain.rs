//! Families of metrics that show one value of the status each.

/// Whether a value only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    /// A value that only grows; `_total` is added to the name.
    Counter,
    /// A value that goes up and down.
    Gauge,
}

/// One family without labels; `at` finds its value.
#[derive(Debug)]
pub struct Plain<A> {
    /// Its name.
    pub name: &'static str,
    /// Whether its value only grows.
    pub kind: FamilyKind,
    /// How its value is found.
    pub at: A,
    /// Its description.
    pub help: &'static str,
}

/// The value in a status `S`; `None` where there is none, and the family is left out.
pub type Value<S> = fn(&S) -> Option<u64>;

/// A family that only grows.
pub const fn counter<A: Copy>(name: &'static str, at: A, help: &'static str) -> Plain<A> {
    Plain { name, kind: FamilyKind::Counter, at, help }
}

/// A family that goes up and down.
pub const fn gauge<A: Copy>(name: &'static str, at: A, help: &'static str) -> Plain<A> {
    Plain { name, kind: FamilyKind::Gauge, at, help }
}
