//! The counters of gateways.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// The counters of an iSCSI gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewayCounters {
    /// Sessions now.
    pub sessions: u64,
    /// Connections now.
    pub connections_open: u64,
    /// Connections that were served.
    pub connections_accepted: u64,
    /// Connections closed at once because there were too many.
    pub connections_refused: u64,
    /// Logins refused.
    pub logins_refused: u64,
    /// Reads.
    pub read: TransferCounters,
    /// Writes.
    pub write: TransferCounters,
    /// Commands of other kinds.
    pub other: CommandCounters,
    /// Commands that did not end with GOOD.
    pub failures: u64,
}

/// Commands that move data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferCounters {
    /// Commands ended.
    pub requests: u64,
    /// Bytes of their data.
    pub bytes: u64,
}

/// Commands without data that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommandCounters {
    /// Commands ended.
    pub requests: u64,
}

impl AddAssign for GatewayCounters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            sessions,
            connections_open,
            connections_accepted,
            connections_refused,
            logins_refused,
            read,
            write,
            other,
            failures,
        } = other;
        self.sessions += sessions;
        self.connections_open += connections_open;
        self.connections_accepted += connections_accepted;
        self.connections_refused += connections_refused;
        self.logins_refused += logins_refused;
        self.read += read;
        self.write += write;
        self.other += other;
        self.failures += failures;
    }
}

impl AddAssign for TransferCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { requests, bytes } = other;
        self.requests += requests;
        self.bytes += bytes;
    }
}

impl AddAssign for CommandCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { requests } = other;
        self.requests += requests;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_gateways_counted_is_added() {
        let one =
            GatewayCounters { sessions: 1, read: TransferCounters { requests: 2, bytes: 3 }, ..Default::default() };
        let mut sum = one;
        sum += GatewayCounters { other: CommandCounters { requests: 5 }, ..one };
        let sum = json!(sum);
        assert_eq!(sum["sessions"], 2);
        assert_eq!(sum["read"], json!({ "requests": 4, "bytes": 6 }));
        assert_eq!(sum["other"], json!({ "requests": 5 }));
    }
}
