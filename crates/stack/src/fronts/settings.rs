//! The settings of fronts: those of all kinds, and the list of those that a kind has for itself.
//!
//! Only rows of the table are here: what they mean is in `options`.

use super::iscsi::settings as of_iscsi;
use super::nbd::settings as of_nbd;
use crate::settings::kind::Kind;
use crate::settings::setting::{Part, Setting};
use crate::socket_names::{group_of, mode_of};

/// The fronts of an attachment; every kind's places are in its help.
pub(crate) const FRONT: Setting = Setting::new(
    Part::Front,
    "front",
    "as",
    Kind::Text("FRONT"),
    "Where to offer it: nbd:unix:PATH, nbd:ADDRESS:PORT, nbd:/dev/nbdN, fuse:PATH, iscsi:[ADDRESS:]PORT, or auto",
)
.default("nbd")
.more(
    "nbd is an NBD socket in the run-time directory; auto is the best that this machine has: a disk of the \
     kernel's NBD client, a FUSE file there, else that socket. Given several times, it is offered at all of these \
     places.",
)
.list()
.basic();

/// All others: the last of the table.
pub(crate) static ROWS: &[&[Setting]] = &[OF_ALL, of_nbd::ROWS, of_iscsi::ROWS];

const OF_ALL: &[Setting] = &[
    Setting::new(
        Part::Front,
        "socket.mode",
        "socket-mode",
        Kind::Checked("MODE", |text| mode_of(text).map(drop)),
        "Permissions of a socket file, or of a FUSE file, of a front, octal",
    )
    .unset("0600, or 0660 with socket.group"),
    Setting::new(
        Part::Front,
        "socket.group",
        "socket-group",
        Kind::Checked("GROUP", |text| group_of(text).map(drop)),
        "Group of a socket file, or of a FUSE file, of a front, by name or number: that of a hypervisor's user, for one",
    ),
    Setting::new(
        Part::Front,
        "allow-remote",
        "",
        Kind::Switch,
        "Let fronts listen on addresses that other machines reach",
    )
    .default("off")
    .without_flag(),
];
