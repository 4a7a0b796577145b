//! The fronts of an attachment.

use std::ops::AddAssign;

use front::{FuseCounters, NbdCounters};
use serde::{Deserialize, Serialize};

/// The fronts of an attachment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FrontsStatus {
    /// The addresses of the fronts, in the form that applications take, separated by spaces.
    pub address: String,
    /// The place of the first one.
    pub front: Option<String>,
    /// Each front.
    pub fronts: Vec<FrontStatus>,
    /// The counters of all kinds.
    #[serde(flatten)]
    pub counters: FrontCounters,
}

/// The counters of all fronts of each kind together, under the name of the kind; `None` where there
/// is no such front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrontCounters {
    /// NBD servers, and the kernel's NBD disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nbd: Option<NbdCounters>,
    /// FUSE files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuse: Option<FuseCounters>,
    /// iSCSI gateways.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iscsi: Option<GatewayCounters>,
}

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

/// One front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrontStatus {
    /// Its kind.
    pub kind: String,
    /// Its place, in the form of `--as` without the kind.
    pub place: String,
    /// Its address for applications.
    pub address: String,
    /// Count of its applications.
    pub clients: u64,
    /// Of these, applications that have an outdated size of the device.
    pub clients_outdated: u64,
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
    fn what_gateways_counted_is_added_and_reads_as_it_is_written() {
        let one =
            GatewayCounters { sessions: 1, read: TransferCounters { requests: 2, bytes: 3 }, ..Default::default() };
        let mut sum = one;
        sum += GatewayCounters { other: CommandCounters { requests: 5 }, ..one };
        let counters = FrontCounters { iscsi: Some(sum), ..Default::default() };
        let status = json!(FrontsStatus { counters: counters.clone(), ..Default::default() });
        assert_eq!(status["iscsi"]["sessions"], 2);
        assert_eq!(status["iscsi"]["read"], json!({ "requests": 4, "bytes": 6 }));
        assert_eq!(status["iscsi"]["other"], json!({ "requests": 5 }));
        assert!(status.get("nbd").is_none(), "there is no such front");
        assert_eq!(serde_json::from_value::<FrontsStatus>(status).unwrap().counters, counters);
    }
}
