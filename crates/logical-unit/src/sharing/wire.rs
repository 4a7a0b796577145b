//! Converts between the lock manager's types and the wire's.

use locks::blocks::BlockRange;
use locks::callbacks::Callbacks;
use locks::error::LockError;
use locks::identity::{CallbackNumber, ClientId, GrantNumber};
use locks::message::{CallbackAnswer, GrantedLock, Release, ToClient, Wanted};
use locks::mode::Mode;
use locks::resource::{FileId, GroupIndex, Resource};
use scsi::sharing as wire;
use scsi::sharing::{MessageBody, Reason};
use scsi::{Sense, Status};

use crate::failure::Failure;

const MODES: [(wire::Mode, Mode); 6] = [
    (wire::Mode::MetadataShared, Mode::M_S),
    (wire::Mode::MetadataExclusive, Mode::M_X),
    (wire::Mode::IntentionShared, Mode::D_IS),
    (wire::Mode::IntentionExclusive, Mode::D_IX),
    (wire::Mode::Shared, Mode::D_S),
    (wire::Mode::Exclusive, Mode::D_X),
];

pub(super) fn resource(of: wire::Resource) -> Resource {
    match of {
        wire::Resource::Metadata(block) => Resource::Metadata(block),
        wire::Resource::File(file) => Resource::File(FileId(file)),
        wire::Resource::Group(file, group) => Resource::Group(FileId(file), GroupIndex(group)),
    }
}

fn mode(of: wire::Mode) -> Option<Mode> {
    MODES.iter().find(|(there, _)| *there == of).map(|(_, mode)| *mode)
}

pub(super) fn lock(resource: Resource, mode: Option<Mode>, grant: GrantNumber) -> wire::Lock {
    let resource = match resource {
        Resource::Metadata(block) => wire::Resource::Metadata(block),
        Resource::File(file) => wire::Resource::File(file.0),
        Resource::Group(file, group) => wire::Resource::Group(file.0, group.0),
    };
    let mode = MODES.iter().find(|(_, here)| Some(*here) == mode).map(|(there, _)| *there);
    wire::Lock { resource, mode, grant: grant.0 }
}

pub(super) fn locks(granted: &[GrantedLock]) -> Vec<wire::Lock> {
    granted.iter().map(|granted| lock(granted.resource, Some(granted.mode), granted.number)).collect()
}

pub(super) fn wanted(locks: &[wire::Lock]) -> Vec<Wanted> {
    locks.iter().filter_map(|lock| Some((resource(lock.resource), mode(lock.mode?)?))).collect()
}

pub(super) fn releases(locks: &[wire::Lock]) -> Vec<Release> {
    let release = |lock: &wire::Lock| Release {
        resource: resource(lock.resource),
        number: GrantNumber(lock.grant),
        to: lock.mode.and_then(mode),
    };
    locks.iter().map(release).collect()
}

pub(super) fn answer(of: wire::CallbackAnswer) -> CallbackAnswer {
    match of {
        wire::CallbackAnswer::Done => CallbackAnswer::Done,
        wire::CallbackAnswer::InUse => CallbackAnswer::InUse,
        wire::CallbackAnswer::GettingOn => CallbackAnswer::GettingOn,
    }
}

/// The wire form of a lock manager's message. Deadlines are filled in when it is sent.
pub(super) fn message(told: ToClient) -> MessageBody {
    let transaction_of = |transaction: u64| u32::try_from(transaction).unwrap_or(u32::MAX);
    match told {
        ToClient::Granted { request, transaction, locks: granted } => MessageBody::Granted {
            request: request.0,
            transaction: transaction_of(transaction.0),
            locks: locks(&granted),
        },
        ToClient::Refused { request, error } => refused(request.0, &error, &[]).unwrap_or(MessageBody::Refused {
            request: request.0,
            reason: Reason::Deadlock,
            index: 0,
        }),
        ToClient::Callback { number, resource, grant, to } => {
            MessageBody::CallBack { callback: number.0, lock: lock(resource, to, grant), deadline_ms: 0 }
        }
        ToClient::Purge { number, range, .. } => MessageBody::Purge {
            callback: number.0,
            first_block: range.first(),
            block_count: range.count(),
            deadline_ms: 0,
        },
    }
}

