//! A base shared by many hosts and never written, with one host's changes (the *difference*) on a
//! device of its own.
//!
//! ```text
//!   read   chunk not written yet ─► base        chunk written ─► its slot in the difference
//!   write  chunk not written yet ─► the base's bytes around what is written go along into a free slot
//!          chunk written         ─► into its slot
//!   flush  the slots, then the map that names them
//! ```
//! - The base is only read. A difference is bound to its identity and to the generation of its
//!   content, and refuses any other. Where targets name what they have, the caller compares the ids
//!   that the difference notes; once the base is another one, nothing is read or written any more.
//! - The map on the device names a slot only when its data is durable; until then the chunk is what
//!   it was. So after a power loss each chunk has what was flushed last, and later writes are there
//!   or not, as with any disk with a volatile cache. A write with force unit access flushes.
//! - A chunk of zeroes takes no slot: discarding gives room back, with the next flush.
//! - The difference may be smaller than the base. When it is full, a write to a chunk that has no slot is refused with
//!   `NoSpace`.
//!
//! | module | holds |
//! |---|---|
//! | `layer` | [`Difference`]: base and difference as one device |
//! | `map` | the chunks that differ, and their slots |
//! | `format` | the bytes of a difference, described in `docs/formats/difference.md` |
//! | [`limits`] | the bounds of this crate |

#![forbid(unsafe_code)]

mod format;
mod layer;
pub mod limits;
mod map;
#[cfg(test)]
mod tests;

pub use format::{ContentId, KIND};
pub use layer::{Difference, DifferenceOptions, RoomStatus};
