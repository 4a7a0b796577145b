//! The settings of an attachment, from all sources: options of the command line, `--set KEY=VALUE`,
//! a file, the environment, and `forebay set` while it runs.
//!
//! | module | holds |
//! |---|---|
//! | [`table`] | every setting, with its values, its default and its help; those of fronts are in `fronts` |
//! | [`setting`] | what is known of each |
//! | [`kind`] | the types of values, and how a text is parsed |
//! | [`file`] | the file of `attach --config` |
//! | [`file_place`] | a line of it |
//! | here | the chosen values |
//!
//! The command line overrides the environment, that the file, and that the default. A setting that
//! is given twice in the same source is an error.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use cache::Percent;

use crate::error::{Error, Failure, Result};

pub mod file;
pub mod file_place;
pub mod kind;
pub mod setting;
pub mod table;

use file_place::FilePlace;
use kind::Value;
use setting::{Changes, Setting, Unset};
use table::rows;

/// The source of a value, the weakest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// None: it is the default.
    Default,
    /// This line of a file.
    File(FilePlace),
    /// This environment variable.
    Environment(&'static str),
    /// An option of its own on the command line.
    Flag(&'static str),
    /// By `--set`.
    Set,
    /// `forebay set`, at a running attachment.
    Running,
}

impl Origin {
    /// The rank of the source: a stronger one has a higher rank.
    fn strength(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::File(_) => 1,
            Self::Environment(_) => 2,
            Self::Flag(_) | Self::Set => 3,
            Self::Running => 4,
        }
    }

    /// The setting's name in the form of its source.
    fn name_of(&self, setting: &Setting) -> String {
        match (self, setting.flag) {
            (Self::Flag(flag), _) => format!("--{flag}"),
            (Self::Environment(variable), _) => (*variable).to_owned(),
            (Self::File(place), _) => format!("{place}: {}", setting.key),
            (Self::Set, _) => format!("--set {}", setting.key),
            (Self::Default | Self::Running, _) => setting.key.to_owned(),
        }
    }
}

/// One value as it was given.
#[derive(Clone, Debug)]
struct Given {
    origin: Origin,
    text: OsString,
    value: Value,
}

/// The chosen values.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    given: BTreeMap<&'static str, Vec<Given>>,
}

/// The row of `key`.
///
/// # Errors
/// `Usage`, with similar keys.
pub fn find(key: &str) -> Result<&'static Setting> {
    rows().find(|setting| setting.key == key).ok_or_else(|| {
        let advice = match near(key).as_slice() {
            [] => "; `forebay attach --help-all` lists all".to_owned(),
            near => format!(": is {} meant?", near.join(" or ")),
        };
        let key = if key.len() > KEY_BYTES_COMPARED_MAX { "what is asked for" } else { key };
        // Without its value, which may be a secret.
        Error::new(Failure::Usage, format!("\"{key}\" is no setting of an attachment{advice}"))
    })
}

/// Keys that the user may have meant by `key`, the most likely first: those with nearly the same
/// letters, and those with the same ending.
fn near(key: &str) -> Vec<&'static str> {
    if key.len() > KEY_BYTES_COMPARED_MAX {
        return Vec::new();
    }
    let last = |key: &'_ str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let likeness = |setting: &Setting| {
        let of_flag = setting.flag.map_or(0.0, |flag| strsim::jaro_winkler(flag, key));
        let of_end = if last(setting.key) == last(key) { 1.0 } else { 0.0 };
        strsim::jaro_winkler(setting.key, key).max(of_flag).max(of_end)
    };
    let mut found: Vec<(f64, &str)> = rows().map(|setting| (likeness(setting), setting.key)).collect();
    found.retain(|(likeness, _)| *likeness >= LIKENESS_MIN);
    found.sort_by(|one, other| other.0.total_cmp(&one.0));
    found.into_iter().take(NEAR_MAX).map(|(_, key)| key).collect()
}

/// Similarity (Jaro-Winkler) from which a key may have been meant: one or two letters of a short
/// word differ.
const LIKENESS_MIN: f64 = 0.9;
/// Bytes of a key that is compared with those there are, much longer than any of them: to compare
/// takes time by the length, and a caller of the control socket may send one of megabytes.
const KEY_BYTES_COMPARED_MAX: usize = 100;
/// Most keys that an error names.
const NEAR_MAX: usize = 3;

