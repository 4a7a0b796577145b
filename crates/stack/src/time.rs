//! The clock of a running stack.

use std::sync::Arc;

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
