//! The commands that RESERVE(6) of another nexus still allows.

use scsi::Cdb;

/// Whether a command is allowed during RESERVE(6) of another nexus (SPC-2 table 10): far fewer are
/// than during a persistent reservation. RESERVE(6) itself is checked where it is carried out.
pub(super) fn is_allowed(cdb: &Cdb) -> bool {
    matches!(
        cdb,
        Cdb::Inquiry { .. }
            | Cdb::RequestSense { .. }
            | Cdb::ReportLuns { .. }
            | Cdb::Reserve6
            | Cdb::Release6
            | Cdb::ChangeMarkIn { .. }
            | Cdb::ChangeMarkOut { .. }
            | Cdb::SharingIn { .. }
            | Cdb::SharingOut { .. }
            | Cdb::PreventAllowMediumRemoval { prevent: 0 }
    )
}
