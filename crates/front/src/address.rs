//! The address of an NBD server: `unix:PATH` or `HOST:PORT`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// An address to listen on or to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// A socket file.
    Unix(PathBuf),
    /// An address and port.
    Tcp(SocketAddr),
}

/// The error of a malformed address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no place to listen on: write unix:PATH, or ADDRESS:PORT like 127.0.0.1:10809 or [::1]:10809")]
pub struct ParseAddressError(String);

impl ListenAddress {
    /// The address in the form of libnbd, qemu and nbdcopy.
    pub fn uri(&self, export_name: &str) -> String {
        let export = percent_encoded(export_name, "");
        match self {
            Self::Unix(path) => {
                format!("nbd+unix:///{export}?socket={}", percent_encoded(&path.to_string_lossy(), "/"))
            }
            Self::Tcp(address) => format!("nbd://{address}/{export}"),
        }
    }
}

/// `text` with everything but letters, digits, `-._~` and `also` percent-encoded (RFC 3986 2.1).
fn percent_encoded(text: &str, also: &str) -> String {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also.as_bytes().contains(&byte);
    let encode = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}

impl FromStr for ListenAddress {
    type Err = ParseAddressError;

    /// Names are not looked up, except `localhost`: the address where a server listens should not
    /// depend on a name server.
    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        let error = || ParseAddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(error()) } else { Ok(Self::Unix(path.into())) };
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            let port = port.parse().map_err(|_| error())?;
            return Ok(Self::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)));
        }
        text.parse().map(Self::Tcp).map_err(|_| error())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_print() {
        for text in ["unix:/run/forebay/a b.sock", "127.0.0.1:10809", "[::1]:10809"] {
            assert_eq!(text.parse::<ListenAddress>().map(|address| address.to_string()).as_deref(), Ok(text));
        }
        assert_eq!("localhost:1".parse::<ListenAddress>(), "127.0.0.1:1".parse());
        for text in ["", "unix:", "example.org:10809", "127.0.0.1", "127.0.0.1:99999", "/run/a.sock"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn uris_are_what_other_programs_take() {
        let unix = ListenAddress::Unix("/run/a b.sock".into());
        assert_eq!(unix.uri("disk 1"), "nbd+unix:///disk%201?socket=/run/a%20b.sock");
        assert_eq!("[::1]:10809".parse::<ListenAddress>().unwrap().uri("x"), "nbd://[::1]:10809/x");
    }
}
