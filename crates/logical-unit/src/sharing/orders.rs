//! SHARING OUT: a client's request, decided at once. Messages report what follows later.

use std::sync::Arc;
use std::time::Duration;

use base::clock::Instant;
use block::ByteRange;
use locks::error::LockError;
use locks::identity::{Birth, CallbackNumber, ClientId, Owner, RequestId, TransactionId};
use locks::open_files::OpenMode;
use locks::outbox::{Outbox, Reader};
use locks::resource::FileId;
use scsi::Sense;
use scsi::sharing::parameters::byte_of_lock;
use scsi::sharing::{LifeBefore, Lock, MessageBody, Mode, NO_PROOF, Parameters, Resource, action_out};

use super::site::Sharing;
use super::state::{Member, Path, State};
use super::store::SavedSharing;
use super::wire::{self, failure, milliseconds};
use crate::change_marks::cannot_save;
use crate::failure::Failure;
use crate::nexus::NexusId;

/// The range of the turn lock for saves: one range stands for all.
pub(super) const TURN: ByteRange = ByteRange { offset: 0, length: 1 };

/// The sender of a REGISTER.
struct Registrant<'a> {
    nexus: &'a NexusId,
    key: [u8; 16],
    registers_reads: bool,
}

/// A registration under way: the durable lease is not forgotten until it is over.
pub(crate) struct Registering(Arc<Sharing>);

impl Registering {
    pub(crate) fn begin(sharing: &Arc<Sharing>) -> Self {
        sharing.with(|state, _| state.registering += 1);
        Self(Arc::clone(sharing))
    }

    /// Whether the lease that is about to be granted must be made durable first.
    pub(crate) fn has_lease_to_keep(&self) -> bool {
        let lease_ms = self.0.lease_ms;
        self.0.with(|state, _| state.saved.longest_lease_ms.is_none_or(|kept| kept < lease_ms))
    }

    /// Makes durable that this lease is granted.
    ///
    /// # Errors
    /// The failure for the initiator if it cannot be saved.
    pub(crate) async fn keep_lease(&self) -> Result<(), Failure> {
        let sharing = &self.0;
        let _turn = sharing.turns.exclusive(TURN).await;
        let saved =
            sharing.with(|state, _| SavedSharing { longest_lease_ms: Some(sharing.lease_ms), ..state.saved.clone() });
        if let Some(store) = &sharing.store {
            store.save(saved).await.map_err(|error| cannot_save(&error))?;
        }
        sharing.with(|state, _| state.saved.longest_lease_ms = Some(sharing.lease_ms));
        Ok(())
    }
}

impl Drop for Registering {
    fn drop(&mut self) {
        self.0.with(|state, _| state.registering -= 1);
    }
}

impl Sharing {
    /// Whether a client may get dirty data that only it has, which must be made durable first.
    pub(crate) fn has_delays_to_keep(&self, parameters: &Parameters) -> bool {
        let Parameters::Lock { locks, .. } = parameters else { return false };
        let is_alone = |lock: &Lock| {
            lock.mode == Some(Mode::Exclusive) && matches!(lock.resource, Resource::File(0) | Resource::Group(0, _))
        };
        locks.iter().any(is_alone) && self.with(|state, _| !state.saved.may_lack_writes)
    }

    /// Makes that durable.
    ///
    /// # Errors
    /// The failure for the initiator if it cannot be saved.
    pub(crate) async fn keep_delays(&self) -> Result<(), Failure> {
        let _turn = self.turns.exclusive(TURN).await;
        let saved = self.with(|state, _| SavedSharing { may_lack_writes: true, ..state.saved.clone() });
        if let Some(store) = &self.store {
            store.save(saved).await.map_err(|error| cannot_save(&error))?;
        }
        self.with(|state, _| state.saved.may_lack_writes = true);
        Ok(())
    }

    /// Carries out the request of a client.
    ///
    /// # Errors
    /// The sense data with the reason why nothing was done.
    pub(crate) fn order(
        self: &Arc<Self>,
        nexus: &NexusId,
        client: u64,
        parameters: &Parameters,
    ) -> Result<(), Failure> {
        self.with(|state, now| match parameters {
            Parameters::Register { key, registers_reads, before } => {
                let registrant = Registrant { nexus, key: *key, registers_reads: *registers_reads };
                state.register(now, &registrant, client, *before)
            }
            Parameters::Fence { client: victim } => {
                state.manager.fence(now, ClientId::from_bits(*victim)).map_err(|error| match error {
                    LockError::Fenced(_) => Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(0).into(),
                    error => failure(&error, 0),
                })
            }
            _ => {
                let client = state.known(now, nexus, client)?;
                state.order(now, client, parameters)
            }
        })
    }
}

