//! Converts locks between the state machine's form and the wire's.

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

/// The resource that a lock on the wire names.
pub(super) fn resource_of(lock: &Lock) -> Resource {
    match lock.resource {
        sharing::Resource::Metadata(block) => Resource::Metadata(block),
        sharing::Resource::File(file) => Resource::File(FileId(file)),
        sharing::Resource::Group(file, group) => Resource::Group(FileId(file), GroupIndex(group)),
    }
}

/// The mode that a lock on the wire names; `None` where it has none.
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

/// A batch of wanted locks in the wire's form.
pub(super) fn asked(batch: &[Wanted]) -> Vec<Lock> {
    batch.iter().map(|(resource, mode)| lock(*resource, Some(*mode), 0)).collect()
}

/// A batch of released locks in the wire's form.
pub(super) fn given_back(batch: &[Release]) -> Vec<Lock> {
    batch.iter().map(|release| lock(release.resource, release.to, release.number.0)).collect()
}

/// Granted locks in the state machine's form.
pub(super) fn granted(locks: &[Lock]) -> Vec<GrantedLock> {
    let held = |lock: &Lock| {
        let (resource, number) = (resource_of(lock), GrantNumber(lock.grant));
        mode_of(lock).map(|mode| GrantedLock { resource, mode, number })
    };
    locks.iter().filter_map(held).collect()
}

/// The error for the wire's reason to refuse locks.
pub(super) fn refusal(reason: Reason) -> LockError {
    let unit = Resource::File(FileId::LOGICAL_UNIT);
    match reason {
        Reason::Deadlock => LockError::Deadlock,
        Reason::ReclaimConflict => LockError::ReclaimConflict(unit),
        Reason::BeyondEnd => LockError::BeyondEnd(unit),
        Reason::RequestReused => LockError::RequestReused,
        // An earlier life holds nothing any more, or the request was malformed.
        _ => LockError::GraceOver,
    }
}
