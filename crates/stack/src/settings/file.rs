//! The file of `attach --config`: the same settings in TOML, where a table is the part of a key
//! before its dot, and `url` at the top.
//!
//! ```toml
//! url = "iscsi://192.0.2.7/iqn.2026-11.org.example:disks/0"
//! name = "disk"
//!
//! [cache]
//! path = "/var/cache/disk.cache"
//! size = "10GiB"
//! ```

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file_place::FilePlace;
use super::{Origin, Settings};
use crate::error::{Error, Failure, Result};

/// The key of the logical unit; it is no setting, since all others belong to it.
pub const URL: &str = "url";

/// The tables of the file of a target, which an attachment has none of.
const TARGET_TABLE: &str = "target";

impl Settings {
    /// Takes the settings of the file at `path`, and returns the URL if the file has one.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, or has an unknown setting.
    pub fn read(&mut self, path: &Path) -> Result<Option<String>> {
        let read = fs::read_to_string(path);
        let text = read.map_err(|error| Error::io(format!("cannot read {}", path.display()), &error))?;
        self.read_text(&text, path)
    }

    /// The same of the text of the file at `path`.
    ///
    /// # Errors
    /// When it is not TOML, or has an unknown setting.
    pub fn read_text(&mut self, text: &str, path: &Path) -> Result<Option<String>> {
        let source = Source { text, path };
        let table = DeTable::parse(text).map_err(|error| {
            let place = source.place_of(error.span().map_or(0, |span| span.start));
            let why = error.message().replace(char::is_control, " ");
            Error::new(Failure::Usage, format!("{place}: {why}"))
        })?;
        let mut url = None;
        self.take_table(table.get_ref(), "", &source, &mut url)?;
        Ok(url)
    }

    fn take_table(
        &mut self,
        table: &DeTable<'_>,
        above: &str,
        source: &Source<'_>,
        url: &mut Option<String>,
    ) -> Result<()> {
        for (name, value) in table {
            let name_text = name.get_ref();
            let key = if above.is_empty() { name_text.clone().into_owned() } else { format!("{above}.{name_text}") };
            match value.get_ref() {
                DeValue::String(text) if key == URL => *url = Some(text.clone().into_owned()),
                DeValue::Table(below) => self.take_table(below, &key, source, url)?,
                DeValue::Array(values) => {
                    values.iter().try_for_each(|value| self.take_value(&key, value.span().start, value, source))?;
                }
                _ => self.take_value(&key, name.span().start, value, source)?,
            }
        }
        Ok(())
    }

    /// Takes a value whose key, or which itself, begins at the byte `start`.
    fn take_value(&mut self, key: &str, start: usize, value: &Spanned<DeValue<'_>>, source: &Source<'_>) -> Result<()> {
        let place = source.place_of(start);
        let text = match value.get_ref() {
            DeValue::String(text) => text.clone().into_owned(),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Boolean(is_on) => is_on.to_string(),
            _ => {
                let message = format!("{place}: {key} is a text, a number, or true or false");
                return Err(Error::new(Failure::Usage, message));
            }
        };
        self.give(key, OsStr::new(&text), Origin::File(place))
    }
}

/// Whether the text is that of a target's file, which may lie in the same directory.
pub fn is_of_target(text: &str) -> bool {
    DeTable::parse(text).is_ok_and(|table| {
        table.get_ref().get(TARGET_TABLE).is_some_and(|value| matches!(value.get_ref(), DeValue::Array(_)))
    })
}

/// The text of a file.
struct Source<'a> {
    text: &'a str,
    path: &'a Path,
}

impl Source<'_> {
    /// The line of the byte `start`.
    fn place_of(&self, start: usize) -> FilePlace {
        let before = self.text.get(..start).unwrap_or_default();
        FilePlace { path: self.path.to_owned(), line: before.matches('\n').count() + 1 }
    }
}
