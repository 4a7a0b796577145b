//! What is known of each setting: a row of the table.

use super::kind::Kind;

/// The subject of a setting; the reference has a table for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// How several logical units form one device.
    Arrangement,
    /// The attachment as a whole.
    Attachment,
    /// How local applications reach it.
    Front,
    /// The cache.
    Cache,
    /// The write log.
    Log,
    /// The difference from a base that is never written.
    Difference,
    /// The login to targets, and how long to wait for them.
    Login,
}

impl Part {
    /// All of them, in the order of the reference, each with its heading.
    pub const ALL: &[(Self, &str)] = &[
        (Self::Attachment, "The attachment"),
        (Self::Front, "Fronts: how applications reach it"),
        (Self::Cache, "Cache"),
        (Self::Log, "Write log"),
        (Self::Difference, "Difference"),
        (Self::Arrangement, "Several logical units as one"),
        (Self::Login, "Login and waiting"),
    ];
}

/// When a setting may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// At the start.
    AtStart,
    /// When a store is made; an existing one keeps its options.
    AtFormat,
    /// At the start, and while it runs.
    Live,
    /// When a cache is made, and while it runs by replacing it.
    ByReplacement,
    /// Only while it runs: it asks for an action.
    LiveOnly,
}

/// The value in effect where none is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unset {
    /// This value.
    Value(&'static str),
    /// The value that these words describe; empty where there is no description.
    Words(&'static str),
}

/// One row.
#[derive(Debug)]
pub struct Setting {
    /// Its name: in files, for `set` and `--set`, in the status.
    pub key: &'static str,
    /// Its own option on the command line, without the dashes.
    pub flag: Option<&'static str>,
    /// The former name of this option.
    pub old_flag: Option<&'static str>,
    /// The environment variable for it, which the command line overrides.
    pub variable: Option<&'static str>,
    /// The type of its values.
    pub kind: Kind,
    /// The value in effect without it.
    pub unset: Unset,
    /// When it may change.
    pub changes: Changes,
    /// Its subject.
    pub part: Part,
    /// Whether `attach --help` lists its option. Other options are kept for existing users, until
    /// the next release.
    pub is_basic: bool,
    /// Whether it may be given several times.
    pub is_list: bool,
    /// Keys of which it needs at least one.
    pub needs: &'static [&'static str],
    /// Its effect, in a line.
    pub help: &'static str,
    /// Further details.
    pub more: &'static str,
}

impl Setting {
    /// A setting that is made at the start, with a flag.
    pub(crate) const fn new(part: Part, key: &'static str, flag: &'static str, kind: Kind, help: &'static str) -> Self {
        Self {
            key,
            flag: Some(flag),
            old_flag: None,
            variable: None,
            kind,
            unset: Unset::Words(""),
            changes: Changes::AtStart,
            part,
            is_basic: false,
            is_list: false,
            needs: &[],
            help,
            more: "",
        }
    }

    /// One of the cache.
    pub(crate) const fn cache(key: &'static str, flag: &'static str, kind: Kind, help: &'static str) -> Self {
        Self::new(Part::Cache, key, flag, kind, help).needs(&["cache.path"])
    }

    /// One of the write log.
    pub(crate) const fn log(key: &'static str, flag: &'static str, kind: Kind, help: &'static str) -> Self {
        Self::new(Part::Log, key, flag, kind, help).needs(&["log.path"])
    }

    /// One of the login.
    pub(crate) const fn login(key: &'static str, flag: &'static str, kind: Kind, help: &'static str) -> Self {
        Self::new(Part::Login, key, flag, kind, help)
    }

    /// Listed by `attach --help`.
    pub(crate) const fn basic(self) -> Self {
        Self { is_basic: true, ..self }
    }

    /// May be given several times.
    pub(crate) const fn list(self) -> Self {
        Self { is_list: true, ..self }
    }

    /// With this value where none is given.
    pub(crate) const fn default(self, value: &'static str) -> Self {
        Self { unset: Unset::Value(value), ..self }
    }

    /// With what these words describe where none is given.
    pub(crate) const fn unset(self, words: &'static str) -> Self {
        Self { unset: Unset::Words(words), ..self }
    }

    /// May change at these times.
    pub(crate) const fn changes(self, changes: Changes) -> Self {
        Self { changes, ..self }
    }

    /// May change while it runs.
    pub(crate) const fn live(self) -> Self {
        self.changes(Changes::Live)
    }

    /// Counts when a store is made.
    pub(crate) const fn at_format(self) -> Self {
        self.changes(Changes::AtFormat)
    }

    /// Needs one of these keys.
    pub(crate) const fn needs(self, needs: &'static [&'static str]) -> Self {
        Self { needs, ..self }
    }

    /// With further details.
    pub(crate) const fn more(self, more: &'static str) -> Self {
        Self { more, ..self }
    }

    /// Had its option under this name.
    pub(crate) const fn old_flag(self, flag: &'static str) -> Self {
        Self { old_flag: Some(flag), ..self }
    }

    /// Is taken from this environment variable.
    pub(crate) const fn variable(self, variable: &'static str) -> Self {
        Self { variable: Some(variable), ..self }
    }

    /// Has no option of its own.
    pub(crate) const fn without_flag(self) -> Self {
        Self { flag: None, ..self }
    }

    /// Whether `forebay set` takes it.
    pub fn is_live(&self) -> bool {
        matches!(self.changes, Changes::Live | Changes::ByReplacement | Changes::LiveOnly)
    }

    /// The value in effect without it, in words; may be empty.
    pub fn default_in_words(&self) -> &'static str {
        match self.unset {
            Unset::Value(words) | Unset::Words(words) => words,
        }
    }
}
