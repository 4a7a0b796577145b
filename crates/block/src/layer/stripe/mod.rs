//! RAID-0: one device over several, a unit on each in turn (`docs/formats/stripe.md`).
//!
//! What it keeps true:
//!
//! - A request becomes at most one request of each member, and all of them are under way when `submit` returns: members
//!   work in parallel, and each sees overlapping requests in the order of the calls. Nothing is reordered here, so
//!   there is no range lock.
//! - A request succeeds when it did on every member it touches. Otherwise it fails with the error
//!   of one of them, which names the member; requests that do not touch a member that is down go
//!   on. An error that says "not carried out" is not returned where a part of a change may have
//!   happened: `TimedOut` of one member becomes *outcome unknown* once another carried its part
//!   out.
//! - A flush flushes every member.
//! - The device is as large as the smallest member allows, in whole units of each; bytes of others
//!   beyond that are [reported](Member::unused_bytes) and never touched. It grows when all members
//!   grow; written data stays where it is.
//! - Its identity consists of those of its members, in their order, and the unit: a cache of
//!   another order, unit or member does not match.
//!
//! Members have no label: they hold data from their first byte, and the user gives their order at
//! each attachment.

mod events;
mod layout;
mod parts;
mod shared;

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use base::buffer::BufferPool;

pub use layout::{Layout, Piece};

use crate::completion::{Completion, Workers};
use crate::device::{Device, SharedDevice};
use crate::error::{Error, ErrorKind};
use crate::event::EventReceiver;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::limits::{STRIPE_MEMBERS_MAX, STRIPE_POOL_BYTES, STRIPE_UNIT_BYTES_MAX};
use crate::request::Request;

use events::Events;
use parts::Parts;
pub use shared::Member;
use shared::Shared;

/// The striped device.
pub struct Stripe {
    shared: Arc<Shared>,
    workers: Workers,
}

impl Stripe {
    /// A stripe of `members` in this order. [`Stripe::run`] must be polled for as long as it is used.
    ///
    /// # Errors
    /// `InvalidRange` for a unit that is no power of two from the largest logical block to 16 MiB, fewer than two
    /// members or more than 64, or a member smaller than a unit; `Busy` when one member is given twice.
    pub fn new(members: Vec<SharedDevice>, unit_bytes: u64) -> Result<Self, Error> {
        if !(2..=STRIPE_MEMBERS_MAX).contains(&members.len()) {
            let words = format!("a stripe has 2 to {STRIPE_MEMBERS_MAX} members, not {}", members.len());
            return Err(Error::new(ErrorKind::InvalidRange, words));
        }
        check_unit(&members, unit_bytes)?;
        check_different(&members)?;
        let layout = Layout { unit_bytes, member_count: members.len() as u64 };
        let events = Events::new(&members);
        let shared = Arc::new(Shared { layout, members, events, pool: BufferPool::new(STRIPE_POOL_BYTES) });
        if let Some(member) = shared.members().iter().position(|member| member.size_bytes < unit_bytes) {
            let words = format!("{} is smaller than a unit of {unit_bytes} bytes", shared.name(member));
            return Err(Error::new(ErrorKind::InvalidRange, words));
        }
        shared.events.set_geometry(shared.geometry());
        Ok(Self { shared, workers: Workers::new() })
    }

    /// The layout.
    pub fn layout(&self) -> Layout {
        self.shared.layout
    }

    /// The members, in order.
    pub fn members(&self) -> Vec<Member> {
        self.shared.members()
    }

    /// Passes on the members' events, and carries on requests that are not awaited. It never ends;
    /// the stripe ends when it is dropped.
    pub async fn run(&self) {
        let mut receivers: Vec<EventReceiver> = self.shared.members.iter().map(|member| member.subscribe()).collect();
        let mut workers = pin!(self.workers.run());
        poll_fn(|context| {
            let _ = workers.as_mut().poll(context);
            self.shared.poll_events(&mut receivers, context);
            Poll::<()>::Pending
        })
        .await;
    }
}

/// Refuses a unit that is not whole blocks of all members, or larger than the largest request.
fn check_unit(members: &[SharedDevice], unit_bytes: u64) -> Result<(), Error> {
    let block = members.iter().map(|member| member.geometry().logical_block_bytes).max().unwrap_or(512);
    if unit_bytes.is_power_of_two() && (u64::from(block)..=STRIPE_UNIT_BYTES_MAX).contains(&unit_bytes) {
        return Ok(());
    }
    let words =
        format!("a stripe unit of {unit_bytes} bytes is no power of two from {block} to {STRIPE_UNIT_BYTES_MAX}");
    Err(Error::new(ErrorKind::InvalidRange, words))
}

/// Refuses a LUN that is given twice: it would be written over by itself.
fn check_different(members: &[SharedDevice]) -> Result<(), Error> {
    let identities: Vec<Identity> = members.iter().map(|member| member.identity()).collect();
    for (index, identity) in identities.iter().enumerate() {
        let same = |earlier: &Identity| (&earlier.unit, &earlier.serial) == (&identity.unit, &identity.serial);
        if let Some(first) = identities.iter().take(index).position(same) {
            let words = format!("members {} and {} of the stripe are one device: {identity}", first + 1, index + 1);
            return Err(Error::new(ErrorKind::Busy, words));
        }
    }
    Ok(())
}

impl Device for Stripe {
    fn geometry(&self) -> Geometry {
        self.shared.events.geometry()
    }

    fn identity(&self) -> Identity {
        self.shared.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let range = match self.geometry().check(&request) {
            Ok(range) => range,
            Err(error) => return Completion::ready(request.fail(error)),
        };
        let mut parts = Parts::begin(&self.shared, range, request);
        match parts.try_finish() {
            Some(response) => Completion::ready(response),
            None => Completion::task(&self.workers, parts.finish()),
        }
    }

    fn subscribe(&self) -> EventReceiver {
        self.shared.events.subscribe()
    }
}

#[cfg(test)]
mod tests;