impl Settings {
    /// Settings with only `key=value`.
    ///
    /// # Errors
    /// An unknown key, a value that it does not take.
    pub fn of_running(key: &str, value: &str) -> Result<Self> {
        let mut settings = Self::default();
        settings.give(key, OsStr::new(value), Origin::Running)?;
        Ok(settings)
    }

    /// Adds a value from `origin`.
    ///
    /// # Errors
    /// An unknown key, a value that it does not take, one that this source has given before.
    pub fn give(&mut self, key: &str, text: &OsStr, origin: Origin) -> Result<()> {
        let setting = find(key).map_err(|error| match &origin {
            Origin::File(place) => error.context(place),
            Origin::Set => error.context("--set"),
            _ => error,
        })?;
        let value = setting.kind.parse(text).map_err(|why| {
            let message = format!("{} {}: {why}", origin.name_of(setting), text.to_string_lossy());
            Error::new(Failure::Usage, message)
        })?;
        let all = self.given.entry(setting.key).or_default();
        let before = all.first().map_or(0, |given| given.origin.strength());
        if before > origin.strength() {
            return Ok(());
        }
        if before < origin.strength() || origin == Origin::Running {
            all.clear();
        }
        if let Some(first) = all.first().filter(|_| !setting.is_list) {
            let (one, other) = (first.origin.name_of(setting), origin.name_of(setting));
            return Err(Error::new(Failure::Usage, format!("{} is given twice, by {one} and by {other}", setting.key)));
        }
        all.push(Given { origin, text: text.to_owned(), value });
        Ok(())
    }

    /// Refuses a setting that needs another one which is missing, and one that only a running
    /// attachment takes.
    ///
    /// # Errors
    /// `Usage`, naming both.
    pub fn check(&self) -> Result<()> {
        for setting in rows().filter(|setting| self.is_given(setting.key)) {
            if setting.changes == Changes::LiveOnly {
                let message = format!("{} is for `forebay set`, once it runs", self.name_of(setting.key));
                return Err(Error::new(Failure::Usage, message));
            }
            if !setting.needs.is_empty() && !setting.needs.iter().any(|key| self.is_given(key)) {
                let needed: Vec<String> = setting.needs.iter().map(|key| self.name_beside(key, setting)).collect();
                let message = format!("{} needs {}", self.name_of(setting.key), needed.join(" or "));
                return Err(Error::new(Failure::Usage, message));
            }
        }
        Ok(())
    }

    /// The name of the needed setting, in the form of the source that gave `setting`.
    fn name_beside(&self, key: &str, setting: &Setting) -> String {
        let is_by_flag = matches!(self.first(setting.key), Some(Given { origin: Origin::Flag(_), .. }));
        let flag = rows().find(|setting| setting.key == key).and_then(|setting| setting.flag);
        match flag.filter(|_| is_by_flag) {
            Some(flag) => format!("--{flag}"),
            None => key.to_owned(),
        }
    }

    /// Whether any source gave it.
    pub fn is_given(&self, key: &str) -> bool {
        self.first(key).is_some()
    }

    /// The setting's name in the form of its source.
    pub fn name_of(&self, key: &str) -> String {
        let setting = row(key);
        self.first(key).map_or(&Origin::Default, |given| &given.origin).name_of(setting)
    }

    fn first(&self, key: &str) -> Option<&Given> {
        self.given.get(row(key).key)?.first()
    }

    /// The given value, or the default.
    fn value(&self, key: &str) -> Option<Value> {
        let default = || match row(key).unset {
            Unset::Value(text) => row(key).kind.parse(OsStr::new(text)).ok(),
            Unset::Words(_) => None,
        };
        self.first(key).map(|given| given.value.clone()).or_else(default)
    }

    /// Whether the switch is on; off without a value and a default.
    pub fn is_on(&self, key: &str) -> bool {
        self.value(key) == Some(Value::Switch(true))
    }

    /// A switch, where a source gave it.
    pub fn switch(&self, key: &str) -> Option<bool> {
        self.first(key).map(|given| given.value == Value::Switch(true))
    }

