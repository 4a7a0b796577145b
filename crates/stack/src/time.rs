//! The clocks of a running stack.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::clock::Clock;
use clock::SystemClock;

use crate::error::{Error, Result};

/// The system's clock, as layers hold it, driven by the current tokio runtime.
///
/// # Errors
/// When the system has no descriptor left for its timer.
pub fn system_clock() -> Result<Arc<dyn Clock>> {
    let clock = SystemClock::new().map_err(|error| Error::io("cannot make a timer", &error))?;
    Ok(Arc::new(clock))
}

/// The time of day in seconds since 1970; 0 for a clock that is set to earlier.
pub fn seconds_since_1970() -> u64 {
    since_1970().as_secs()
}

/// The time of day in milliseconds since 1970; 0 for a clock that is set to earlier.
pub fn milliseconds_since_1970() -> u64 {
    since_1970().as_millis() as u64
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
