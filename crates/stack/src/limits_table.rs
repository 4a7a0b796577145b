//! The `[limits]` table of a configuration file: the resources that a target's peers may use.
//!
//! A missing key keeps its default (`target::limits`). This module does not depend on a target, so
//! that any text can be tested.

use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};

use base::units::ByteSize;
use serde::{Deserialize, Deserializer};
use std::time::Duration;

use crate::lun_spec::parse_duration;

/// The table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LimitsTable {
    /// Sessions at once.
    pub sessions: Option<NonZeroUsize>,
    /// Connections at once.
    pub connections: Option<NonZeroUsize>,
    /// Connections of a session.
    pub connections_per_session: Option<NonZeroU16>,
    /// Connections of one initiator name.
    pub connections_per_initiator: Option<NonZeroUsize>,
    /// Connections of one address that have not logged in.
    pub unauthenticated_per_address: Option<NonZeroUsize>,
    /// Commands of a session at once.
    pub commands_per_session: Option<NonZeroU32>,
    /// Bytes of data-in buffers of one session.
    #[serde(default, deserialize_with = "size")]
    pub data_in_per_session: Option<usize>,
    /// Bytes of data-in buffers of all sessions.
    #[serde(default, deserialize_with = "size")]
    pub data_in: Option<usize>,
    /// Bytes of data-out buffers of one session.
    #[serde(default, deserialize_with = "size")]
    pub data_out_per_session: Option<usize>,
    /// Bytes of data-out buffers of all sessions.
    #[serde(default, deserialize_with = "size")]
    pub data_out: Option<usize>,
    /// Time from the connection to the full feature phase.
    #[serde(default, deserialize_with = "duration")]
    pub login_time: Option<Duration>,
    /// Silence inside a login.
    #[serde(default, deserialize_with = "duration")]
    pub login_idle: Option<Duration>,
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let size: ByteSize = text.parse().map_err(serde::de::Error::custom)?;
    usize::try_from(size.0).map(Some).map_err(serde::de::Error::custom)
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused() {
        for text in ["sessions = 0", "session = 1", "data-in = 5", "login-time = \"long\"", "connections = -1"] {
            assert!(toml::from_str::<LimitsTable>(text).is_err(), "{text}");
        }
    }
}
