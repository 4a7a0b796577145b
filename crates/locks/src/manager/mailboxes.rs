//! Messages for clients. A client that leaves too many untaken is fenced: it does not receive what it must give back.

use super::{FenceReason, LockManager, Output};
use crate::identity::ClientId;
use crate::message::ToClient;

impl LockManager {
    /// Puts a message into a mailbox; a client whose mailbox is full is fenced.
    pub(super) fn post(&mut self, client: ClientId, message: ToClient) {
        let had_none = self.clients.mail(client).next().is_none();
        if !self.clients.post(client, message, &self.settings.limits) {
            self.begin_fence(client, FenceReason::MailboxFull);
        } else if had_none {
            self.outputs.push_back(Output::Mail(client));
        }
    }

    /// Begins to fence a client: nothing of it is served from now on. Its locks stay held.
    pub(super) fn begin_fence(&mut self, client: ClientId, reason: FenceReason) {
        if !self.clients.begin_fence(client) {
            return;
        }
        for ticket in self.table.tickets_of_client(client).collect::<Vec<_>>() {
            // Other tickets may be first now: the caller settles that, or the next timeout, which
            // is due.
            self.table.withdraw(ticket);
        }
        self.transactions.forget(client);
        self.callbacks.forget(client);
        self.outputs.push_back(Output::Fence(client, reason));
    }
}
