//! The settings of fronts of all kinds.

use std::fs;
use std::path::PathBuf;

use front::{SocketAccess, Tls, TlsFiles};
use iscsi::chap::Credentials;

use super::gateway_name::GatewayName;
use crate::error::{Error, Failure, Result};
use crate::login::read_secret;
use crate::paths::Paths;
use crate::settings::Settings;
use crate::socket_names::{group_of, mode_of};

/// The settings of fronts.
#[derive(Clone, Debug, Default)]
pub struct FrontOptions {
    /// The name of the attachment.
    pub name: String,
    /// Mode and group of a socket file.
    pub access: SocketAccess,
    /// Whether it refuses writes.
    pub is_read_only: bool,
    /// Whether the user allows addresses that other machines reach.
    pub allows_remote: bool,
    /// TLS of NBD fronts at addresses.
    pub tls: Option<Tls>,
    /// Identity and accounts of iSCSI fronts.
    pub gateway: GatewayOptions,
}

/// Identity and accounts of an iSCSI front.
#[derive(Clone, Debug, Default)]
pub struct GatewayOptions {
    /// Its target name.
    pub iqn: String,
    /// Its target name as that of this attachment alone, on this host.
    pub(crate) name: GatewayName,
    /// The folder of its serial number and its reservations.
    pub folder: PathBuf,
    /// The accounts of which an initiator must prove one; without any, every initiator may log in.
    pub accounts: Vec<Credentials>,
    /// The credentials by which it proves itself to initiators that ask for that.
    pub own: Option<Credentials>,
}

impl FrontOptions {
    /// The options of the attachment `name`.
    ///
    /// # Errors
    /// An invalid mode, group, name, certificate or secret.
    pub fn of(settings: &Settings, name: &str, paths: &Paths) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            access: access(settings)?,
            is_read_only: settings.is_on("read-only"),
            allows_remote: settings.is_on("allow-remote"),
            tls: tls(settings)?,
            gateway: GatewayOptions {
                iqn: gateway_iqn(settings, name)?,
                name: GatewayName::default(),
                folder: paths.gateways(),
                accounts: account(settings, ["iscsi.chap-user", "iscsi.chap-file"])?.into_iter().collect(),
                own: account(settings, ["iscsi.mutual-user", "iscsi.mutual-file"])?,
            },
        })
    }
}

fn access(settings: &Settings) -> Result<SocketAccess> {
    let number = |key: &str, parse: fn(&str) -> std::result::Result<u32, String>| {
        let context = |why| Error::new(Failure::Usage, format!("{}: {why}", settings.name_of(key)));
        settings.text(key).map(|text| parse(&text).map_err(context)).transpose()
    };
    Ok(SocketAccess { mode: number("socket.mode", mode_of)?, group: number("socket.group", group_of)? })
}

fn tls(settings: &Settings) -> Result<Option<Tls>> {
    let Some(certificate) = settings.path("nbd.tls-certificate") else { return Ok(None) };
    let Some(key) = settings.path("nbd.tls-key") else {
        let message = format!("{} is of no use without nbd.tls-key", settings.name_of("nbd.tls-certificate"));
        return Err(Error::new(Failure::Usage, message));
    };
    let authorities = settings.path("nbd.tls-clients");
    let files = TlsFiles { certificate: &certificate, key: &key, client_authorities: authorities.as_deref() };
    let is_required = settings.parsed::<String>("nbd.tls")?.is_none_or(|text| text != "allowed");
    Tls::from_files(&files, is_required).map(Some).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => Error::new(Failure::Usage, format!("TLS cannot be offered: {error}")),
        _ => Error::io("TLS cannot be offered", &error),
    })
}

/// A user and the secret in a file; the secrets in the environment are those by which this host
/// proves itself to others.
fn account(settings: &Settings, [user, file]: [&str; 2]) -> Result<Option<Credentials>> {
    match (settings.text(user), settings.path(file)) {
        (None, None) => Ok(None),
        (Some(name), Some(path)) => Ok(Some(Credentials { name, secret: read_secret(&path)? })),
        (given, _) => {
            let (there, missing) = if given.is_some() { (user, file) } else { (file, user) };
            let message = format!("{} is of no use without {missing}", settings.name_of(there));
            Err(Error::new(Failure::Usage, message))
        }
    }
}

/// The given name, or one of this host and the attachment: the same at every start.
fn gateway_iqn(settings: &Settings, name: &str) -> Result<String> {
    let host = || fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let iqn = settings.text("iscsi.name").unwrap_or_else(|| iqn_of(&host(), name));
    let iqn = iscsi::name::canonical(&iqn).into_owned();
    if iscsi::url::is_iscsi_name(&iqn) {
        return Ok(iqn);
    }
    let message = format!("\"{iqn}\" is no iSCSI name: write it like iqn.2026-11.org.example:gateway");
    Err(Error::new(Failure::Usage, message))
}

/// The name in characters that an iSCSI name can have.
fn iqn_of(host: &str, name: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-');
    let clean = |text: &str| -> String {
        text.trim().to_ascii_lowercase().chars().map(|c| if is_allowed(c) { c } else { '-' }).take(64).collect()
    };
    format!("iqn.2026-11.io.forebay:gateway:{}:{}", clean(host), clean(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_has_a_name_that_is_one_whatever_its_host_and_its_attachment_are_called() {
        let long = "x".repeat(300);
        for (host, name) in [("db-1.example.org\n", "disk-0"), ("Host_1", "Disk_A.b"), ("", "d"), (&long, &long)] {
            let iqn = iqn_of(host, name);
            assert!(iscsi::url::is_iscsi_name(&iqn), "{iqn}");
            assert_eq!(iscsi::name::canonical(&iqn), iqn);
        }
        assert_eq!(iqn_of("Host_1\n", "disk"), "iqn.2026-11.io.forebay:gateway:host-1:disk");
    }
}
