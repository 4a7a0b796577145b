//! Handles the device's events before the next command: a command that comes after the device lost
//! its cache must not be carried out as if it had not.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use block::losses::{LossReader, Losses};
use block::{Event, EventReceiver, SharedDevice};
use scsi::Sense;

use crate::attention::UnitAttentions;
use crate::lost_writes::LostWrites;

/// Turns events of the device into unit attentions.
pub(crate) struct DeviceWatch {
    events: EventReceiver,
    /// Losses that are no events, and how many of those that were announced are handled.
    losses: Option<(Arc<Losses>, AtomicU64)>,
    /// Held from taking an event until it is handled, so that no command runs between the two.
    handling: Mutex<Option<LossReader>>,
    attentions: Arc<UnitAttentions>,
    /// Set where the loss of writes is also reported by the initiators' flushes.
    lost_writes: Option<Arc<LostWrites>>,
    /// Whether the device lets requests wait while it is away.
    waits: bool,
    /// False between `Offline` and `Back`.
    is_online: AtomicBool,
}

impl DeviceWatch {
    pub(crate) fn new(
        device: &SharedDevice,
        attentions: Arc<UnitAttentions>,
        lost_writes: Option<Arc<LostWrites>>,
        losses: Option<Arc<Losses>>,
        waits: bool,
    ) -> Self {
        Self {
            events: device.subscribe(),
            handling: Mutex::new(losses.as_ref().map(Losses::reader)),
            losses: losses.map(|losses| (losses, AtomicU64::new(0))),
            attentions,
            lost_writes,
            waits,
            is_online: AtomicBool::new(true),
        }
    }

    /// Whether the device is online, or lets requests wait until it is.
    pub(crate) fn is_online(&self) -> bool {
        self.waits || self.is_online.load(Ordering::Acquire)
    }

    /// Handles all events that the device has reported by now.
    pub(crate) fn catch_up(&self) {
        if !self.events.may_have_event() && !self.may_have_loss() {
            return;
        }
        let mut handling = self.lock();
        while let Some(event) = self.events.try_receive() {
            self.handle(&event);
        }
        if let (Some((losses, handled)), Some(reader)) = (&self.losses, &mut *handling) {
            handled.store(losses.announced(), Ordering::Release);
            if reader.has_new() {
                self.handle(&Event::WritesLost);
            }
        }
    }

    fn may_have_loss(&self) -> bool {
        let is_new =
            |(losses, handled): &(Arc<Losses>, AtomicU64)| losses.announced() != handled.load(Ordering::Acquire);
        self.losses.as_ref().is_some_and(is_new)
    }

    /// Notes that an initiator is told of the losses so far.
    pub(crate) fn note_told(&self) {
        if let Some(reader) = &mut *self.lock() {
            reader.note_delivered();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<LossReader>> {
        self.handling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles events as they come, for ever, so that those are handled too that no command would
    /// ask for.
    pub(crate) async fn run(&self) {
        poll_fn(|context| {
            let _handling = self.lock();
            while let Poll::Ready(event) = self.events.poll_receive(context) {
                self.handle(&event);
            }
            Poll::<()>::Pending
        })
        .await;
    }

    fn handle(&self, event: &Event) {
        match event {
            Event::Offline => self.is_online.store(false, Ordering::Release),
            Event::Back => self.is_online.store(true, Ordering::Release),
            _ => {}
        }
        if let (Event::WritesLost | Event::Missed, Some(lost_writes)) = (event, &self.lost_writes) {
            lost_writes.note_loss();
        }
        if let Some(sense) = attention_of(event) {
            self.attentions.establish(sense, None);
        }
    }
}

/// The unit attention for an event of the device. A receiver that missed events reports the two
/// that make initiators read the unit again.
fn attention_of(event: &Event) -> Option<Sense> {
    match event {
        Event::Resized(_) | Event::Missed => Some(Sense::CAPACITY_CHANGED),
        Event::IdentityChanged => Some(Sense::DEVICE_IDENTIFIER_CHANGED),
        Event::WritesLost => Some(Sense::POWER_ON_OR_RESET),
        Event::Offline | Event::Back | Event::Invalidated(_) => None,
    }
}
