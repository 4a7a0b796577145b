//! What a power loss leaves of writes that were not durable.

/// The unit that lands whole or not at all, in bytes.
pub const ATOMIC_UNIT_BYTES: u64 = 512;

/// What becomes of writes that were not durable when the power failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Each lands whole, in part or not at all, as this seed draws.
    Seeded(u64),
    /// None lands.
    All,
    /// Those that were completed land whole, those in flight do not.
    InFlightOnly,
}