impl State {
    /// Finds a client that lives and owns this nexus.
    fn known(&mut self, now: Instant, nexus: &NexusId, client: u64) -> Result<ClientId, Failure> {
        let client = ClientId::from_bits(client);
        self.manager.check_life(now, client).map_err(|error| failure(&error, 0))?;
        if self.bound.get(nexus) != Some(&client) {
            return Err(Sense::SHARING_UNKNOWN_CLIENT.into());
        }
        Ok(client)
    }

    /// Creates a client, or adds a path to one.
    fn register(
        &mut self,
        now: Instant,
        registrant: &Registrant<'_>,
        joined: u64,
        before: Option<LifeBefore>,
    ) -> Result<(), Failure> {
        let same = self.members.iter().find(|(_, member)| member.key == registrant.key).map(|(client, _)| *client);
        let client = match same {
            Some(client) if joined == 0 || joined == client.bits() => {
                // The client counts its lease from when it sent this.
                self.manager.renew(now, client).map_err(|error| failure(&error, 0))?;
                client
            }
            None if self.fenced_keys.contains(&registrant.key) => return Err(Sense::SHARING_FENCED.into()),
            None if joined == 0 => {
                let previous = before.map(|before| self.proven(before)).transpose()?;
                let registered = self.manager.register(now, previous).map_err(|error| failure(&error, 24))?;
                registered.client
            }
            _ => return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(0).into()),
        };
        self.bind(now, client, registrant);
        if joined == 0 {
            self.give_up_others(client, registrant.nexus);
        }
        let lease_ms = milliseconds(self.manager.settings().lease);
        let grace_ms = milliseconds(self.manager.grace_left(now).unwrap_or(Duration::ZERO));
        let proof = self.saved.secret.map_or(NO_PROOF, |secret| secret.proof_of(client));
        self.post(now, client, MessageBody::Registered { lease_ms, grace_ms, key: registrant.key, proof });
        Ok(())
    }

    /// Checks the proof that a life before the start was the registrant's own, and that it did not
    /// end before that. Ids alone are no proof: a report lists them all.
    fn proven(&self, LifeBefore { client, proof }: LifeBefore) -> Result<ClientId, Failure> {
        let client = ClientId::from_bits(client);
        if !self.saved.secret.is_some_and(|secret| secret.proves(client, &proof)) {
            return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(32).into());
        }
        if self.saved.ended.contains(client) {
            return Err(failure(&LockError::NotReclaimable(client), 24));
        }
        Ok(client)
    }

    /// Gives a nexus to a client. Another client that owned it loses this path; a client that loses
    /// its last path so has given itself up.
    fn bind(&mut self, now: Instant, client: ClientId, registrant: &Registrant<'_>) {
        let Registrant { nexus, key, registers_reads } = *registrant;
        self.given_up.remove(nexus);
        let other = self.bound.insert(nexus.clone(), client).filter(|other| *other != client);
        if let Some((other, member)) = other.and_then(|other| Some((other, self.members.get_mut(&other)?))) {
            member.paths.retain(|path| path.nexus != *nexus);
            if member.paths.is_empty() {
                // It was fenced already, or is now.
                let _ = self.manager.fence(now, other);
            }
        }
        let fresh = || Member { key, registers_reads, paths: Vec::new(), outbox: Outbox::default() };
        self.shares.note(client, nexus, |client| self.manager.clients().is_registered(client));
        let member = self.members.entry(client).or_insert_with(fresh);
        member.registers_reads |= registers_reads;
        if !member.paths.iter().any(|path| path.nexus == *nexus) {
            member.paths.push(Path { nexus: nexus.clone(), reader: Reader::default() });
        }
    }

    /// Takes all nexuses but this one from a client. A command that it sent by others and that has
    /// not arrived yet would be carried out after what it reads now.
    fn give_up_others(&mut self, client: ClientId, nexus: &NexusId) {
        let Some(member) = self.members.get_mut(&client) else { return };
        let others: Vec<Path> = member.paths.extract_if(.., |path| path.nexus != *nexus).collect();
        for Path { nexus: other, .. } in others {
            self.listeners.remove(&other);
            self.bound.remove(&other);
            self.given_up.insert(other);
        }
    }

    fn order(&mut self, now: Instant, client: ClientId, parameters: &Parameters) -> Result<(), Failure> {
        let owner = |transaction: u32| Owner { client, transaction: TransactionId(u64::from(transaction)) };
        match parameters {
            Parameters::Renew { taken } => {
                self.taken(client, *taken);
                self.manager.renew(now, client).map_err(|error| failure(&error, 0))
            }
            Parameters::Leave => self.leave(now, client),
            Parameters::Lock { request, transaction, is_reclaim, locks } => {
                self.lock(now, owner(*transaction), (*request, *is_reclaim), locks)
            }
            Parameters::Unlock { transaction, locks } => self.unlock(now, owner(*transaction), locks),
            Parameters::Acknowledge { taken, callback, answer } => {
                self.taken(client, *taken);
                let answered = self.manager.acknowledge(now, client, CallbackNumber(*callback), wire::answer(*answer));
                answered
                    .map_err(|error| failure(&error, if matches!(error, LockError::NotDeferrable(_)) { 16 } else { 8 }))
            }
            Parameters::Begin { transaction, birth } => self.begin(now, client, *transaction, *birth),
            Parameters::End { transaction } => {
                let ended = self.manager.end_transaction(now, client, owner(*transaction).transaction);
                ended.map_err(|error| failure(&error, 0))
            }
            Parameters::Open { file, is_write } => {
                self.check_holdings(client, 1, false)?;
                let opened = self.manager.open_file(now, client, FileId(*file), open_mode(*is_write));
                opened.map_err(|error| failure(&error, 0))
            }
            Parameters::Close { file, is_write } => {
                let closed = self.manager.close_file(now, client, FileId(*file), open_mode(*is_write));
                if closed.map_err(|error| failure(&error, 0))? {
                    self.post(now, client, MessageBody::LastClose { file: *file });
                }
                Ok(())
            }
            Parameters::Cancel { request } => {
                self.manager.cancel(now, client, RequestId(*request)).map_err(|error| failure(&error, 0))
            }
            // Both are answered before their client is looked up.
            Parameters::Register { .. } | Parameters::Fence { .. } => Ok(()),
        }
    }

    fn taken(&mut self, client: ClientId, number: u64) {
        if let Some(member) = self.members.get_mut(&client) {
            let before = member.outbox.bytes();
            member.outbox.taken(number);
            self.shares.count(before, member.outbox.bytes());
        }
    }

    /// Ends a client that leaves: it uses nothing any more, and its nexuses count as those of stock
    /// initiators.
    fn leave(&mut self, now: Instant, client: ClientId) -> Result<(), Failure> {
        self.manager.leave(now, client).map_err(|error| failure(&error, 0))?;
        self.bound.retain(|_, bound| *bound != client);
        Ok(())
    }

    fn lock(
        &mut self,
        now: Instant,
        owner: Owner,
        (request, is_reclaim): (u64, bool),
        locks: &[Lock],
    ) -> Result<(), Failure> {
        let batch = wire::wanted(locks);
        let client = owner.client;
        self.check_holdings(client, batch.len(), is_reclaim)?;
        let asked = match (is_reclaim, owner.is_own()) {
            (true, true) => self.manager.reclaim(now, client, RequestId(request), &batch).map(Some),
            (true, false) => Err(LockError::ReclaimOfTransaction),
            (false, _) => self.manager.lock_by_message(now, owner, RequestId(request), &batch).map(|is_waiting| {
                // If it was granted, that message precedes this one.
                if is_waiting { None } else { Some(Vec::new()) }
            }),
        };
        self.collect_mail(now, client);
        let answer = match asked {
            Ok(None) => MessageBody::Queued { request },
            Ok(Some(granted)) if granted.is_empty() => return Ok(()),
            Ok(Some(granted)) => MessageBody::Granted { request, transaction: 0, locks: wire::locks(&granted) },
            Err(error) => match wire::refused(request, &error, &batch) {
                Some(refused) => refused,
                None => return Err(failure(&error, 14)),
            },
        };
        self.post(now, client, answer);
        Ok(())
    }

    fn unlock(&mut self, now: Instant, owner: Owner, locks: &[Lock]) -> Result<(), Failure> {
        self.manager.unlock(now, owner, &wire::releases(locks)).map_err(|error| {
            let of = |at| locks.iter().position(|lock| wire::resource(lock.resource) == at);
            let index = match error {
                LockError::HeldUntilEnd => return failure(&error, 0),
                LockError::WrongKind(at, _)
                | LockError::IntentionOnLeaf(at, _)
                | LockError::NotWeaker(at, ..)
                | LockError::RootBeforeLeaf(at)
                | LockError::NotHeld(at) => of(at),
                _ => return failure(&error, 6),
            };
            failure(&error, byte_of_lock(action_out::UNLOCK, index.unwrap_or(0)))
        })
    }

    fn begin(&mut self, now: Instant, client: ClientId, transaction: u32, birth: u64) -> Result<(), Failure> {
        let age = Some(Birth(birth)).filter(|birth| birth.0 != 0);
        let begun = self.manager.begin_transaction(now, client, TransactionId(u64::from(transaction)), age);
        let Birth(birth) = begun.map_err(|error| failure(&error, 0))?;
        self.post(now, client, MessageBody::Begun { transaction, birth });
        Ok(())
    }
}

fn open_mode(is_write: bool) -> OpenMode {
    if is_write { OpenMode::Write } else { OpenMode::Read }
}
