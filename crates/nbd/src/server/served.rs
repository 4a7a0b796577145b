//! The export as one connection serves it.

use std::sync::Arc;

use super::export::Export;
use super::terms::Terms;
use crate::wire::transmission::Abilities;

/// The export of a connection.
pub(super) struct Served {
    pub(super) export: Arc<Export>,
    /// Whether options and requests are refused, because the server is going away.
    pub(super) is_shutting_down: bool,
}

impl Served {
    /// Whether a client that asks for `name` means this export.
    pub(super) fn has_name(&self, name: &str) -> bool {
        name.is_empty() || name == self.export.name
    }

    /// The abilities of the export under `terms`.
    pub(super) fn abilities(&self, terms: &Terms) -> Abilities {
        Abilities { can_dont_fragment: terms.is_structured, ..self.export.abilities }
    }
}
