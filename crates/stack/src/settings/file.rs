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

use toml::{Table, Value};

use super::{Origin, Settings};
use crate::error::{Error, Failure, Result};

/// The key of the logical unit; it is no setting, since all others belong to it.
const URL: &str = "url";

impl Settings {
    /// Takes the settings of the file at `path`, and returns the URL if the file has one.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, or has an unknown setting.
    pub fn read(&mut self, path: &Path) -> Result<Option<String>> {
        let name = path.display();
        let text = fs::read_to_string(path).map_err(|error| Error::io(format!("cannot read {name}"), &error))?;
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let (line, why) = (before.matches('\n').count() + 1, error.message().replace(char::is_control, " "));
            Error::new(Failure::Usage, format!("{name}, line {line}: {why}"))
        })?;
        let mut url = None;
        self.take_table(&table, "", path, &mut url)?;
        Ok(url)
    }

    fn take_table(&mut self, table: &Table, above: &str, path: &Path, url: &mut Option<String>) -> Result<()> {
        for (key, value) in table {
            let key = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
            match value {
                Value::String(text) if key == URL => *url = Some(text.clone()),
                Value::Table(below) => self.take_table(below, &key, path, url)?,
                Value::Array(values) => {
                    values.iter().try_for_each(|value| self.take_value(&key, value, path))?;
                }
                value => self.take_value(&key, value, path)?,
            }
        }
        Ok(())
    }

    fn take_value(&mut self, key: &str, value: &Value, path: &Path) -> Result<()> {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Boolean(is_on) => is_on.to_string(),
            _ => {
                let message = format!("{}: {key} is a text, a number, or true or false", path.display());
                return Err(Error::new(Failure::Usage, message));
            }
        };
        self.give(key, OsStr::new(&text), Origin::File(path.to_owned()))
    }
}
