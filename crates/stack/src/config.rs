//! The configuration of `forebay target serve`, from a file or from flags, with the secrets that it names.

use std::fs;
use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};
use std::path::Path;

use iscsi::chap::Credentials;
use target::Quota;

use crate::error::{Error, Failure, Result};
use crate::limits_table::LimitsTable;
use crate::login::read_secret;
use crate::serve::TargetConfig;
use crate::target_file::{TargetFile, TargetTable};

/// A file that was read.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Addresses to listen on, if it names any.
    pub portals: Option<Vec<SocketAddr>>,
    /// Where to serve metrics, if it says.
    pub metrics: Option<SocketAddr>,
    /// What peers may hold.
    pub quota: Quota,
    /// The targets.
    pub targets: Vec<TargetConfig>,
}

/// What the file at `path` says.
///
/// # Errors
/// When it cannot be read, or says something that makes no sense, with the line.
pub fn read(path: &Path) -> Result<Configuration> {
    let name = path.display();
    let text = fs::read_to_string(path).map_err(|error| Error::io(format!("cannot read {name}"), &error))?;
    let file = TargetFile::parse(&text).map_err(|error| Error::new(Failure::Usage, format!("{name}, {error}")))?;
    let targets = file.target.into_iter().map(TargetTable::into_config).collect::<Result<_>>()?;
    Ok(Configuration { portals: file.portals, metrics: file.metrics, quota: file.limits.quota(), targets })
}

impl TargetTable {
    fn into_config(self) -> Result<TargetConfig> {
        let accounts = accounts(self.chap_user, self.chap_file.as_deref())?;
        Ok(TargetConfig { iqn: self.iqn, luns: self.luns, accounts })
    }
}

impl LimitsTable {
    /// The bounds it asks for.
    fn quota(&self) -> Quota {
        let default = Quota::default();
        Quota {
            sessions: self.sessions.map_or(default.sessions, NonZeroUsize::get),
            connections: self.connections.map_or(default.connections, NonZeroUsize::get),
            connections_per_session: self
                .connections_per_session
                .map_or(default.connections_per_session, NonZeroU16::get),
            connections_per_initiator: self
                .connections_per_initiator
                .map_or(default.connections_per_initiator, NonZeroUsize::get),
            unauthenticated_per_address: self
                .unauthenticated_per_address
                .map_or(default.unauthenticated_per_address, NonZeroUsize::get),
            session_data_in_bytes: self.data_in_per_session.unwrap_or(default.session_data_in_bytes),
            data_in_bytes: self.data_in.unwrap_or(default.data_in_bytes),
            data_out_bytes: self.data_out.unwrap_or(default.data_out_bytes),
            session_commands: self.commands_per_session.map_or(default.session_commands, NonZeroU32::get),
            login_time: self.login_time.unwrap_or(default.login_time),
            login_idle: self.login_idle.unwrap_or(default.login_idle),
        }
    }
}

/// The accounts of a target: one, or none when everybody may log in.
///
/// # Errors
/// When the secret is no good, or a user is there without one.
pub fn accounts(user: Option<String>, chap_file: Option<&Path>) -> Result<Vec<Credentials>> {
    match (user, chap_file) {
        (Some(name), Some(path)) => Ok(vec![Credentials { name, secret: read_secret(path)? }]),
        (None, None) => Ok(Vec::new()),
        _ => Err(Error::new(Failure::Usage, "a CHAP user and the file with its secret go together")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Configuration> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("target.toml");
        fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn a_file_says_portals_and_targets() {
        let Configuration { portals, metrics, quota, targets } = read_text(
            r#"
            portals = ["127.0.0.1:3260", "[::1]:3260"]
            metrics = "127.0.0.1:9860"
            [limits]
            connections = 7
            [[target]]
            iqn = "iqn.2026-11.org.example:a"
            luns = ["0=ram:1MiB", "1=ram:2MiB,read-only"]
            "#,
        )
        .unwrap();
        assert_eq!(portals.unwrap().len(), 2);
        assert_eq!(metrics.unwrap().port(), 9860);
        assert_eq!(quota, Quota { connections: 7, ..Quota::default() });
        assert_eq!(targets[0].luns.len(), 2);
        assert!(targets[0].accounts.is_empty());
    }

    #[test]
    fn what_is_there_counts_and_the_rest_is_as_ever() {
        let text = "sessions = 3\ndata-in = \"8MiB\"\nlogin-time = \"2s\"";
        let quota = toml::from_str::<LimitsTable>(text).unwrap().quota();
        let expected = Quota {
            sessions: 3,
            data_in_bytes: 8 << 20,
            login_time: std::time::Duration::from_secs(2),
            ..Quota::default()
        };
        assert_eq!(quota, expected);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, words) in [
            ("portals = 3", "line 1"),
            ("[[target]]\niqn = \"iqn.2026-11.org.example:a\"\nluns = [\"0=tape:x\"]", "no backend"),
            ("[[target]]\niqn = \"iqn.2026-11.org.example:a\"\nluns = []\nport = 1", "port"),
            ("", "target"),
            ("[limits]\nsession = 1", "line 2"),
        ] {
            let error = read_text(text).unwrap_err();
            assert_eq!(error.failure(), Failure::Usage);
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}
