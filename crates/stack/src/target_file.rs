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
//! [limits]
//! sessions = 64
//! ```
//!
//! Relative paths in it are relative to the directory the command runs in, as on the command line. Nothing is opened here, so that
//! any text can be tried.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use crate::limits_table::LimitsTable;
use crate::lun_spec::LunSpec;

/// What the file says.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TargetFile {
    /// Addresses to listen on.
    pub portals: Option<Vec<SocketAddr>>,
    /// Where to serve metrics.
    pub metrics: Option<SocketAddr>,
    /// What peers may hold.
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
    /// Who may log in.
    pub chap_user: Option<String>,
    /// Where the secret is.
    pub chap_file: Option<PathBuf>,
}

/// A text that is no configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct TargetFileError {
    /// Counted from one.
    pub line: usize,
    /// In one line.
    pub message: String,
}

impl TargetFile {
    /// What `text` says.
    ///
    /// # Errors
    /// When it is no TOML, has a key that is not in the table, or lacks one.
    pub fn parse(text: &str) -> Result<Self, TargetFileError> {
        toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            TargetFileError { line, message: error.message().replace(char::is_control, " ") }
        })
    }
}
