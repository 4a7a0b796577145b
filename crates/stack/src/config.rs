//! The configuration of `forebay target serve`, from a file or from flags, with the secrets that it names.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use iscsi::chap::Credentials;

use crate::error::{Error, Failure, Result};
use crate::login::read_secret;
use crate::serve::TargetConfig;
use crate::target_file::{TargetFile, TargetTable};

/// The portals, if the file names any, and the targets in the file at `path`.
///
/// # Errors
/// When it cannot be read, or says something that makes no sense, with the line.
pub fn read(path: &Path) -> Result<(Option<Vec<SocketAddr>>, Vec<TargetConfig>)> {
    let name = path.display();
    let text = fs::read_to_string(path).map_err(|error| Error::io(format!("cannot read {name}"), &error))?;
    let file = TargetFile::parse(&text).map_err(|error| Error::new(Failure::Usage, format!("{name}, {error}")))?;
    let targets = file.target.into_iter().map(TargetTable::into_config).collect::<Result<_>>()?;
    Ok((file.portals, targets))
}

impl TargetTable {
    fn into_config(self) -> Result<TargetConfig> {
        let accounts = accounts(self.chap_user, self.chap_file.as_deref())?;
        Ok(TargetConfig { iqn: self.iqn, luns: self.luns, accounts })
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

    fn read_text(text: &str) -> Result<(Option<Vec<SocketAddr>>, Vec<TargetConfig>)> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("target.toml");
        fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn a_file_says_portals_and_targets() {
        let (portals, targets) = read_text(
            r#"
            portals = ["127.0.0.1:3260", "[::1]:3260"]
            [[target]]
            iqn = "iqn.2026-11.org.example:a"
            luns = ["0=ram:1MiB", "1=ram:2MiB,read-only"]
            "#,
        )
        .unwrap();
        assert_eq!(portals.unwrap().len(), 2);
        assert_eq!(targets[0].luns.len(), 2);
        assert!(targets[0].accounts.is_empty());
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, words) in [
            ("portals = 3", "line 1"),
            ("[[target]]\niqn = \"iqn.2026-11.org.example:a\"\nluns = [\"0=tape:x\"]", "no backend"),
            ("[[target]]\niqn = \"iqn.2026-11.org.example:a\"\nluns = []\nport = 1", "port"),
            ("", "target"),
        ] {
            let error = read_text(text).unwrap_err();
            assert_eq!(error.failure(), Failure::Usage);
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}
