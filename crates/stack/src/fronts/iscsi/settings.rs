//! The settings of iSCSI gateways.

use crate::settings::kind::Kind;
use crate::settings::setting::{Part, Setting};

/// They are at the end of the table.
pub(crate) const ROWS: &[Setting] = &[
    Setting::new(Part::Front, "iscsi.name", "", Kind::Text("IQN"), "Target name of an iSCSI front")
        .unset("one made of the names of this host and of the attachment")
        .without_flag(),
    Setting::new(
        Part::Front,
        "iscsi.chap-user",
        "",
        Kind::Text("USER"),
        "CHAP user that initiators of an iSCSI front must prove to be",
    )
    .unset("nobody has to prove anything")
    .without_flag(),
    Setting::new(Part::Front, "iscsi.chap-file", "", Kind::Path, "File with the secret of that user (its first line)")
        .needs(&["iscsi.chap-user"])
        .without_flag(),
    Setting::new(
        Part::Front,
        "iscsi.mutual-user",
        "",
        Kind::Text("USER"),
        "CHAP user that an iSCSI front proves to be to initiators that ask",
    )
    .without_flag(),
    Setting::new(
        Part::Front,
        "iscsi.mutual-file",
        "",
        Kind::Path,
        "File with the secret of that user (its first line)",
    )
    .needs(&["iscsi.mutual-user"])
    .without_flag(),
];
