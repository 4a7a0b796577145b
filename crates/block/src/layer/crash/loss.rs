//! Which writes that are not durable survive a power loss.

/// The unit of a medium that is stored whole or not at all, in bytes.
pub const ATOMIC_UNIT_BYTES: u64 = 512;

/// Which of the writes survive that are not durable when the power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Each lands whole, in part or not at all, as this seed draws.
    Seeded(u64),
    /// None lands.
    All,
    /// Completed writes land whole, those in flight do not.
    InFlightOnly,
}