    /// A path.
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        match self.value(key)? {
            Value::Path(path) => Some(path),
            _ => None,
        }
    }

    /// A text.
    pub fn text(&self, key: &str) -> Option<String> {
        match self.value(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// All texts of a list.
    pub fn texts(&self, key: &str) -> Vec<String> {
        let of = |value: &Value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        };
        match self.given.get(row(key).key) {
            Some(all) => all.iter().filter_map(|given| of(&given.value)).collect(),
            None => self.text(key).into_iter().collect(),
        }
    }

    /// A number or a size; `None` also for the word that means none.
    pub fn number(&self, key: &str) -> Option<u64> {
        match self.value(key)? {
            Value::Number(number) | Value::Bytes(number) => Some(number),
            _ => None,
        }
    }

    /// A share.
    pub fn share(&self, key: &str) -> Option<Percent> {
        match self.value(key)? {
            Value::Share(share) => Some(share),
            _ => None,
        }
    }

    /// A time.
    pub fn time(&self, key: &str) -> Option<Duration> {
        match self.value(key)? {
            Value::Time(time) => Some(time),
            _ => None,
        }
    }

    /// The value of a word of a choice, or of a text with a grammar of its own.
    ///
    /// # Errors
    /// A text without a value.
    pub fn parsed<T: FromStr<Err: Display>>(&self, key: &str) -> Result<Option<T>> {
        let text = match self.value(key) {
            Some(Value::Word(word)) => word.to_owned(),
            Some(Value::Text(text)) => text,
            _ => return Ok(None),
        };
        let context = |error: T::Err| Error::new(Failure::Usage, format!("{}: {error}", self.name_of(key)));
        text.parse().map(Some).map_err(context)
    }

    /// Like [`Settings::parsed`], for a setting with a default.
    ///
    /// # Errors
    /// As [`Settings::parsed`]; a missing default.
    pub fn chosen<T: FromStr<Err: Display>>(&self, key: &str) -> Result<T> {
        let missing = || Error::new(Failure::Usage, format!("{key} is not given, and has no default"));
        self.parsed(key)?.ok_or_else(missing)
    }

    /// Every setting that a source gave, with its texts as they were given.
    pub fn given(&self) -> impl Iterator<Item = (&'static Setting, Vec<&OsStr>)> {
        let texts = |setting: &'static Setting| {
            let given = self.given.get(setting.key)?;
            Some((setting, given.iter().map(|given| given.text.as_os_str()).collect()))
        };
        rows().filter_map(texts)
    }

    /// Every setting with its value in effect, as text; without those of stores that exist, whose
    /// options are stored in them.
    pub fn in_effect(&self) -> impl Iterator<Item = (&'static str, String)> {
        let is_said = |setting: &&Setting| matches!(setting.changes, Changes::AtStart | Changes::Live);
        rows().filter(is_said).filter_map(|setting| {
            let default = match setting.unset {
                Unset::Value(text) if self.is_useful(setting) => Some(text.to_owned()),
                _ => None,
            };
            let given = self.given.get(setting.key).map(|all| {
                let texts: Vec<_> = all.iter().map(|given| given.text.to_string_lossy()).collect();
                texts.join(" ")
            });
            Some((setting.key, given.or(default)?))
        })
    }

    /// Every setting that counts at a start alone, with its value, as the text that `rooted` makes of it; without
    /// the name.
    pub fn at_start(&self, rooted: impl Fn(&Setting, &OsStr) -> Result<String>) -> BTreeMap<String, String> {
        let is_at_start = |setting: &&Setting| setting.changes == Changes::AtStart && setting.key != "name";
        let value = |setting: &'static Setting| {
            let text = |given: &Given| rooted(setting, &given.text);
            let given = self.given.get(setting.key)?;
            let texts: Vec<String> =
                given.iter().map(|given| text(given).unwrap_or_else(|_| given.text.to_string_lossy().into())).collect();
            Some(texts.join(" "))
        };
        let default = |setting: &Setting| match setting.unset {
            Unset::Value(text) if self.is_useful(setting) => Some(text.to_owned()),
            _ => None,
        };
        let all = rows().filter(is_at_start);
        all.filter_map(|setting| Some((setting.key.to_owned(), value(setting).or_else(|| default(setting))?))).collect()
    }

    /// Whether the part that the setting concerns is in use.
    fn is_useful(&self, setting: &Setting) -> bool {
        setting.needs.is_empty() || setting.needs.iter().any(|key| self.is_given(key))
    }

    /// Takes over values that were changed while it runs.
    pub fn take(&mut self, changed: Self) {
        self.given.extend(changed.given);
    }
}

/// The row of a key that this program names.
fn row(key: &str) -> &'static Setting {
    rows().find(|setting| setting.key == key).unwrap_or_else(|| panic!("{key} is no key of the table"))
}

#[cfg(test)]
mod tests;
