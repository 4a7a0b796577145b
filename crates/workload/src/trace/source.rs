//! The one device or file of a trace whose requests count.

use super::error::TraceErrorKind;
use super::line::shortened;

/// The one device or file of a trace whose requests count.
pub(super) struct Source {
    name: Option<String>,
    is_chosen: bool,
}

impl Source {
    pub(super) fn new(chosen: Option<String>) -> Self {
        Self { is_chosen: chosen.is_some(), name: chosen }
    }

    /// Whether `name` is that one. If none was chosen, the first one is.
    pub(super) fn admits(&mut self, name: &str) -> Result<bool, TraceErrorKind> {
        let first = self.name.get_or_insert_with(|| name.to_owned());
        if first == name || self.is_chosen {
            return Ok(first == name);
        }
        Err(TraceErrorKind::SecondSource { first: shortened(first), second: shortened(name) })
    }
}
