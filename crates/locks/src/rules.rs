//! The rules between a file and its block groups: root before leaf, leaf released before root, no intention on a leaf,
//! and a lock on the file that is no intention is one on each block group.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::error::LockError;
use crate::message::Wanted;
use crate::mode::Mode;
use crate::resource::{GroupIndex, Resource};

/// The modes that block groups are held in.
pub const LEAF_MODES: [Mode; 2] = [Mode::D_S, Mode::D_X];

/// The modes that an owner finally holds after requesting `batch` in that order, given what it has
/// `held`: files before block groups, with the file of each block group included.
///
/// # Errors
/// For the first lock that breaks a rule.
pub fn plan(batch: &[Wanted], held: impl Fn(Resource) -> Option<Mode>) -> Result<Vec<Wanted>, LockError> {
    let mut planned = BTreeMap::<Resource, Mode>::new();
    let now = |planned: &BTreeMap<Resource, Mode>, at: Resource| planned.get(&at).copied().or_else(|| held(at));
    for (resource, mode) in batch.iter().copied() {
        check_kind(resource, mode)?;
        if let Some(root) = resource.root() {
            let root_mode = now(&planned, root).ok_or(LockError::LeafBeforeRoot(resource))?;
            check_root(resource, mode, root_mode)?;
            planned.insert(root, root_mode);
        }
        let joined = now(&planned, resource).map_or(mode, |held| held.join(mode));
        planned.insert(resource, joined);
        if let Some(leaves) = leaves_below(resource).filter(|_| !joined.is_intention()) {
            planned.retain(|leaf, _| !leaves.contains(leaf));
        }
    }
    Ok(planned.into_iter().collect())
}

fn check_kind(resource: Resource, mode: Mode) -> Result<(), LockError> {
    if !resource.takes(mode) {
        return Err(LockError::WrongKind(resource, mode));
    }
    if resource.root().is_some() && mode.is_intention() {
        return Err(LockError::IntentionOnLeaf(resource, mode));
    }
    Ok(())
}

fn check_root(leaf: Resource, mode: Mode, root_mode: Mode) -> Result<(), LockError> {
    if root_mode.is_intention() && root_mode.covers(mode.intention()) {
        return Ok(());
    }
    Err(if root_mode.covers(mode) { LockError::Implied(leaf) } else { LockError::RootTooWeak(leaf, mode, root_mode) })
}

/// Whether a lock in `mode` may be lowered to `to` while block groups below it are held in
/// `leaves`.
///
/// # Errors
/// When `to` is not weaker than `mode`, or too weak for the leaves.
pub fn check_release(resource: Resource, mode: Mode, to: Option<Mode>, leaves: &[Mode]) -> Result<(), LockError> {
    if let Some(to) = to {
        if !resource.takes(to) {
            return Err(LockError::WrongKind(resource, to));
        }
        if to == mode || !mode.covers(to) {
            return Err(LockError::NotWeaker(resource, mode, to));
        }
        if resource.root().is_some() && to.is_intention() {
            return Err(LockError::IntentionOnLeaf(resource, to));
        }
    }
    if leaves.iter().any(|leaf| leaf_below(to, *leaf) != Some(*leaf)) {
        return Err(LockError::RootBeforeLeaf(resource));
    }
    Ok(())
}

/// The mode that may be kept of a block group held as `leaf` when its file is held as `root`.
pub fn leaf_below(root: Option<Mode>, leaf: Mode) -> Option<Mode> {
    match root {
        Some(root) if root.covers(leaf.intention()) => Some(leaf),
        Some(root) if root.covers(Mode::D_IS) => Some(Mode::D_S),
        _ => None,
    }
}

/// The block groups that can be below a file.
pub fn leaves_below(root: Resource) -> Option<RangeInclusive<Resource>> {
    match root {
        Resource::File(file) => {
            Some(Resource::Group(file, GroupIndex(0))..=Resource::Group(file, GroupIndex(u64::MAX)))
        }
        Resource::Metadata(_) | Resource::Group(..) => None,
    }
}
