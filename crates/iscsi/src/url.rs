//! iSCSI URLs as libiscsi writes them: `iscsi://[USER@]HOST[:PORT]/IQN/LUN`.
//!
//! An IPv6 address stands in brackets; the default port is 3260. A password does not belong in a
//! URL, where the process list and the shell's history would keep it: a URL with one is refused
//! with advice. Discovery takes a [`Portal`] alone, with or without `iscsi://`.

use std::fmt;
use std::str::FromStr;

use crate::limits::NAME_BYTES_MAX;
use crate::name;

/// The port IANA gave iSCSI (RFC 7143 14).
pub const DEFAULT_PORT: u16 = 3260;

/// The highest LUN of flat space addressing (SAM-5 4.7.7.3).
pub const LUN_MAX: u16 = 16383;

/// The address of a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Portal {
    /// Host name, IPv4 address, or IPv6 address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// The URL of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    /// CHAP name, where it differs from the default.
    pub user: Option<String>,
    /// The portal.
    pub portal: Portal,
    /// iSCSI name of the target.
    pub target: String,
    /// Logical unit number.
    pub lun: u16,
}

/// Why a URL or portal is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not of this form.
    #[error("\"{0}\" is not an iSCSI URL: write iscsi://[USER@]HOST[:PORT]/IQN/LUN")]
    Form(String),
    /// Not a portal.
    #[error("\"{0}\" is not a portal: write HOST or HOST:PORT, and an IPv6 address in brackets")]
    Portal(String),
    /// Not an iSCSI name.
    #[error("\"{0}\" is not an iSCSI name: it starts with iqn., eui. or naa.")]
    Target(String),
    /// Not a LUN.
    #[error("\"{0}\" is not a LUN: write a number from 0 to {LUN_MAX}")]
    Lun(String),
    /// A password, which the error does not repeat.
    #[error("a password in a URL is seen by others: give it with --chap-file or in FOREBAY_CHAP_PASSWORD")]
    Password,
}

const SCHEME: &str = "iscsi://";

impl FromStr for Portal {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let error = || UrlError::Portal(text.to_owned());
        let place = text.strip_prefix(SCHEME).unwrap_or(text);
        let place = place.strip_suffix('/').unwrap_or(place);
        let (host, port) = match place.strip_prefix('[') {
            Some(bracketed) => bracketed.split_once(']').ok_or_else(error)?,
            None => place.split_at(place.find(':').unwrap_or(place.len())),
        };
        let is_bracketed = place.starts_with('[');
        let is_host = !host.is_empty() && host.bytes().all(|byte| is_host_byte(byte, is_bracketed));
        if !is_host || (is_bracketed && !host.contains(':')) {
            return Err(error());
        }
        let port = match port.strip_prefix(':') {
            Some(digits) => parse_digits(digits).filter(|&port| port != 0).ok_or_else(error)?,
            None if port.is_empty() => DEFAULT_PORT,
            None => return Err(error()),
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

/// Bytes of a host name, of an address, or of the zone of a bracketed IPv6 address.
fn is_host_byte(byte: u8, is_bracketed: bool) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_') || (is_bracketed && matches!(byte, b':' | b'%'))
}

/// Digits alone: `parse` would take a plus sign as well.
fn parse_digits(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| UrlError::Form(text.to_owned()))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, portal) = match authority.rsplit_once('@') {
            Some((user, portal)) => (Some(parse_user(user)?), portal),
            None => (None, authority),
        };
        // From here on the text contains no password and errors may repeat it.
        let form = || UrlError::Form(text.to_owned());
        if user.as_deref() == Some("") || path.contains('@') {
            return Err(if path.contains('@') { UrlError::Password } else { form() });
        }
        let (target, lun) = path.split_once('/').ok_or_else(form)?;
        let target = name::canonical(target);
        if !is_iscsi_name(&target) {
            return Err(UrlError::Target(target.into_owned()));
        }
        let lun = parse_digits(lun).filter(|&lun| lun <= LUN_MAX).ok_or_else(|| UrlError::Lun(lun.to_owned()))?;
        Ok(Self { user, portal: portal.parse()?, target: target.into_owned(), lun })
    }
}

