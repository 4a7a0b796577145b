//! The flushes of one connection: one is under way, and all that arrive meanwhile share the next
//! one.
//!
//! A flush covers what was answered before it arrived, so one that begins later covers as much. A
//! failed flush fails the waiting ones, too: what was answered meanwhile may be lost as well, and
//! the next flush of the device would not report that.
//!
//! A flush also fails after a loss that a flush of another client reported, or one whose answer did
//! not reach this client ([`Losses`](block::losses::Losses)).

use std::pin::Pin;
use std::task::{Context, Poll};

use block::losses::LossReader;
use block::shared_sync::SharedSync;
use block::{Completion, Error, Request, SharedDevice};
use nbd::server::Ticket;

pub(crate) struct Flushes {
    sync: SharedSync<Ticket>,
    under_way: Option<Completion>,
    losses: LossReader,
}

impl Flushes {
    pub(crate) fn new(losses: LossReader) -> Self {
        Self { sync: SharedSync::default(), under_way: None, losses }
    }

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
            self.losses.begin();
            self.under_way = Some(device.submit(Request::flush()));
        }
        let Poll::Ready(response) = Pin::new(self.under_way.as_mut()?).poll(context) else { return None };
        self.under_way = None;
        let result = self.losses.end(response.result);
        let over = if result.is_ok() { self.sync.synced() } else { self.sync.sync_failed() };
        Some((over, result))
    }

    /// What the client knows of losses.
    pub(crate) fn losses(&mut self) -> &mut LossReader {
        &mut self.losses
    }
}
