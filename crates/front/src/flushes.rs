//! The flushes of one connection: one is under way, and all that arrive meanwhile share the next
//! one.
//!
//! A flush covers what was answered before it arrived, so one that begins later covers as much. A
//! failed flush fails the waiting ones, too: what was answered meanwhile may be lost as well, and
//! the next flush of the device would not report that.

use std::pin::Pin;
use std::task::{Context, Poll};

use block::shared_sync::SharedSync;
use block::{Completion, Error, Request, SharedDevice};
use nbd::server::Ticket;

#[derive(Default)]
pub(crate) struct Flushes {
    sync: SharedSync<Ticket>,
    under_way: Option<Completion>,
}

impl Flushes {
    /// Adds a flush that arrived.
    pub(crate) fn join(&mut self, ticket: Ticket) {
        self.sync.join(ticket);
    }

    /// The flushes that have ended, all together with the device's.
    pub(crate) fn poll(
        &mut self,
        device: &SharedDevice,
        context: &mut Context<'_>,
    ) -> Option<(Vec<Ticket>, Result<(), Error>)> {
        if self.under_way.is_none() && self.sync.begin_sync() {
            self.under_way = Some(device.submit(Request::flush()));
        }
        let Poll::Ready(response) = Pin::new(self.under_way.as_mut()?).poll(context) else { return None };
        self.under_way = None;
        let over = if response.result.is_ok() { self.sync.synced() } else { self.sync.sync_failed() };
        Some((over, response.result))
    }
}
