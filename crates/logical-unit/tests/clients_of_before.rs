//! Clients of before the target's start that have not come back: whoever asks who shares the unit is told
//! that there may be some, also when they can claim nothing back any more.

mod common;

use common::memory;
use common::shared_unit::{LEASE, World, options};
use logical_unit::{NexusId, SavedSharing, SharingOptions};
use scsi::sharing::ReportRecord;

/// A unit after a start, with what was durable then.
fn started(saved: SavedSharing) -> World {
    World::with(memory(), SharingOptions { saved: saved.next_start(), ..options() })
}

/// How long they may claim back what they held; `None` if there are none.
fn left_to_reclaim(world: &mut World, nexus: &NexusId) -> Option<u32> {
    world.report(nexus).iter().filter(|record| record.is_of_before()).find_map(|record| match record {
        ReportRecord::Client { lease_left_ms, .. } => Some(*lease_left_ms),
        _ => None,
    })
}

#[test]
fn whoever_shares_a_unit_is_told_that_clients_of_before_a_start_may_come_back_for_as_long_as_it_runs() {
    let lease_ms = LEASE.as_millis() as u32;
    let mut world = started(SavedSharing {
        boot_epoch: 4,
        reclaimable_from: 4,
        longest_lease_ms: Some(lease_ms),
        ..Default::default()
    });
    let client = world.client("client", 1);
    assert_eq!(left_to_reclaim(&mut world, &client.0), Some(lease_ms));
    for _ in 0..4 {
        world.advance(LEASE / 2);
        world.renew(&client);
    }
    assert_eq!(left_to_reclaim(&mut world, &client.0), Some(0), "who was away for longer lives all the same");
}

#[test]
fn where_everybody_had_left_before_a_start_nobody_can_come_back() {
    let mut world = started(SavedSharing { boot_epoch: 4, reclaimable_from: 4, ..Default::default() });
    let client = world.client("client", 1);
    assert_eq!(left_to_reclaim(&mut world, &client.0), None);
    let mut world = started(SavedSharing::default());
    let client = world.client("client", 1);
    assert_eq!(left_to_reclaim(&mut world, &client.0), None, "the first start of all");
}