/// The user, unless a password follows it (`user%password` in libiscsi's form, `user:password` in
/// the common one).
fn parse_user(user: &str) -> Result<String, UrlError> {
    if user.contains([':', '%', '/', '@']) { Err(UrlError::Password) } else { Ok(user.to_owned()) }
}

/// Whether `name` has one of the three forms of RFC 7143 4.2.7.
pub fn is_iscsi_name(name: &str) -> bool {
    let is_typed = ["iqn.", "eui.", "naa."].iter().any(|prefix| name.starts_with(prefix) && name.len() > prefix.len());
    let is_name_char = |c: char| matches!(c, '-' | '.' | ':') || c.is_ascii_alphanumeric() || !c.is_ascii();
    is_typed && name.len() <= NAME_BYTES_MAX && name.chars().all(|c| is_name_char(c) && !c.is_whitespace())
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        write!(f, "{}/{}/{}", self.portal, self.target, self.lun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IQN: &str = "iqn.2026-01.io.forebay:disk";

    #[test]
    fn urls_of_every_form() {
        for (authority, user, host, port) in [
            ("127.0.0.1", None, "127.0.0.1", 3260),
            ("host.example:3261", None, "host.example", 3261),
            ("[::1]", None, "::1", 3260),
            ("alice@[fe80::1%eth0]:9", Some("alice"), "fe80::1%eth0", 9),
        ] {
            let url: Url = format!("iscsi://{authority}/{IQN}/7").parse().unwrap();
            let portal = Portal { host: host.to_owned(), port };
            assert_eq!(url, Url { user: user.map(str::to_owned), portal, target: IQN.to_owned(), lun: 7 });
            assert_eq!(url.to_string().parse(), Ok(url));
        }
    }

    #[test]
    fn a_target_written_in_capitals_is_the_one_in_small_letters() {
        let url: Url = "iscsi://host/IQN.2026-01.IO.FOREBAY:Disk/7".parse().unwrap();
        assert_eq!(url.target, IQN);
        let url: Url = "iscsi://host/iqn.2026-01.io.forebay:Disk/7".parse().unwrap();
        assert_eq!(url.target, "iqn.2026-01.io.forebay:Disk", "not every target folds what it compares");
    }

    #[test]
    fn passwords_are_refused_and_not_repeated() {
        for user in ["alice%hunter2", "alice:hunter2", "alice:p@ss", "alice:hun/ter2"] {
            let error = format!("iscsi://{user}@host/{IQN}/0").parse::<Url>().unwrap_err();
            assert_eq!(error, UrlError::Password, "{user}");
            assert!(error.to_string().contains("--chap-file"));
        }
    }

    #[test]
    fn what_is_not_a_url() {
        for text in [
            "",
            "http://host/iqn.a/0",
            "iscsi://",
            "iscsi://host",
            "iscsi://host/iqn.a",
            "iscsi://host/disk/0",
            "iscsi://host/iqn.a b/0",
            "iscsi://host/iqn.a/",
            "iscsi://host/iqn.a/+1",
            "iscsi://host/iqn.a/16384",
            "iscsi://host/iqn.a/0/1",
            "iscsi://host:0/iqn.a/0",
            "iscsi://host:x/iqn.a/0",
            "iscsi://::1/iqn.a/0",
            "iscsi://[::1/iqn.a/0",
            "iscsi://[host]/iqn.a/0",
            "iscsi://@host/iqn.a/0",
        ] {
            assert!(text.parse::<Url>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_portal_alone() {
        for (text, host, port) in
            [("host", "host", 3260), ("iscsi://10.0.0.1:5/", "10.0.0.1", 5), ("[::1]:3261", "::1", 3261)]
        {
            assert_eq!(text.parse(), Ok(Portal { host: host.to_owned(), port }));
        }
        for text in ["", ":3260", "host:", "host:65536", "a b", "iscsi://host/iqn.a/0"] {
            assert!(text.parse::<Portal>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(iscsi://)?[a-z0-9:@%/\\[\\].é]{0,40}") {
            let _ = text.parse::<Url>();
            let _ = text.parse::<Portal>();
        }
    }
}
