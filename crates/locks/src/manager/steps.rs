//! Commands that pass the gate, and the copies in their way, which clients are to purge.

use base::clock::Instant;

use super::{LockManager, Output};
use crate::callbacks::Subject;
use crate::gate::Step;
use crate::message::ToClient;

impl LockManager {
    /// Lets commands pass that can. Tickets whose range was cleared are not granted yet.
    pub(super) fn take_steps(&mut self, now: Instant) {
        for step in self.gate.advance(&self.settings.limits) {
            self.take_step(now, step);
        }
    }

    pub(super) fn take_step(&mut self, now: Instant, step: Step) {
        match step {
            Step::Pass(command, _) if self.clearing.contains_key(&command) => self.cleared.push(command),
            Step::Pass(command, passage) => self.outputs.push_back(Output::Pass(command, passage)),
            // What a client being fenced holds is waited for until its fence is complete.
            Step::Purge(client, ..) if !self.clients.is_served(client) => {}
            Step::Purge(client, range, generation) => {
                let number = self.callbacks.send(now, client, Subject::Copies(range, generation), &self.settings);
                self.post(client, ToClient::Purge { number, range, generation });
            }
        }
    }
}
