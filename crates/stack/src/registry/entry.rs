//! An entry of the registry: where the newest data of a LUN may be.

use std::path::PathBuf;

use block::Identity;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::content::may_be_of;
use crate::place::Place;

/// One LUN whose newest data may lie in a cache on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Version of this record; this is 1.
    pub version: u32,
    /// The LUN's target name.
    pub target: String,
    /// The LUN's designator.
    pub unit: String,
    /// The LUN's serial number.
    pub serial: String,
    /// The file or block device the cache is in.
    pub cache: PathBuf,
    /// Its offset there; `None` when it takes all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// The attachment's name.
    pub name: String,
    /// Whether it is a cache or a log.
    #[serde(default)]
    pub store: Store,
    /// Whether what it held can be lost or out of date: the log's device failed while in use, so that
    /// the LUN has newer data, or the file of a cache or log was found cut while in use.
    #[serde(default)]
    pub has_failed: bool,
    /// UUID of the store; `None` while it is not known, since another is about to replace it at its
    /// place, and in entries of older releases: of a cache these had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
}

/// The kind of store that holds a LUN's newest data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    /// A cache.
    #[default]
    Cache,
    /// A write log.
    Log,
}

impl Store {
    /// Its name, which is also that of the option and of the command.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Log => "log",
        }
    }
}

impl Entry {
    /// An entry for the LUN `identity`, cached at `place` under `name`.
    pub fn new(identity: &Identity, place: &Place, name: &str) -> Self {
        Self {
            version: 1,
            target: identity.target.clone(),
            unit: identity.unit.clone(),
            serial: identity.serial.clone(),
            cache: place.path.clone(),
            offset: place.offset,
            name: name.to_owned(),
            store: Store::Cache,
            has_failed: false,
            uuid: None,
        }
    }

    /// Whether both can name the same store: the one at this place, and no former one.
    pub(super) fn is_of_same_store(&self, other: &Self) -> bool {
        (self.place(), self.store) == (other.place(), other.store) && self.is_of_store(other.uuid)
    }

    /// Whether it can be of the store with this `uuid`.
    pub(crate) fn is_of_store(&self, uuid: Option<Uuid>) -> bool {
        may_be_of(self.uuid, uuid)
    }

    /// The place of the cache.
    pub fn place(&self) -> Place {
        Place { path: self.cache.clone(), offset: self.offset }
    }

    /// The place as the value of its option.
    pub(super) fn argument(&self) -> String {
        self.place().argument(self.store.as_str())
    }

    /// Why it must not be used any more, and what to do; `None` where it may be.
    pub fn words_of_failure(&self) -> Option<String> {
        let (place, argument, Identity { target, serial, .. }) = (self.place(), self.argument(), self.identity());
        let words = match self.store {
            Store::Cache => format!(
                "what the cache {place} held of {target} LUN serial {serial} is lost: its file was cut, or holes made \
                 in it, while it was in use, and zeroes may be read in the place of data. See what the logical unit \
                 has without it (no older copy of the cache is of use), and give the cache up with `forebay cache \
                 discard {argument}`"
            ),
            Store::Log => format!(
                "the write log {place} failed while it was in use: the LUN has got newer data since, or the log's file \
                 was cut, or holes made in it. What it holds may be older, or not be whole; give it up with `forebay \
                 log discard {argument}`"
            ),
        };
        self.has_failed.then_some(words)
    }

    /// Why another store in its place is not taken for it, and what to do: which of the two is the
    /// newer one is not known here.
    pub(crate) fn words_of_another(&self) -> String {
        let (what, place, argument) = (self.store.as_str(), self.place(), self.argument());
        let (name, replayed) = match self.store {
            Store::Cache => ("cache", ""),
            Store::Log => ("write log", " (of `log replay`: --overwrite-changes)"),
        };
        format!(
            "the newest data of {} LUN serial {} may have been in the {name} {place}, and another {what} is there. If \
             that was used last, so that this host's list is the older one (was the state directory restored?), and \
             nobody else wrote to the logical unit, take it with `--set overwrite-changes=on`{replayed}: what it \
             holds is then written over what is there. If not, bring the right one back. `forebay {what} discard \
             {argument}` gives up the {what} that is there and what it holds, and only the same command again the \
             data of the other one",
            self.target, self.serial
        )
    }

    /// The LUN of the entry.
    pub fn identity(&self) -> Identity {
        Identity { target: self.target.clone(), unit: self.unit.clone(), serial: self.serial.clone() }
    }
}
