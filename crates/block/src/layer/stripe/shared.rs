//! The part of the stripe that requests under way keep alive: its members and their sizes.

use std::task::{Context, Poll};

use base::buffer::BufferPool;
use sha2::{Digest, Sha256};

use super::events::Events;
use super::layout::Layout;
use crate::device::SharedDevice;
use crate::event::{Event, EventReceiver};
use crate::geometry::{Geometry, Hints};
use crate::identity::Identity;
use crate::limits::EVENTS_UNREAD_MAX;

/// The part of the stripe that requests under way keep alive.
pub(super) struct Shared {
    pub(super) layout: Layout,
    pub(super) members: Vec<SharedDevice>,
    pub(super) events: Events,
    /// Memory of parts that must be gathered or scattered, for reuse. It does not bound requests.
    pub(super) pool: BufferPool,
}

/// One member as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its identity.
    pub identity: Identity,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes at its end that the stripe does not use, because another member is smaller or a unit would not be whole.
    pub unused_bytes: u64,
    /// Whether it answers, according to its events.
    pub is_online: bool,
}

impl Shared {
    /// Bytes of each member that are used: whole units of the smallest.
    fn member_bytes(&self) -> u64 {
        let smallest = self.members.iter().map(|member| member.geometry().size_bytes).min().unwrap_or(0);
        smallest / self.layout.unit_bytes * self.layout.unit_bytes
    }

    pub(super) fn members(&self) -> Vec<Member> {
        let used = self.member_bytes();
        let describe = |(index, member): (usize, &SharedDevice)| {
            let size_bytes = member.geometry().size_bytes;
            let is_online = self.events.is_online(index);
            Member { identity: member.identity(), size_bytes, unused_bytes: size_bytes - used, is_online }
        };
        self.members.iter().enumerate().map(describe).collect()
    }

    /// The name of a member in errors, counted from one.
    pub(super) fn name(&self, member: usize) -> String {
        let count = self.members.len();
        let identity = self.members.get(member).map(|member| member.identity()).unwrap_or_default();
        format!("member {} of {count} of the stripe ({identity})", member + 1)
    }

    /// The geometry that all members support.
    pub(super) fn geometry(&self) -> Geometry {
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

    /// The identities of the members in order, as one name of fixed length.
    pub(super) fn identity(&self) -> Identity {
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

impl Shared {
    /// Handles the events of the members; the context is woken by more.
    pub(super) fn poll_events(&self, receivers: &mut [EventReceiver], context: &mut Context<'_>) {
        for (member, receiver) in receivers.iter_mut().enumerate() {
            while let Poll::Ready(event) = receiver.poll_receive(context) {
                self.handle_event(member, &event);
            }
        }
    }

    fn handle_event(&self, member: usize, event: &Event) {
        let hub = &self.events.hub;
        match event {
            Event::Resized(_) => self.look_again(),
            Event::Offline | Event::Back => {
                if self.events.set_offline(member, *event == Event::Offline) {
                    hub.publish(event);
                }
            }
            Event::IdentityChanged | Event::WritesLost => hub.publish(event),
            Event::Missed => {
                self.look_again();
                hub.publish(event);
            }
            Event::Invalidated(range) if range.length / self.layout.unit_bytes >= EVENTS_UNREAD_MAX as u64 => {
                hub.publish(&Event::Missed);
            }
            Event::Invalidated(range) => {
                self.layout.of_member(member, *range).for_each(|range| hub.publish(&Event::Invalidated(range)));
            }
        }
    }

    fn look_again(&self) {
        let geometry = self.geometry();
        if self.events.set_geometry(geometry) {
            self.events.hub.publish(&Event::Resized(geometry));
        }
    }
}
