//! The initiator name of this host, and the secrets by which it authenticates.
//!
//! Secrets come from a file or from `FOREBAY_CHAP_PASSWORD`, never from the command line, where every user of the
//! machine could read them.

use std::env;
use std::fs;
use std::path::Path;

use iscsi::chap::{Credentials, Secret};
use iscsi::pdu::Isid;
use uuid::Uuid;

use crate::error::{Error, Failure, Result};
use crate::settings::Settings;

/// The environment variable with a CHAP secret.
pub const CHAP_VARIABLE: &str = "FOREBAY_CHAP_PASSWORD";

/// The environment variable with the CHAP secret by which a target authenticates itself.
pub const MUTUAL_CHAP_VARIABLE: &str = "FOREBAY_MUTUAL_CHAP_PASSWORD";

/// The account that a command line names, if any; its secret is in a file, or in the environment.
///
/// # Errors
/// When the secret is invalid, or the user has none.
pub fn accounts(user: Option<String>, chap_file: Option<&Path>, variable: &str) -> Result<Vec<Credentials>> {
    let Some(name) = user else { return Ok(Vec::new()) };
    let secret = match (chap_file, env::var(variable)) {
        (Some(path), _) => read_secret(path)?,
        (None, Ok(text)) => secret_of(&text, variable)?,
        (None, Err(_)) => {
            let message =
                format!("there is no CHAP secret for \"{name}\": give the file that it is in, or set {variable}");
            return Err(Error::new(Failure::Usage, message));
        }
    };
    Ok(vec![Credentials { name, secret }])
}

/// This host's initiator name: the same at every start, so that a target sees the same initiator come back. It is made
/// from the machine's id (hashed, since that id should not leave the machine), or from its host name.
pub fn default_initiator_name() -> String {
    let read = |path: &str| fs::read_to_string(path).ok().filter(|text| !text.trim().is_empty());
    let host = read("/etc/machine-id").or_else(|| read("/etc/hostname")).unwrap_or_else(|| "localhost".to_owned());
    let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("forebay initiator {}", host.trim()).as_bytes());
    format!("iqn.2026-11.io.forebay:{}", id.simple())
}

/// The ISID of the attachment that answers at `control_socket`: the same at every start, so that a
/// target recognises its session, ends the tasks of the former one at once, and finds its
/// persistent reservations again (RFC 7143 4.4.3.1). Attachments of one name differ by user and by
/// host, whose name counts for containers that share a machine's id. The qualifier is zero, from
/// which several sessions are counted up.
pub fn attachment_isid(control_socket: &Path) -> Isid {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let place = format!("forebay attachment {} {}", host.trim(), control_socket.display());
    let [.., a, b, c] = Uuid::new_v5(&Uuid::NAMESPACE_OID, place.as_bytes()).into_bytes();
    Isid::random_format(u32::from_be_bytes([0, a, b, c]), 0)
}

/// This host's name for a target, and the credentials of both.
#[derive(Clone, Debug)]
pub struct Account {
    /// The initiator's name.
    pub initiator_name: String,
    /// The credentials by which this host authenticates.
    pub credentials: Option<Credentials>,
    /// The credentials by which the target must authenticate.
    pub target_credentials: Option<Credentials>,
}

impl Account {
    /// The account in `settings`, with the user of a URL where they name none.
    ///
    /// # Errors
    /// An invalid name, an invalid secret or one without a user, or authentication of the target
    /// without that of this host: CHAP is mutual or one-way.
    pub fn of(settings: &Settings, url_user: Option<&str>) -> Result<Self> {
        let user = settings.text("chap.user").or_else(|| url_user.map(str::to_owned));
        let credentials = credentials(user.as_deref(), settings.path("chap.file").as_deref())?;
        let (mutual_user, mutual_file) = (settings.text("chap.mutual-user"), settings.path("chap.mutual-file"));
        let target_credentials = accounts(mutual_user, mutual_file.as_deref(), MUTUAL_CHAP_VARIABLE)?.pop();
        if target_credentials.is_some() && credentials.is_none() {
            let message = "a target proves itself only to who does: give --chap-user and its secret as well";
            return Err(Error::new(Failure::Usage, message));
        }
        Ok(Self { initiator_name: initiator_name(settings)?, credentials, target_credentials })
    }
}

