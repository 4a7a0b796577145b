//! Dispatches a message of a client to the call it stands for.

use base::clock::Instant;

use super::LockManager;
use crate::error::LockError;
use crate::identity::{Owner, TransactionId};
use crate::message::{Answer, FromClient, Reply};

impl LockManager {
    /// Carries out the request of a message.
    ///
    /// # Errors
    /// As the call that the message stands for.
    pub fn handle_message(&mut self, now: Instant, message: FromClient) -> Result<Reply, LockError> {
        match message {
            FromClient::Register { previous } => self.register(now, previous).map(Reply::Registered),
            FromClient::Renew(client) => self.renew(now, client).map(|()| Reply::Done),
            FromClient::Lock { client, transaction: TransactionId::OWN, request, batch, is_reclaim: true } => {
                self.reclaim(now, client, request, &batch).map(Reply::Granted)
            }
            FromClient::Lock { is_reclaim: true, .. } => Err(LockError::ReclaimOfTransaction),
            FromClient::Lock { client, transaction, request, batch, is_reclaim: false } => {
                match self.lock(now, Owner { client, transaction }, request, &batch)? {
                    Answer::Granted(locks) => Ok(Reply::Granted(locks)),
                    Answer::Queued => Ok(Reply::Queued),
                }
            }
            FromClient::Cancel(client, request) => self.cancel(now, client, request).map(|()| Reply::Done),
            FromClient::Unlock(client, batch) => self.unlock(now, Owner::own(client), &batch).map(|()| Reply::Done),
            FromClient::Acknowledge(client, number, answer) => {
                self.acknowledge(now, client, number, answer).map(|()| Reply::Done)
            }
        }
    }
}
