//! A page that is generated.

/// Its file's name, and its text.
pub(super) type Page = (String, String);
