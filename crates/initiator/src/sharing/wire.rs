//! Locks as the state machine has them, and as they are on the wire.

use locks::error::LockError;
use locks::identity::GrantNumber;
use locks::message::{GrantedLock, Release, Wanted};
use locks::mode::Mode;
use locks::resource::{FileId, GroupIndex, Resource};
use scsi::sharing::{self, Lock, Reason};

const MODES: [(sharing::Mode, Mode); 6] = [
    (sharing::Mode::MetadataShared, Mode::M_S),
    (sharing::Mode::MetadataExclusive, Mode::M_X),
    (sharing::Mode::IntentionShared, Mode::D_IS),
    (sharing::Mode::IntentionExclusive, Mode::D_IX),
    (sharing::Mode::Shared, Mode::D_S),
    (sharing::Mode::Exclusive, Mode::D_X),
];

/// What a lock on the wire is of.
pub(super) fn resource_of(lock: &Lock) -> Resource {
    match lock.resource {
        sharing::Resource::Metadata(block) => Resource::Metadata(block),
        sharing::Resource::File(file) => Resource::File(FileId(file)),
        sharing::Resource::Group(file, group) => Resource::Group(FileId(file), GroupIndex(group)),
    }
}

/// The mode that it names; none for none.
pub(super) fn mode_of(lock: &Lock) -> Option<Mode> {
    MODES.iter().find(|(there, _)| Some(*there) == lock.mode).map(|(_, mode)| *mode)
}

fn lock(resource: Resource, mode: Option<Mode>, grant: u64) -> Lock {
    let resource = match resource {
        Resource::Metadata(block) => sharing::Resource::Metadata(block),
        Resource::File(file) => sharing::Resource::File(file.0),
        Resource::Group(file, group) => sharing::Resource::Group(file.0, group.0),
    };
    let mode = MODES.iter().find(|(_, here)| Some(*here) == mode).map(|(there, _)| *there);
    Lock { resource, mode, grant }
}

/// Locks that are asked for.
pub(super) fn asked(batch: &[Wanted]) -> Vec<Lock> {
    batch.iter().map(|(resource, mode)| lock(*resource, Some(*mode), 0)).collect()
}

/// Locks that are given back.
pub(super) fn given_back(batch: &[Release]) -> Vec<Lock> {
    batch.iter().map(|release| lock(release.resource, release.to, release.number.0)).collect()
}

/// Locks that are held.
pub(super) fn granted(locks: &[Lock]) -> Vec<GrantedLock> {
    let held = |lock: &Lock| {
        let (resource, number) = (resource_of(lock), GrantNumber(lock.grant));
        mode_of(lock).map(|mode| GrantedLock { resource, mode, number })
    };
    locks.iter().filter_map(held).collect()
}

/// Why locks are refused.
pub(super) fn refusal(reason: Reason) -> LockError {
    let unit = Resource::File(FileId::LOGICAL_UNIT);
    match reason {
        Reason::Deadlock => LockError::Deadlock,
        Reason::ReclaimConflict => LockError::ReclaimConflict(unit),
        Reason::BeyondEnd => LockError::BeyondEnd(unit),
        Reason::RequestReused => LockError::RequestReused,
        // Of a life of before nothing is held any more, or it was asked for as it cannot be.
        _ => LockError::GraceOver,
    }
}
