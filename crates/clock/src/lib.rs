//! Clocks of the real world, as [`base::clock::Clock`]s.
//!
//! | clock | waits are exact to | for |
//! |---|---|---|
//! | [`TokioClock`] | a millisecond | timeouts; also under tokio's paused time, in tests |
//! | [`SystemClock`] | microseconds (a timer descriptor) | layers that imitate slow disks and links |

#![forbid(unsafe_code)]

mod system_clock;
mod tokio_clock;

pub use system_clock::SystemClock;
pub use tokio_clock::TokioClock;
