//! The settings of NBD servers.

use crate::settings::kind::Kind;
use crate::settings::setting::{Part, Setting};

/// They are at the end of the table.
pub(crate) const ROWS: &[Setting] = &[
    Setting::new(
        Part::Front,
        "nbd.tls-certificate",
        "",
        Kind::Path,
        "The server's certificate for TLS at NBD addresses, in PEM, with those between it and its authority",
    )
    .needs(&["nbd.tls-key"])
    .without_flag(),
    Setting::new(Part::Front, "nbd.tls-key", "", Kind::Path, "File with the key of that certificate, in PEM")
        .needs(&["nbd.tls-certificate"])
        .without_flag(),
    Setting::new(
        Part::Front,
        "nbd.tls-clients",
        "",
        Kind::Path,
        "The authorities of one of which an NBD client's certificate must be, in PEM",
    )
    .unset("clients need no certificate")
    .needs(&["nbd.tls-certificate"])
    .without_flag(),
    Setting::new(
        Part::Front,
        "nbd.tls",
        "",
        Kind::Choice(&["required", "allowed"]),
        "Whether NBD clients at addresses must use TLS, where there is a certificate",
    )
    .unset("required")
    .needs(&["nbd.tls-certificate"])
    .without_flag(),
];
