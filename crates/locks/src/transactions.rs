//! Explicit transactions of clients. They keep their locks until they end; one that is tried again
//! keeps its age.

use std::collections::BTreeMap;

use crate::error::{LockError, Table};
use crate::identity::{Birth, ClientId, Owner, TransactionId};

/// An open transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transaction {
    /// Its age.
    pub birth: Birth,
    /// Whether it was refused something because of a deadlock: it gets no more locks, and must end.
    pub is_victim: bool,
}

/// The transactions of all clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Transactions {
    open: BTreeMap<Owner, Transaction>,
    last: BTreeMap<ClientId, TransactionId>,
}

impl Transactions {
    /// Begins a transaction with a number that its client has not used. One that has just begun may
    /// be begun again, because the answer was lost.
    ///
    /// # Errors
    /// When the number was used before, or the client has too many.
    pub fn begin(&mut self, owner: Owner, birth: Birth, max: usize) -> Result<Birth, LockError> {
        let last = self.last.get(&owner.client).copied().unwrap_or(TransactionId::OWN);
        match self.open.get(&owner) {
            Some(open) if owner.transaction == last => return Ok(open.birth),
            _ if owner.transaction <= last => return Err(LockError::TransactionReused(owner.transaction)),
            _ => {}
        }
        if self.open.keys().filter(|open| open.client == owner.client).count() >= max {
            return Err(LockError::Full(Table::Transactions));
        }
        self.last.insert(owner.client, owner.transaction);
        self.open.insert(owner, Transaction { birth, is_victim: false });
        Ok(birth)
    }

    /// An open transaction that may still request locks.
    ///
    /// # Errors
    /// When it is not open, or has to end.
    pub fn usable(&self, owner: Owner) -> Result<Transaction, LockError> {
        let open = self.open.get(&owner).copied().ok_or(LockError::NoTransaction(owner.transaction))?;
        if open.is_victim { Err(LockError::Deadlock) } else { Ok(open) }
    }

    /// Marks a transaction that was chosen to end a deadlock.
    pub fn choose_as_victim(&mut self, owner: Owner) {
        if let Some(open) = self.open.get_mut(&owner) {
            open.is_victim = true;
        }
    }

    /// Ends a transaction; no effect on one that has ended.
    ///
    /// # Errors
    /// When there was never one of that number.
    pub fn end(&mut self, owner: Owner) -> Result<(), LockError> {
        if owner.is_own() || self.last.get(&owner.client).is_none_or(|last| owner.transaction > *last) {
            return Err(LockError::NoTransaction(owner.transaction));
        }
        self.open.remove(&owner);
        Ok(())
    }

    /// Removes the transactions of a client whose life is over.
    pub fn forget(&mut self, client: ClientId) {
        self.open.retain(|owner, _| owner.client != client);
        self.last.remove(&client);
    }

    /// All that are open.
    pub fn all(&self) -> impl Iterator<Item = (Owner, Transaction)> {
        self.open.iter().map(|(owner, transaction)| (*owner, *transaction))
    }
}
