//! Timeouts of a connection.

use std::time::Duration;

/// Timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// From the first login request to the full feature phase.
    pub login_timeout: Duration,
    /// Silence after which the target is pinged. Zero never pings.
    pub keepalive_interval: Duration,
    /// Silence after a ping that means the target is gone.
    pub keepalive_timeout: Duration,
    /// For a task management function.
    pub task_management_timeout: Duration,
}
