//! The granted locks of all owners.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use base::clock::Instant;

use crate::identity::{CallbackNumber, ClientId, GrantNumber, Owner};
use crate::message::Wanted;
use crate::mode::Mode;
use crate::resource::Resource;
use crate::rules;

/// A lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The mode in which it is held.
    pub mode: Mode,
    /// Its number.
    pub number: GrantNumber,
    /// When it was granted.
    pub since: Instant,
    /// The callback that its holder has not answered.
    pub callback: Option<PendingCallback>,
}

impl Grant {
    /// Whether its holder has deferred the callback.
    fn is_deferred(&self) -> bool {
        self.callback.is_some_and(|callback| callback.is_deferred)
    }
}

/// A callback to a holder that has not been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PendingCallback {
    /// The number of the callback.
    pub number: CallbackNumber,
    /// The mode that may be kept.
    pub to: Option<Mode>,
    /// Whether the holder said that the lock is in use.
    pub is_deferred: bool,
}

/// The grants of all owners. Grants of block groups, and deferred ones, are indexed separately.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Grants {
    by_owner: BTreeMap<Owner, BTreeMap<Resource, Grant>>,
    holders: BTreeMap<Resource, BTreeSet<Owner>>,
    /// Block groups by their file and mode.
    leaves: BTreeSet<(Owner, Resource, Mode, Resource)>,
    deferred: BTreeSet<(Owner, Resource)>,
    /// Of each client, those of its transactions included.
    counts: BTreeMap<ClientId, usize>,
}

impl Grants {
    /// An owner's grant of a resource.
    pub fn get(&self, owner: Owner, resource: Resource) -> Option<&Grant> {
        self.by_owner.get(&owner)?.get(&resource)
    }

    /// All grants of an owner.
    pub fn of(&self, owner: Owner) -> impl Iterator<Item = (Resource, &Grant)> {
        self.by_owner.get(&owner).into_iter().flatten().map(|(resource, grant)| (*resource, grant))
    }

    /// All grants.
    pub fn all(&self) -> impl Iterator<Item = (Owner, Resource, &Grant)> {
        self.by_owner.iter().flat_map(|(owner, held)| held.iter().map(|(resource, grant)| (*owner, *resource, grant)))
    }

    /// Owners of a client that hold a lock.
    pub fn owners_of(&self, client: ClientId) -> impl Iterator<Item = Owner> {
        self.by_owner.range(Owner::all_of(client)).map(|(owner, _)| *owner)
    }

    /// Count of locks of a client, including those of its transactions.
    pub fn count_of(&self, client: ClientId) -> usize {
        self.counts.get(&client).copied().unwrap_or(0)
    }

    /// Count of locks of all clients.
    pub fn count(&self) -> usize {
        self.counts.values().sum()
    }

    /// Other owners that hold a resource in a mode that conflicts.
    pub fn conflicting_holders(&self, owner: Owner, wanted: Wanted) -> impl Iterator<Item = Owner> {
        self.holders
            .get(&wanted.0)
            .into_iter()
            .flatten()
            .copied()
            .filter(move |holder| self.is_in_way(*holder, owner, wanted))
    }

    /// The same without explicit transactions, which may be many.
    pub fn conflicting_clients(&self, owner: Owner, wanted: Wanted) -> impl Iterator<Item = Owner> {
        let clients = self.holders.get(&wanted.0).into_iter().flatten().copied().filter(|holder| holder.is_own());
        clients.filter(move |holder| self.is_in_way(*holder, owner, wanted))
    }

    fn is_in_way(&self, holder: Owner, owner: Owner, (resource, mode): Wanted) -> bool {
        holder != owner && self.get(holder, resource).is_some_and(|grant| grant.mode.conflicts(mode))
    }

    /// The owners that hold a resource.
    pub fn holders_of(&self, resource: Resource) -> Option<&BTreeSet<Owner>> {
        self.holders.get(&resource)
    }

    /// The holders of each resource in a range of resources.
    pub fn holders_among(&self, resources: RangeInclusive<Resource>) -> impl Iterator<Item = (Resource, Owner)> {
        let held = self.holders.range(resources);
        held.flat_map(|(resource, owners)| owners.iter().map(|owner| (*resource, *owner)))
    }

    /// The block groups that an owner holds in a mode below a file.
    pub fn leaves_in(&self, owner: Owner, root: Resource, mode: Mode) -> impl Iterator<Item = Resource> {
        let range = rules::leaves_below(root)
            .map(|leaves| (owner, root, mode, *leaves.start())..=(owner, root, mode, *leaves.end()));
        range.into_iter().flat_map(|range| self.leaves.range(range)).map(|(.., leaf)| *leaf)
    }

    /// Whether an owner has deferred a callback that is still open.
    pub fn defers(&self, owner: Owner) -> bool {
        let first = (owner, Resource::Metadata(0));
        self.deferred.range(first..).next().is_some_and(|(deferring, _)| *deferring == owner)
    }

    /// Sets the grant of a resource for an owner, in place of the former one.
    pub fn set(&mut self, owner: Owner, resource: Resource, grant: Grant) {
        self.remove(owner, resource);
        *self.counts.entry(owner.client).or_default() += 1;
        self.by_owner.entry(owner).or_default().insert(resource, grant);
        self.holders.entry(resource).or_default().insert(owner);
        self.leaves.extend(resource.root().map(|root| (owner, root, grant.mode, resource)));
        self.deferred.extend(grant.is_deferred().then_some((owner, resource)));
    }

    /// Removes an owner's grant of a resource.
    pub fn remove(&mut self, owner: Owner, resource: Resource) -> Option<Grant> {
        let held = self.by_owner.get_mut(&owner)?;
        let grant = held.remove(&resource)?;
        if held.is_empty() {
            self.by_owner.remove(&owner);
        }
        if let Some(count) = self.counts.get_mut(&owner.client) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&owner.client);
            }
        }
        if let Some(holders) = self.holders.get_mut(&resource) {
            holders.remove(&owner);
            if holders.is_empty() {
                self.holders.remove(&resource);
            }
        }
        if let Some(root) = resource.root() {
            self.leaves.remove(&(owner, root, grant.mode, resource));
        }
        self.deferred.remove(&(owner, resource));
        Some(grant)
    }
}
