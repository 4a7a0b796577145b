//! A record of the list of caches: a store, its LUNs, and their change marks.

use std::path::PathBuf;

use base::range::ByteRange;
use block::Identity;
use serde::{Deserialize, Serialize};
use store::superblock::StoreIdentity;
use uuid::Uuid;

use crate::content::may_be_of;
use crate::place::Place;
use crate::registry::Store;

/// One cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StoreRecord {
    /// The file or block device it is in.
    pub path: PathBuf,
    /// Its offset there; `None` when it takes all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Its length in bytes; `None` when it is a file of its own, which may get another size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// Version of this record; this is 1.
    pub version: u32,
    /// The LUN's target name.
    pub target: String,
    /// The LUN's designator.
    pub unit: String,
    /// The LUN's serial number.
    pub serial: String,
    /// The name of its last attachment.
    pub name: String,
    /// Whether it is a cache or a write log.
    #[serde(default, skip_serializing_if = "is_default")]
    pub store: Store,
    /// Its LUNs, each with its mark at the target: one, or the members of a stripe.
    #[serde(default, skip_serializing_if = "is_default")]
    pub luns: Vec<LunRecord>,
    /// Whether this host has written to the LUN without it, or other hosts have while they shared
    /// it: its clean lines are void then, unless the target reports what changed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_stale: bool,
    /// The user promised that no other host writes to the LUN.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_exclusive: bool,
    /// UUID of the store, where that is known: another store may be at the place by now.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uuid: Option<Uuid>,
    /// The tokens that the store may have: one, or several after an interrupted opening. A store
    /// with another token is another copy of it. None where this host has given it none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tokens: Vec<u64>,
    /// Whether its file was found cut while it was in use: nothing clean of it counts. Where it may
    /// be dirty, the registry has it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_cut: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A LUN of a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LunRecord {
    /// Its target name.
    pub target: String,
    /// Its designator.
    pub unit: String,
    /// Its serial number.
    pub serial: String,
    /// The mark in which its target records changes by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<MarkRecord>,
}

impl LunRecord {
    /// A record of the LUN `identity`.
    pub fn new(identity: &Identity, mark: Option<MarkRecord>) -> Self {
        let Identity { target, unit, serial } = identity.clone();
        Self { target, unit, serial, mark }
    }

    /// Whether it is this LUN, by whatever target name it is reached.
    pub fn is(&self, identity: &Identity) -> bool {
        (&self.unit, &self.serial) == (&identity.unit, &identity.serial)
    }
}

/// A change mark.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MarkRecord {
    pub(super) id: Uuid,
    token: u64,
    /// A token that it may have by now: it was sent to the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    candidate: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    stage: MarkStage,
}

/// Whether a mark can report changes for its store. It is made with everything changed, and is of
/// use only once it was cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarkStage {
    /// It reports what others changed.
    #[default]
    Cleared,
    /// It reports nothing, though it should: it replaces a mark that its target lost, or its store
    /// was used with it.
    Owing,
    /// It reports nothing, as expected: no target has recorded changes for this store before.
    New,
    /// It reports what others changed, and did not get its last token: a copy of the LUN from while
    /// the store was used has the same one, and lacks what the store's clean lines are of.
    TokenOwed,
}

impl MarkRecord {
    /// A mark with this token.
    pub fn new(id: [u8; 16], token: u64) -> Self {
        Self { id: Uuid::from_bytes(id), token, candidate: None, stage: MarkStage::Cleared }
    }

    /// The mark with this stage.
    #[must_use]
    pub fn with_stage(self, stage: MarkStage) -> Self {
        Self { stage, ..self }
    }

    /// The stage of the mark.
    pub fn stage(&self) -> MarkStage {
        self.stage
    }

    /// The mark with another token on its way to the target.
    #[must_use]
    pub fn with_candidate(self, candidate: u64) -> Self {
        Self { candidate: Some(candidate), ..self }
    }

    /// The mark with its candidate as its token.
    #[must_use]
    pub fn settled(self) -> Self {
        Self { token: self.newest(), candidate: None, ..self }
    }

    /// The token that is on its way to the target, or was when this host stopped.
    pub fn candidate(&self) -> Option<u64> {
        self.candidate
    }

    /// Its id.
    pub fn id(&self) -> [u8; 16] {
        self.id.into_bytes()
    }

    /// The newest token: the candidate, or else the token.
    pub fn newest(&self) -> u64 {
        self.candidate.unwrap_or(self.token)
    }

    /// Whether it is the mark with this id and token at its target.
    pub fn is(&self, id: &[u8; 16], token: u64) -> bool {
        self.id.as_bytes() == id && (self.token == token || self.candidate == Some(token))
    }
}

impl StoreRecord {
    /// A record of the cache at `place`, on this many bytes, of the LUN `identity`, attached as
    /// `name`.
    pub fn new(place: &Place, device_bytes: u64, identity: &Identity, name: &str) -> Self {
        Self {
            path: place.path.clone(),
            offset: place.offset,
            length: place.fixed_bytes(device_bytes),
            version: 1,
            target: identity.target.clone(),
            unit: identity.unit.clone(),
            serial: identity.serial.clone(),
            name: name.to_owned(),
            store: Store::Cache,
            luns: Vec::new(),
            is_stale: false,
            is_exclusive: false,
            uuid: None,
            tokens: Vec::new(),
            is_cut: false,
        }
    }

    /// Whether its store can have this token. A record without tokens is from before stores had
    /// them.
    pub(super) fn knows(&self, token: u64) -> bool {
        self.tokens.is_empty() || self.tokens.contains(&token)
    }

    /// Whether `found` is another copy of its store than the one that this host used last.
    pub(super) fn is_of_other_copy(&self, found: &StoreIdentity) -> bool {
        self.uuid == Some(found.uuid) && !self.knows(found.token)
    }

    /// Whether it can be a record of the store with this `uuid`.
    pub fn is_of_store(&self, uuid: Option<Uuid>) -> bool {
        may_be_of(self.uuid, uuid)
    }

    /// Whether it is of one of these LUNs, by whatever target name they are reached.
    pub fn is_of(&self, identities: &[Identity]) -> bool {
        let is_it = |identity: &Identity| (&self.unit, &self.serial) == (&identity.unit, &identity.serial);
        identities.iter().any(|identity| is_it(identity) || self.luns.iter().any(|lun| lun.is(identity)))
    }

    /// Its place.
    pub fn place(&self) -> Place {
        Place { path: self.path.clone(), offset: self.offset }
    }

    /// The bytes of its file or block device that it takes.
    pub(super) fn range(&self) -> ByteRange {
        let part = self.offset.zip(self.length).and_then(|(offset, length)| ByteRange::new(offset, length));
        part.unwrap_or(ByteRange { offset: 0, length: u64::MAX })
    }
}