/// The message with the time that is left for its answer.
pub(super) fn with_deadline(
    mut body: MessageBody,
    (client, callbacks): (ClientId, &Callbacks),
    now: base::clock::Instant,
) -> MessageBody {
    if let MessageBody::CallBack { callback, deadline_ms, .. } | MessageBody::Purge { callback, deadline_ms, .. } =
        &mut body
    {
        let open = callbacks.get(client, CallbackNumber(*callback)).ok().flatten();
        *deadline_ms = open.map_or(0, |open| milliseconds(open.deadline.since(now)));
    }
    body
}

pub(super) fn milliseconds(duration: std::time::Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

/// The blocks of `block_bytes` that contain these bytes; `None` for no bytes.
pub(super) fn blocks(range: block::ByteRange, block_bytes: u64) -> Option<BlockRange> {
    let end = range.offset.saturating_add(range.length).div_ceil(block_bytes);
    BlockRange::between(range.offset / block_bytes, end).filter(|_| !range.is_empty())
}

/// The message that refuses a request for locks; `None` where sense data reports the refusal.
pub(super) fn refused(request: u64, error: &LockError, batch: &[Wanted]) -> Option<MessageBody> {
    use LockError as E;
    let (reason, at) = match *error {
        E::Deadlock => (Reason::Deadlock, None),
        E::ReclaimConflict(resource) => (Reason::ReclaimConflict, Some(resource)),
        E::NotReclaimable(_) => (Reason::NotReclaimable, None),
        E::GraceOver => (Reason::GraceOver, None),
        E::BeyondEnd(resource) => (Reason::BeyondEnd, Some(resource)),
        E::WrongKind(resource, _) => (Reason::WrongKind, Some(resource)),
        E::IntentionOnLeaf(resource, _) => (Reason::IntentionOnLeaf, Some(resource)),
        E::LeafBeforeRoot(resource) => (Reason::LeafBeforeRoot, Some(resource)),
        E::RootTooWeak(resource, ..) => (Reason::RootTooWeak, Some(resource)),
        E::Implied(resource) => (Reason::Implied, Some(resource)),
        E::NoTransaction(_) => (Reason::NoTransaction, None),
        E::TransactionReused(_) => (Reason::TransactionReused, None),
        E::RequestReused => (Reason::RequestReused, None),
        E::ReclaimOfTransaction => (Reason::ReclaimOfTransaction, None),
        E::Fenced(_)
        | E::LeaseOver(_)
        | E::WrongEpoch(_)
        | E::Grace
        | E::Full(_)
        | E::RootBeforeLeaf(_)
        | E::NotHeld(_)
        | E::NotWeaker(..)
        | E::HeldUntilEnd
        | E::BatchLength(_)
        | E::UnknownCallback(_)
        | E::NotDeferrable(_)
        | E::NotOpen(_)
        | E::CommandState(_) => return None,
    };
    let index = at.and_then(|at| batch.iter().position(|(resource, _)| *resource == at)).unwrap_or(0);
    Some(MessageBody::Refused { request, reason, index: u16::try_from(index).unwrap_or(u16::MAX) })
}

/// The sense data of any other refusal; it points at `byte` where the parameter list is the reason.
pub(super) fn failure(error: &LockError, byte: u16) -> Failure {
    match error {
        LockError::Fenced(_) | LockError::LeaseOver(_) => Sense::SHARING_FENCED.into(),
        LockError::WrongEpoch(_) => Sense::SHARING_UNKNOWN_CLIENT.into(),
        LockError::Grace => Sense::SHARING_GRACE.into(),
        LockError::Full(locks::error::Table::Commands) => Failure::Status(Status::TaskSetFull),
        LockError::Full(_) => Sense::SHARING_TABLE_FULL.into(),
        _ => Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(byte).into(),
    }
}
