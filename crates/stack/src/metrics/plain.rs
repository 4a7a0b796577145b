//! Families of metrics that are one value of the status each.

/// Whether a value goes up and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows; `_total` is added to the name.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// One family without labels.
#[derive(Debug)]
pub struct Plain {
    /// Its name.
    pub name: &'static str,
    /// Whether it goes up and down.
    pub kind: Kind,
    /// JSON pointer into the status; of a list its length counts.
    pub at: &'static str,
    /// What it says.
    pub help: &'static str,
}

/// A family that only grows.
pub const fn counter(name: &'static str, at: &'static str, help: &'static str) -> Plain {
    Plain { name, kind: Kind::Counter, at, help }
}

/// A family that goes up and down.
pub const fn gauge(name: &'static str, at: &'static str, help: &'static str) -> Plain {
    Plain { name, kind: Kind::Gauge, at, help }
}
