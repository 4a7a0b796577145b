//! Families of metrics that are one value of the status each.

/// Whether a value goes up and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows; `_total` is added to the name.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// One family without labels, whose value is found by an `A`.
#[derive(Debug)]
pub struct Plain<A> {
    /// Its name.
    pub name: &'static str,
    /// Whether it goes up and down.
    pub kind: Kind,
    /// Where its value is.
    pub at: A,
    /// What it says.
    pub help: &'static str,
}

/// The number in a status `S`; `None` where there is nothing to count, and then there is no family.
pub type Value<S> = fn(&S) -> Option<u64>;

/// A family that only grows.
pub const fn counter<A: Copy>(name: &'static str, at: A, help: &'static str) -> Plain<A> {
    Plain { name, kind: Kind::Counter, at, help }
}

/// A family that goes up and down.
pub const fn gauge<A: Copy>(name: &'static str, at: A, help: &'static str) -> Plain<A> {
    Plain { name, kind: Kind::Gauge, at, help }
}