/// The initiator name to log in with.
fn initiator_name(settings: &Settings) -> Result<String> {
    let Some(name) = settings.text("initiator-name") else { return Ok(default_initiator_name()) };
    let name = iscsi::name::canonical(&name).into_owned();
    if iscsi::url::is_iscsi_name(&name) {
        return Ok(name);
    }
    let message = format!("\"{name}\" is no iSCSI name: write it like iqn.2026-11.org.example:host");
    Err(Error::new(Failure::Usage, message))
}

/// The credentials of `user`; `None` when there is neither a user nor a secret.
///
/// # Errors
/// When one is given without the other, or the secret is invalid.
pub fn credentials(user: Option<&str>, chap_file: Option<&Path>) -> Result<Option<Credentials>> {
    let secret = match chap_file {
        Some(path) => Some(read_secret(path)?),
        None => env::var(CHAP_VARIABLE).ok().map(|text| secret_of(&text, CHAP_VARIABLE)).transpose()?,
    };
    match (user, secret) {
        (Some(name), Some(secret)) => Ok(Some(Credentials { name: name.to_owned(), secret })),
        (None, None) => Ok(None),
        (Some(name), None) => {
            let message =
                format!("there is no CHAP secret for the user \"{name}\": give --chap-file or set {CHAP_VARIABLE}");
            Err(Error::new(Failure::Usage, message))
        }
        // The variable may be set for another command; a file is meant for this one.
        (None, Some(_)) if chap_file.is_none() => Ok(None),
        (None, Some(_)) => {
            Err(Error::new(Failure::Usage, "there is a CHAP secret but no user: give --chap-user, or USER@ in the URL"))
        }
    }
}

/// The secret on the first line of `path`.
///
/// # Errors
/// When the file cannot be read or its first line is not a valid secret.
pub fn read_secret(path: &Path) -> Result<Secret> {
    let name = path.display();
    let text = fs::read_to_string(path)
        .map_err(|error| Error::io(format!("cannot read the CHAP secret in {name}"), &error))?;
    secret_of(text.lines().next().unwrap_or_default(), &name)
}

fn secret_of(text: &str, origin: impl std::fmt::Display) -> Result<Secret> {
    Secret::new(text.as_bytes()).map_err(|error| Error::new(Failure::Usage, format!("{origin}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_name_is_a_name_and_stays() {
        let name = default_initiator_name();
        assert!(iscsi::url::is_iscsi_name(&name), "{name}");
        assert_eq!(name, default_initiator_name());
    }

    #[test]
    fn an_attachment_keeps_its_isid() {
        let isid = |socket: &str| attachment_isid(Path::new(socket)).to_string();
        assert_eq!(isid("/run/forebay/disk.sock"), isid("/run/forebay/disk.sock"));
        assert_ne!(isid("/run/forebay/disk.sock"), isid("/run/forebay/other.sock"));
        assert_ne!(isid("/run/forebay/disk.sock"), isid("/run/user/1000/forebay/disk.sock"));
        assert!(isid("/run/forebay/disk.sock").starts_with("80") && isid("/run/forebay/disk.sock").ends_with("0000"));
    }

    #[test]
    fn a_secret_is_the_first_line_of_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, "a-long-enough-secret\nnot this\n").unwrap();
        let credentials = credentials(Some("alice"), Some(&path)).unwrap().expect("both are there");
        assert_eq!(credentials.name, "alice");
        assert!(!format!("{credentials:?}").contains("enough"), "a secret does not print itself");
        fs::write(&path, "short\n").unwrap();
        assert_eq!(read_secret(&path).unwrap_err().failure(), Failure::Usage);
        assert_eq!(read_secret(&directory.path().join("none")).unwrap_err().failure(), Failure::NotFound);
    }

    #[test]
    fn a_user_without_a_secret_is_told_where_to_put_it() {
        let error = credentials(Some("alice"), None).unwrap_err().to_string();
        assert!(error.contains("--chap-file") && error.contains(CHAP_VARIABLE), "{error}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, "a-long-enough-secret\n").unwrap();
        assert!(credentials(None, Some(&path)).unwrap_err().to_string().contains("--chap-user"));
    }
}
