//! Modes and groups of files, as users write them.

use nix::unistd::Group;

/// Parses a mode.
///
/// # Errors
/// Why it is none.
pub(crate) fn mode_of(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|&mode| mode <= 0o777);
    mode.ok_or_else(|| "it is three octal digits, as in 0660".to_owned())
}

/// The id of the group `text`.
///
/// # Errors
/// Why there is none.
pub(crate) fn group_of(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err("there is no group of this name on this host".to_owned()),
        Err(error) => Err(format!("it cannot be looked up: {error}")),
    }
}
