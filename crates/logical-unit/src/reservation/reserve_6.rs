//! What RESERVE(6) of another nexus leaves alone.

use scsi::Cdb;

/// Whether RESERVE(6) of another nexus leaves a command alone (SPC-2 table 10): much less than a persistent reservation
/// does. RESERVE(6) itself is judged where it is carried out.
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
