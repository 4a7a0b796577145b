//! RAID-0: one device over several, a unit on each in turn (`docs/formats/stripe.md`).
//!
//! What it keeps true:
//!
//! - A request becomes at most one request of each member, and all of them are under way when `submit` returns: members work in
//!   parallel, and each sees overlapping requests in the order of the calls. Nothing is reordered here, so there is no range lock.
//! - A request succeeds when it did on every member it touches. Otherwise it fails with the error of one of them, which names the
//!   member; requests that do not touch a member that is down go on. Where a part of a change may have happened, nobody says that it did not:
//!   `TimedOut` of one member becomes *outcome unknown* once another carried its part out.
//! - A flush is one of every member.
//! - The device is as large as the smallest member allows, in whole units of each; what others have beyond that is
//!   [said](Member::unused_bytes) and never touched. Members that all grow make it grow; what was written stays where it is.
//! - Its identity is that of its members, in their order, with the unit: a cache of another order, unit or member does not match.
//!
//! There is no label on the members: they hold data from their first byte, and who attaches them gives their order.

mod events;
mod layout;
mod parts;

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use base::buffer::BufferPool;
use sha2::{Digest, Sha256};

pub use layout::{Layout, Piece};

use crate::completion::{Completion, Workers};
use crate::device::{Device, Geometry, Hints, Identity, SharedDevice};
use crate::error::{Error, ErrorKind};
use crate::event::EventReceiver;
use crate::limits::{STRIPE_MEMBERS_MAX, STRIPE_POOL_BYTES, STRIPE_UNIT_BYTES_MAX};
use crate::request::Request;

use events::Events;
use parts::Parts;

/// The stripe.
pub struct Stripe {
    shared: Arc<Shared>,
    workers: Workers,
}

/// What requests under way keep, too.
struct Shared {
    layout: Layout,
    members: Vec<SharedDevice>,
    events: Events,
    /// Memory of parts that must be gathered or scattered, for reuse. Requests bound what is out, not this pool.
    pool: BufferPool,
}

/// One member as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who it is.
    pub identity: Identity,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes at its end that the stripe does not use, because another member is smaller or a unit would not be whole.
    pub unused_bytes: u64,
    /// Whether it answers, as far as its events tell.
    pub is_online: bool,
}

impl Stripe {
    /// A stripe of `members` in this order. [`Stripe::run`] must be polled for as long as it is used.
    ///
    /// # Errors
    /// `InvalidRange` for a unit that is no power of two from the largest logical block to 16 MiB, fewer than two members or more than 64, or a
    /// member smaller than a unit; `Busy` when one member is given twice.
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

    /// Passes on the members' events and carries on what nobody awaits. It never ends; dropping it is the end of the stripe.
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

/// Units are addressed by members in whole blocks, and are not larger than anything is transferred at once.
fn check_unit(members: &[SharedDevice], unit_bytes: u64) -> Result<(), Error> {
    let block = members.iter().map(|member| member.geometry().logical_block_bytes).max().unwrap_or(512);
    if unit_bytes.is_power_of_two() && (u64::from(block)..=STRIPE_UNIT_BYTES_MAX).contains(&unit_bytes) {
        return Ok(());
    }
    let words =
        format!("a stripe unit of {unit_bytes} bytes is no power of two from {block} to {STRIPE_UNIT_BYTES_MAX}");
    Err(Error::new(ErrorKind::InvalidRange, words))
}

/// One LUN at two places of a stripe would be written over by itself.
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

impl Shared {
    /// Bytes of each member that are used: whole units of the smallest.
    fn member_bytes(&self) -> u64 {
        let smallest = self.members.iter().map(|member| member.geometry().size_bytes).min().unwrap_or(0);
        smallest / self.layout.unit_bytes * self.layout.unit_bytes
    }

    fn members(&self) -> Vec<Member> {
        let used = self.member_bytes();
        let describe = |(index, member): (usize, &SharedDevice)| {
            let size_bytes = member.geometry().size_bytes;
            let is_online = self.events.is_online(index);
            Member { identity: member.identity(), size_bytes, unused_bytes: size_bytes - used, is_online }
        };
        self.members.iter().enumerate().map(describe).collect()
    }

    /// How errors name a member; people count from one.
    fn name(&self, member: usize) -> String {
        let count = self.members.len();
        let identity = self.members.get(member).map(|member| member.identity()).unwrap_or_default();
        format!("member {} of {count} of the stripe ({identity})", member + 1)
    }

    /// What all members can do.
    fn geometry(&self) -> Geometry {
        let geometries: Vec<Geometry> = self.members.iter().map(|member| member.geometry()).collect();
        let largest = |of: fn(&Geometry) -> u32| geometries.iter().map(of).max().unwrap_or(0);
        let any = |of: fn(&Geometry) -> bool| geometries.iter().any(of);
        let granularities: Option<Vec<u32>> = geometries.iter().map(|each| each.discard_granularity_bytes).collect();
        let row_bytes = u32::try_from(self.layout.row_bytes()).unwrap_or(u32::MAX);
        Geometry {
            size_bytes: self.member_bytes() * self.layout.member_count,
            logical_block_bytes: largest(|each| each.logical_block_bytes),
            physical_block_bytes: largest(|each| each.physical_block_bytes),
            is_write_cache_volatile: any(|each| each.is_write_cache_volatile),
            is_read_only: any(|each| each.is_read_only),
            discard_granularity_bytes: granularities.and_then(|each| each.into_iter().max()),
            discard_reads_zeroes: !any(|each| !each.discard_reads_zeroes),
            transfer_bytes_max: geometries.iter().map(|each| each.transfer_bytes_max).min().unwrap_or(0),
            hints: Hints {
                io_bytes_min: largest(|each| each.hints.io_bytes_min),
                io_bytes_optimal: row_bytes,
                physical_alignment_bytes: largest(|each| each.hints.physical_alignment_bytes),
                discard_alignment_bytes: largest(|each| each.hints.discard_alignment_bytes),
                is_rotational: any(|each| each.hints.is_rotational),
            },
        }
    }

    /// The members in order, as one name of fixed length.
    fn identity(&self) -> Identity {
        let (count, unit_bytes) = (self.layout.member_count, self.layout.unit_bytes);
        let mut digest = Sha256::new();
        for identity in self.members.iter().map(|member| member.identity()) {
            for text in [&identity.target, &identity.unit, &identity.serial] {
                digest.update((text.len() as u64).to_be_bytes());
                digest.update(text);
            }
        }
        let serial = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Identity { target: "stripe".to_owned(), unit: format!("{count}x{unit_bytes}"), serial }
    }
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
