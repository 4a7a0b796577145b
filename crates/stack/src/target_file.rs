//! The grammar of the configuration file of `forebay target serve --config`, TOML:
//!
//! ```toml
//! portals = ["127.0.0.1:3260", "[::1]:3260"]
//!
//! [[target]]
//! iqn = "iqn.2026-11.org.example:disks"
//! luns = ["0=file:/srv/disk0.img,size=10GiB", "1=ram:1GiB"]
//! chap-user = "alice"
//! chap-file = "/etc/forebay/alice.secret"
//!
//! [[target]]
//! iqn = "iqn.2026-11.org.example:shared"
//! luns = ["0=file:/srv/a.img", "1=file:/srv/b.img"]
//!
//! [[target.initiator]]
//! names = ["iqn.2026-11.org.example:backup*"]
//! luns = ["0=1"]
//! read-only = true
//!
//! [limits]
//! sessions = 64
//! ```
//!
//! Relative paths in it are relative to the directory in which the command runs, as on the command
//! line. This module opens no files, so that any text can be tested.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use crate::limits_table::LimitsTable;
use crate::lun_mask::MaskSpec;
use crate::lun_spec::LunSpec;

/// The content of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TargetFile {
    /// Addresses to listen on, in portal group 1.
    pub portals: Option<Vec<SocketAddr>>,
    /// Further portal groups.
    #[serde(default)]
    pub portal_group: Vec<PortalGroupTable>,
    /// The accounts for discovery.
    #[serde(default)]
    pub discovery: DiscoveryTable,
    /// Where to serve metrics.
    pub metrics: Option<SocketAddr>,
    /// How long sessions poll their sockets before they sleep.
    pub busy_poll: Option<String>,
    /// The limits for peers.
    #[serde(default)]
    pub limits: LimitsTable,
    /// The targets.
    pub target: Vec<TargetTable>,
}

/// One target.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TargetTable {
    /// Its name.
    pub iqn: String,
    /// Its logical units.
    pub luns: Vec<LunSpec>,
    /// A name for people.
    pub alias: Option<String>,
    /// Tags of the portal groups in which it can be reached; without any, all.
    pub portal_groups: Option<Vec<u16>>,
    /// The CHAP user that may log in.
    pub chap_user: Option<String>,
    /// The file of the secret.
    pub chap_file: Option<PathBuf>,
    /// The CHAP user by which the target proves itself to initiators that ask for that.
    pub mutual_chap_user: Option<String>,
    /// The file of its secret.
    pub mutual_chap_file: Option<PathBuf>,
    /// Rules for initiators; without any, every initiator sees all LUNs.
    #[serde(default)]
    pub initiator: Vec<InitiatorTable>,
}

/// Portals that a session can span.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PortalGroupTable {
    /// Its tag.
    pub tag: u16,
    /// Addresses to listen on.
    pub portals: Vec<SocketAddr>,
}

/// The accounts for discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DiscoveryTable {
    /// CHAP user.
    pub chap_user: Option<String>,
    /// The file of the secret.
    pub chap_file: Option<PathBuf>,
}

/// Some initiators of a target.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InitiatorTable {
    /// iSCSI names, or the beginnings of names, followed by `*`.
    pub names: Vec<String>,
    /// The CHAP user that they must authenticate as.
    pub chap_user: Option<String>,
    /// The file of the secret.
    pub chap_file: Option<PathBuf>,
    /// Their view; without it, all LUNs.
    pub luns: Option<Vec<MaskSpec>>,
    /// Whether they may only read.
    #[serde(default)]
    pub read_only: bool,
}

/// The error of a text that is no configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct TargetFileError {
    /// The line of the error, counted from one.
    pub line: usize,
    /// The error in one line.
    pub message: String,
}

impl TargetFile {
    /// Parses `text`.
    ///
    /// # Errors
    /// When it is not TOML, has an unknown key, or lacks a key.
    pub fn parse(text: &str) -> Result<Self, TargetFileError> {
        toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            TargetFileError { line, message: error.message().replace(char::is_control, " ") }
        })
    }
}
