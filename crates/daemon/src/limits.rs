//! The bounds of this crate.

use std::time::Duration;

/// Wait before the first start of a process that ended: a peer that was restarted is there again.
pub const RESTART_WAIT_MIN: Duration = Duration::from_secs(1);

/// Longest wait before another start. A start asks targets for a login, so that it must be rare; a
/// target that is back is found in a minute.
pub const RESTART_WAIT_MAX: Duration = Duration::from_secs(60);

/// Time that a process has to run for its next end to count as the first one.
pub const STEADY_TIME: Duration = Duration::from_secs(60);

/// Pause between two attempts to reach a process that was just started.
pub const ANSWER_LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Longest time until the daemon says that it is ready. It is before that when each attachment
/// either serves or has failed once. Service managers wait for at least 90 s.
pub const READY_TIME_MAX: Duration = Duration::from_secs(30);

/// Longest time for reading all files: a network file system that does not answer keeps nobody
/// waiting for ever. Within it a disk reads thousands of them.
pub const FILES_READ_TIME_MAX: Duration = Duration::from_secs(10);

/// Attachments of a host. Each is a process with a session, caches and a descriptor here; the file
/// of one more is refused.
pub const ATTACHMENTS_MAX: usize = 1024;

/// Bytes of the file of an attachment; one that is larger is refused. All settings are some KiB.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
