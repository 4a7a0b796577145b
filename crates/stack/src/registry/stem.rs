//! Names of files for LUNs.

use block::Identity;
use uuid::Uuid;

/// A file name of fixed length for an identity of any length and any characters.
pub(crate) fn file_stem(identity: &Identity) -> String {
    stem_of(&format!("{}\0{}\0{}", identity.target, identity.unit, identity.serial))
}

/// The same file name for all target names of a LUN with an identity; for a unit without a
/// designator the initiator makes the name out of its number.
pub(super) fn lock_stem(identity: &Identity) -> String {
    if identity.serial.is_empty() || identity.unit.starts_with("lun ") {
        return file_stem(identity);
    }
    stem_of(&format!("{}\0{}", identity.unit, identity.serial))
}

fn stem_of(text: &str) -> String {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes()).simple().to_string()
}
