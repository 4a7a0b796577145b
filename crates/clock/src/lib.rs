//! Clocks of the real world, as [`base::clock::Clock`]s, and [what waiting costs](wake_up_time).
//!
//! | clock | waits are exact to | for |
//! |---|---|---|
//! | [`TokioClock`] | a millisecond | timeouts; also under tokio's paused time, in tests |
//! | [`SystemClock`] | microseconds (a timer descriptor) | layers that imitate slow disks and links |

#![forbid(unsafe_code)]

mod system_clock;
mod tokio_clock;
mod wake_up;

pub use system_clock::SystemClock;
pub use tokio_clock::TokioClock;
pub use wake_up::wake_up_time;
