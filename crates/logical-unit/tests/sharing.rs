//! A unit that several hosts share (`docs/protocol/sharing.md`), by its commands and messages: no
//! host reads old data, whatever command changes it, and a silent host harms no other. Time stands
//! still unless the test advances the clock.

mod common;

use std::sync::Arc;
use std::time::Duration;

use block::Device;
use block::layer::crash::CrashLayer;
use block::memory::MemoryDevice;
use common::changing::{BLOCKS_PER_MIB, NOT_CHANGING, SIZE, changing};
use common::shared_unit::{LEASE, MOMENT, World, lock, options, register};
use common::{BLOCK_BYTES, GatedDevice, identity, memory, transfer};
use locks::settings::Profile;
use logical_unit::{LogicalUnitOptions, NexusId, SharingOptions};
use scsi::cdb::Blocks;
use scsi::cdb::table::ROWS;
use scsi::sharing::{CallbackAnswer, Lock, MessageBody, Mode, Parameters, Reason, ReportRecord, Resource, Support};
use scsi::{Cdb, Sense, TaskAttribute, TaskManagementFunction};

/// Every operation code that changes the medium, sent by a stock initiator.
#[test]
fn no_command_that_changes_the_medium_escapes_the_gate() {
    for row in ROWS {
        let code = (row.operation_code, row.service_action);
        let device = Arc::new(MemoryDevice::new(SIZE, identity()));
        let plain = common::Target::with(
            device.clone(),
            LogicalUnitOptions { atomic_bytes_max: 1 << 20, ..Default::default() },
        );
        let mut world = World::with(device, options());
        let reader = world.client("reader", 1);
        let stock = world.nexus("stock");
        let Some((cdb, data_out, run)) = changing(code, &plain) else {
            assert!(NOT_CHANGING.contains(&code), "{}: does it change the medium? Say it in that table", row.name);
            continue;
        };
        let lba = u64::from(run.first) * BLOCKS_PER_MIB;
        world.read(&reader.0, lba).good();
        let changing = world.start(&stock, cdb, &data_out);
        assert!(!changing.is_over(), "{}", row.name);
        let behind = world.read(&stock, lba);
        assert!(!behind.is_over() || behind.sense().is_some(), "{}: a read waits behind it", row.name);
        let callback = world.purge(&reader.0);
        world.acknowledge(&reader, callback);
        // A sanitize has a shortest duration.
        world.advance(Duration::from_secs(60));
        changing.good();
    }
}

#[test]
fn a_unit_that_nobody_shares_has_neither_commands_nor_page() {
    let plain = common::Target::new();
    plain.refuses(
        Cdb::SharingIn { service_action: 0, first: 0, allocation_length: 64 },
        &[],
        Sense::INVALID_OPERATION_CODE,
    );
    let list = register(1).emit();
    let cdb = Cdb::SharingOut { service_action: 0, client: 0, parameter_list_length: list.len() as u32 };
    plain.refuses(cdb, &list, Sense::INVALID_OPERATION_CODE);
    let page = Cdb::Inquiry { is_vpd: true, page: 0xc1, allocation_length: 255 };
    plain.refuses(page, &[], Sense::INVALID_FIELD_IN_CDB);
    let mut world = World::new();
    let stock = world.nexus("stock");
    let support = Support::parse(&world.run(&stock, page, &[]).data_in).unwrap().unwrap();
    assert_eq!((support.lease_ms, support.locks_max, support.block_bytes), (10_000, 64, 4096));
    assert!(!support.is_paper_profile);
    let pages = world.run(&stock, Cdb::Inquiry { is_vpd: true, page: 0, allocation_length: 255 }, &[]).data_in;
    assert_eq!(pages.last(), Some(&0xc1));
    let mut world = World::with(memory(), SharingOptions { profile: Profile::Paper, ..options() });
    let stock = world.nexus("stock");
    assert!(Support::parse(&world.run(&stock, page, &[]).data_in).unwrap().unwrap().is_paper_profile);
}

/// Race 1: a reader's own read stands behind the change that waits for its answer.
#[test]
fn a_reader_answers_while_its_own_read_waits_behind_the_change() {
    let mut world = World::new();
    let reader = world.client("reader", 1);
    let stock = world.nexus("stock");
    world.read(&reader.0, 0).good();
    let change = world.write(&stock, 0, 0x5a);
    let read = world.read(&reader.0, 0);
    assert!(!change.is_over() && !read.is_over());
    let callback = world.purge(&reader.0);
    world.acknowledge(&reader, callback);
    change.good();
    assert!(read.outcome().data_in.iter().all(|&byte| byte == 0x5a), "it finds the new content");
    let change = world.write(&stock, 0, 0x5b);
    assert!(!change.is_over(), "and is registered");
}

/// A client may keep its copies of what it changes itself.
#[test]
fn a_client_is_not_called_back_for_its_own_change() {
    let mut world = World::new();
    let reader = world.client("reader", 1);
    world.read(&reader.0, 0).good();
    world.write(&reader.0, 0, 1).good();
    assert_eq!(world.messages(&reader.0), []);
}

/// Race 5.
#[test]
fn a_change_that_is_aborted_while_it_waits_leaves_the_gate() {
    for by in ["abort", "reset", "loss"] {
        let mut world = World::new();
        let reader = world.client("reader", 1);
        let (stock, other) = (world.nexus("stock"), world.nexus("other"));
        world.read(&reader.0, 0).good();
        let change = world.write(&stock, 0, 0x5a);
        let tag = world.tag;
        let behind = world.write(&other, 0, 0x77);
        assert!(!change.is_over() && !behind.is_over());
        match by {
            "abort" => {
                let function = TaskManagementFunction::AbortTask;
                drop(world.luns.task_management(&stock, function, Some(0), Some(tag)));
            }
            "reset" => {
                drop(world.luns.task_management(&stock, TaskManagementFunction::LogicalUnitReset, Some(0), None));
            }
            _ => world.luns.remove_nexus(&stock),
        }
        world.settle();
        assert!(change.outcome().is_silent, "{by}");
        assert_eq!(behind.is_over(), by == "reset", "{by}: the other waits on");
        let callback = world.messages(&reader.0).into_iter().find_map(|(_, body)| match body {
            MessageBody::Purge { callback, .. } => Some(callback),
            _ => None,
        });
        world.acknowledge(&reader, callback.expect("it was asked"));
        if by != "reset" {
            behind.good();
        }
        let _attention = world.run(&stock, Cdb::TestUnitReady, &[]);
        let found = world.read(&other, 0).outcome();
        let expected = if by == "reset" { 0 } else { 0x77 };
        assert!(found.sense.is_some() || found.data_in.iter().all(|&byte| byte == expected), "{by}");
        let clients = world.report(&other);
        let held = |record: &ReportRecord| matches!(record, ReportRecord::Client { registrations: 1.., .. });
        assert!(!clients.iter().any(held), "{by}: what was purged is not registered any more");
    }
}

#[test]
fn a_silent_client_is_fenced_and_what_waited_for_it_goes_on_when_its_lease_is_over() {
    let mut world = World::new();
    let reader = world.client("reader", 1);
    let stock = world.nexus("stock");
    world.read(&reader.0, 0).good();
    world.advance(Duration::from_secs(1));
    world.renew(&reader);
    let change = world.write(&stock, 0, 0x5a);
    world.purge(&reader.0);
    world.advance(Duration::from_secs(4) - MOMENT);
    world.renew(&reader);
    world.advance(MOMENT);
    let fenced = Parameters::Renew { taken: 0 };
    assert_eq!(world.order(&reader.0, reader.1, &fenced).sense, Some(Sense::SHARING_FENCED), "its time for the answer");
    assert!(!change.is_over(), "it may not have heard, and serves its copies");
    world.advance(LEASE - MOMENT - MOMENT);
    assert!(!change.is_over());
    world.advance(MOMENT);
    change.good();
    assert_eq!(world.write(&reader.0, 8, 1).sense(), Some(Sense::SHARING_FENCED));
    assert_eq!(world.read(&reader.0, 8).sense(), Some(Sense::SHARING_FENCED));
    let again = world.register(&reader.0, 2);
    assert_ne!(again, reader.1);
    world.write(&reader.0, 8, 1).good();
}

/// Race 7: a command that it sent before it was frozen arrives after the end of its lease.
#[test]
fn no_write_of_a_client_lands_after_its_lease() {
    let mut world = World::new();
    let frozen = world.client("frozen", 1);
    world.write(&frozen.0, 0, 1).good();
    // The clock has reached the end of the lease, and no task has run since.
    world.advance(LEASE - MOMENT);
    world.executor.clock().advance(MOMENT);
    assert_eq!(world.write(&frozen.0, 0, 2).sense(), Some(Sense::SHARING_FENCED));
    let stock = world.nexus("stock");
    assert!(world.read(&stock, 0).outcome().data_in.iter().all(|&byte| byte == 1));
}

/// A process that was stopped, or a machine that stood still: commands of clients wait in the
/// sockets.
#[test]
fn while_the_target_is_not_run_no_client_loses_its_life() {
    let mut world = World::new();
    let (reader, silent) = (world.client("reader", 1), world.client("silent", 2));
    let stock = world.nexus("stock");
    world.read(&reader.0, 0).good();
    let change = world.write(&stock, 0, 1);
    let callback = world.purge(&reader.0);
    world.advance(Duration::from_secs(3));
    world.report(&stock);
    // Four times the time for its answer, and longer than any lease.
    world.executor.clock().advance(LEASE + Duration::from_secs(6));
    world.settle();
    assert!(!change.is_over(), "nobody is fenced");
    world.renew(&reader);
    world.acknowledge(&reader, callback);
    change.good();
    // From then on time counts again, beginning with what was left before.
    world.advance(LEASE - Duration::from_secs(3) - MOMENT);
    world.renew(&reader);
    assert_eq!(world.report(&stock).len(), 2);
    world.advance(MOMENT);
    assert_eq!(world.order(&silent.0, silent.1, &Parameters::Renew { taken: 0 }).sense, Some(Sense::SHARING_FENCED));
    world.renew(&reader);
}

#[test]
fn what_a_fenced_client_held_passes_on_when_its_commands_have_ended() {
    let device = GatedDevice::new();
    let mut world = World::with(device.clone(), options());
    let (writer, next) = (world.client("writer", 1), world.client("next", 2));
    let alone = |request| lock(request, Resource::Metadata(0), Mode::MetadataExclusive);
    world.ordered(&writer.0, writer.1, &alone(1));
    assert!(matches!(world.messages(&writer.0)[..], [(2, MessageBody::Granted { .. })]));
    let write = world.write(&writer.0, 0, 1);
    assert_eq!(device.waiting_count(), 1, "it is under way");
    world.ordered(&next.0, next.1, &alone(1));
    assert!(matches!(world.messages(&next.0)[..], [(2, MessageBody::Queued { request: 1 })]));
    for _ in 0..3 {
        world.advance(LEASE / 2);
        world.renew(&next);
    }
    assert_eq!(world.messages(&next.0), [], "its lease is over, and its write is not");
    device.release();
    world.settle();
    write.good();
    world.advance(MOMENT);
    assert!(matches!(world.messages(&next.0)[..], [(3, MessageBody::Granted { request: 1, .. })]));
}

/// A host that died between its write and its flush: if the write were lost later, the next holder
/// of the lock would have read data that never existed.
#[test]
fn what_a_fenced_client_wrote_is_durable_before_its_locks_pass_on() {
    let device = Arc::new(CrashLayer::new(SIZE, 1));
    let mut world = World::with(device.clone(), options());
    let (writer, next) = (world.client("writer", 1), world.client("next", 2));
    let alone = |request| lock(request, Resource::Metadata(0), Mode::MetadataExclusive);
    world.ordered(&writer.0, writer.1, &alone(1));
    world.write(&writer.0, 0, 1).good();
    assert_eq!(device.durable_bytes(0, BLOCK_BYTES), [0; BLOCK_BYTES], "nobody has flushed");
    world.ordered(&next.0, next.1, &alone(1));
    world.messages(&next.0);
    for _ in 0..3 {
        world.advance(LEASE / 2);
        world.renew(&next);
    }
    assert!(matches!(world.messages(&next.0)[..], [(3, MessageBody::Granted { request: 1, .. })]));
    assert_eq!(device.durable_bytes(0, BLOCK_BYTES), [1; BLOCK_BYTES]);
}

/// It counts its lease from its second REGISTER.
#[test]
fn a_client_that_registers_again_has_its_whole_lease() {
    let mut world = World::new();
    let client = world.client("client", 1);
    world.advance(LEASE * 3 / 4);
    assert_eq!(world.register(&client.0, 1), client.1);
    world.advance(LEASE * 3 / 4);
    world.renew(&client);
}

/// Race 3.
#[test]
fn of_two_readers_that_both_want_to_write_one_is_first() {
    let mut world = World::new();
    let (a, b) = (world.client("a", 1), world.client("b", 2));
    for client in [&a, &b] {
        world.ordered(&client.0, client.1, &lock(1, Resource::Metadata(7), Mode::MetadataShared));
        assert!(matches!(world.messages(&client.0)[..], [(2, MessageBody::Granted { .. })]));
    }
    world.advance(Duration::from_millis(20));
    for client in [&a, &b] {
        world.ordered(&client.0, client.1, &lock(2, Resource::Metadata(7), Mode::MetadataExclusive));
    }
    assert!(matches!(world.messages(&a.0)[..], [(3, MessageBody::Queued { request: 2 })]));
    let messages = world.messages(&b.0);
    let callback = messages.iter().find_map(|(_, body)| match body {
        MessageBody::CallBack { callback, lock, .. } if lock.mode.is_none() => Some(*callback),
        _ => None,
    });
    assert!(messages.iter().any(|(_, body)| *body == MessageBody::Queued { request: 2 }));
    world.acknowledge(&b, callback.expect("it is to give up what it reads"));
    assert!(matches!(world.messages(&a.0)[..], [(4, MessageBody::Granted { request: 2, .. })]));
}

/// Race 11.
#[test]
fn a_client_that_lies_about_its_copies_harms_nobody_else() {
    let mut world = World::new();
    let (liar, reader) = (world.client("liar", 1), world.client("reader", 2));
    let stock = world.nexus("stock");
    world.read(&liar.0, 0).good();
    world.read(&reader.0, 0).good();
    let change = world.write(&stock, 0, 0x5a);
    let callback = world.purge(&liar.0);
    world.acknowledge(&liar, callback);
    world.acknowledge(&liar, callback);
    assert!(!change.is_over(), "the other one counts, too");
    let callback = world.purge(&reader.0);
    world.acknowledge(&reader, callback);
    change.good();
    let never_sent = Parameters::Acknowledge { taken: u64::MAX, callback: 99, answer: CallbackAnswer::Done };
    let refused = world.order(&liar.0, liar.1, &never_sent).sense.unwrap();
    assert!(refused.is_same_condition(&Sense::INVALID_FIELD_IN_PARAMETER_LIST));
}

/// A client that names another one's id is refused, and the other is not affected.
#[test]
fn a_client_that_names_another_does_nothing_to_it() {
    let mut world = World::new();
    let (victim, stranger) = (world.client("victim", 1), world.client("stranger", 2));
    let stock = world.nexus("stock");
    world.ordered(&victim.0, victim.1, &lock(1, Resource::Metadata(9), Mode::MetadataExclusive));
    let granted = world.messages(&victim.0).into_iter().find_map(|(_, body)| match body {
        MessageBody::Granted { locks, .. } => locks.first().copied(),
        _ => None,
    });
    let held = granted.expect("nobody else holds it");
    world.read(&victim.0, 0).good();
    let change = world.write(&stock, 0, 1);
    let callback = world.purge(&victim.0);
    let before = world.report(&stock);
    let answer = CallbackAnswer::Done;
    let orders = [
        Parameters::Renew { taken: u64::MAX },
        Parameters::Leave,
        Parameters::Unlock { transaction: 0, locks: vec![Lock { mode: None, ..held }] },
        Parameters::Acknowledge { taken: 9, callback, answer },
        lock(2, Resource::Metadata(10), Mode::MetadataExclusive),
        Parameters::Open { file: 1, is_write: true },
        Parameters::Close { file: 1, is_write: true },
        Parameters::Begin { transaction: 1, birth: 0 },
        Parameters::End { transaction: 1 },
        Parameters::Cancel { request: 1 },
    ];
    for parameters in &orders {
        let sense = world.order(&stranger.0, victim.1, parameters).sense;
        assert_eq!(sense, Some(Sense::SHARING_UNKNOWN_CLIENT), "{parameters:?}");
        assert_eq!(world.order(&stock, victim.1, parameters).sense, sense, "a stock initiator is none");
    }
    // Ids that were never assigned: of another start, or of this start but beyond the last one.
    for nobody in [0, victim.1 ^ 1 << 32, stranger.1 + 1, u64::MAX] {
        for parameters in &orders {
            let sense = world.order(&stranger.0, nobody, parameters).sense;
            assert!(matches!(sense, Some(Sense::SHARING_UNKNOWN_CLIENT | Sense::SHARING_FENCED)), "{sense:?}");
        }
        let refused = world.order(&stranger.0, 0, &Parameters::Fence { client: nobody }).sense.expect("it is nobody");
        assert!(refused.is_same_condition(&Sense::INVALID_FIELD_IN_PARAMETER_LIST), "{refused}");
    }
    // A callback to one client cannot be answered by another.
    let not_its = Parameters::Acknowledge { taken: 0, callback, answer };
    let refused = world.order(&stranger.0, stranger.1, &not_its).sense.expect("it was not asked");
    assert!(refused.is_same_condition(&Sense::INVALID_FIELD_IN_PARAMETER_LIST), "{refused}");
    assert!(!change.is_over(), "the victim has not dropped its copy");
    assert_eq!(world.report(&stock), before);
    world.acknowledge(&victim, callback);
    change.good();
    world.renew(&victim);
}

/// A malformed request is refused with a pointer to the wrong byte; it waits for no other, and no
/// other waits for it.
#[test]
fn locks_that_cannot_be_and_batches_that_are_too_large_are_refused_and_change_nothing() {
    let mut world = World::new();
    let (client, other) = (world.client("client", 1), world.client("other", 2));
    world.ordered(&other.0, other.1, &lock(1, Resource::Metadata(1), Mode::MetadataShared));
    world.messages(&other.0);
    let before = world.report(&other.0);
    let size = memory().geometry().size_bytes;
    let end = size / 4096;
    for (resource, mode) in [
        (Resource::Metadata(end), Mode::MetadataExclusive),
        (Resource::Metadata(u64::MAX), Mode::MetadataShared),
        (Resource::Group(0, u64::MAX), Mode::Exclusive),
        (Resource::Group(0, size.div_ceil(1 << 20)), Mode::Shared),
    ] {
        world.ordered(&client.0, client.1, &lock(5, resource, mode));
        let refused = MessageBody::Refused { request: 5, reason: Reason::BeyondEnd, index: 0 };
        assert_eq!(world.messages(&client.0).into_iter().map(|(_, body)| body).collect::<Vec<_>>(), [refused]);
    }
    let batch = |count: usize| {
        let one = |block| Lock { resource: Resource::Metadata(block), mode: Some(Mode::MetadataShared), grant: 0 };
        Parameters::Lock { request: 6, transaction: 0, is_reclaim: false, locks: (0..count as u64).map(one).collect() }
    };
    for count in [65, 1024] {
        let sense = world.order(&client.0, client.1, &batch(count)).sense.unwrap();
        assert_eq!(sense.field.map(|field| field.byte), Some(14), "the count of {count} locks");
    }
    // The count has two bytes, so a million cannot be expressed. A list as long as the count is
    // refused, and a count longer than the list, too.
    for count in [1025, 65_535, 1_000_000] {
        let list = batch(count).emit();
        let cdb = Cdb::SharingOut { service_action: 3, client: client.1, parameter_list_length: list.len() as u32 };
        let sense = world.run(&client.0, cdb, &list).sense.unwrap();
        assert!(sense.is_same_condition(&Sense::PARAMETER_LIST_LENGTH_ERROR), "{count}: {sense}");
        let short = &list[..64];
        let cdb = Cdb::SharingOut { service_action: 3, client: client.1, parameter_list_length: 64 };
        let sense = world.run(&client.0, cdb, short).sense.unwrap();
        assert_eq!(sense.key, scsi::SenseKey::IllegalRequest, "{count}: {sense}");
    }
    assert_eq!(world.messages(&client.0), []);
    assert_eq!(world.report(&other.0).len(), before.len(), "nothing is held that was not");
    world.ordered(&client.0, client.1, &batch(64));
    assert!(matches!(world.messages(&client.0)[..], [(_, MessageBody::Granted { request: 6, .. })]));
    world.renew(&other);
}

/// Race 12.
#[test]
fn a_client_that_takes_no_messages_is_fenced() {
    let mut world = World::with(memory(), SharingOptions { untaken_max: 8, ..options() });
    let client = world.client("client", 1);
    for request in 1..=7 {
        world.ordered(&client.0, client.1, &lock(request, Resource::Metadata(request), Mode::MetadataShared));
    }
    assert_eq!(world.messages(&client.0).len(), 7, "with the first they are eight");
    world.ordered(&client.0, client.1, &Parameters::Renew { taken: 1 });
    world.ordered(&client.0, client.1, &lock(8, Resource::Metadata(8), Mode::MetadataShared));
    world.ordered(&client.0, client.1, &lock(9, Resource::Metadata(9), Mode::MetadataShared));
    let renewal = Parameters::Renew { taken: 0 };
    assert_eq!(world.order(&client.0, client.1, &renewal).sense, Some(Sense::SHARING_FENCED));
}

#[test]
fn messages_that_were_not_taken_come_again_on_another_path() {
    let mut world = World::new();
    let client = world.client("client", 1);
    let second = world.nexus("second");
    assert_eq!(world.register(&client.0, 1), client.1, "the answer was lost, and it asks again");
    world.ordered(&second, client.1, &register(1));
    assert_eq!(world.messages(&second).len(), 3, "also those that came before it did");
    assert_eq!(world.messages(&client.0).len(), 1);
    world.ordered(&client.0, client.1, &lock(1, Resource::Metadata(1), Mode::MetadataShared));
    world.ordered(&client.0, client.1, &Parameters::Renew { taken: 3 });
    assert!(matches!(world.messages(&client.0)[..], [(4, MessageBody::Granted { .. })]));
    world.luns.rewind_messages(&client.0);
    assert!(matches!(world.messages(&client.0)[..], [(4, MessageBody::Granted { .. })]), "its connection was lost");
    world.luns.remove_nexus(&client.0);
    assert!(matches!(world.messages(&second)[..], [(4, MessageBody::Granted { .. })]));
    assert_eq!(world.messages(&second), [], "it had all");
    world.luns.remove_nexus(&second);
    let third = world.nexus("third");
    let stranger = Parameters::Register { key: [9; 16], registers_reads: true, before: None };
    let refused = world.order(&third, client.1, &stranger).sense.unwrap();
    assert!(refused.is_same_condition(&Sense::INVALID_FIELD_IN_PARAMETER_LIST), "it does not know the key");
    assert_eq!(
        world.order(&third, client.1, &Parameters::Renew { taken: 0 }).sense,
        Some(Sense::SHARING_UNKNOWN_CLIENT)
    );
    world.ordered(&third, 0, &register(1));
    assert!(matches!(
        world.messages(&third)[..],
        [(4, MessageBody::Granted { .. }), (5, MessageBody::Registered { .. })]
    ));
}

/// Whatever nexus its commands come by, at the gate they are the client's.
#[test]
fn what_one_path_asks_another_may_answer() {
    let mut world = World::new();
    let (client, stock) = (world.client("first", 1), world.nexus("stock"));
    let second = world.nexus("second");
    world.ordered(&second, client.1, &register(1));
    world.read(&client.0, 0).good();
    world.read(&second, 8).good();
    world.write(&second, 0, 1).good();
    world.write(&client.0, 8, 1).good();
    let changes = [world.write(&stock, 0, 2), world.write(&stock, 8, 2)];
    assert!(changes.iter().all(|change| !change.is_over()));
    let callbacks = |messages: Vec<(u64, MessageBody)>| -> Vec<u64> {
        let purges = messages.into_iter().filter_map(|(_, body)| match body {
            MessageBody::Purge { callback, .. } => Some(callback),
            _ => None,
        });
        purges.collect()
    };
    let asked = callbacks(world.messages(&client.0));
    assert_eq!((asked.len(), callbacks(world.messages(&second))), (2, asked.clone()), "each path is told");
    world.acknowledge(&(second.clone(), client.1), asked[0]);
    // The first path is silent from here on: what it was told and did not take the second one has, too.
    world.luns.remove_nexus(&client.0);
    world.acknowledge(&(second.clone(), client.1), asked[1]);
    changes.into_iter().for_each(|change| change.good());
    world.advance(LEASE / 2);
    world.ordered(&second, client.1, &Parameters::Renew { taken: 0 });
    world.advance(LEASE / 2 + MOMENT);
    world.read(&second, 0).good();
    world.ordered(&stock, 0, &Parameters::Fence { client: client.1 });
    let third = world.nexus("third");
    assert_eq!(world.order(&third, client.1, &register(1)).sense, Some(Sense::SHARING_FENCED));
    assert_eq!(world.read(&second, 0).sense(), Some(Sense::SHARING_FENCED));
}

/// A change does not purge its own client's copies: a write that is still on its way by a path that
/// the client has given up must not be carried out after what it reads by another.
#[test]
fn no_write_lands_by_a_path_that_its_client_has_given_up() {
    let mut world = World::new();
    let client = world.client("first", 1);
    let second = world.nexus("second");
    world.ordered(&second, client.1, &register(1));
    world.write(&client.0, 8, 1).good();
    // The client does not know the outcome of the write below. It registers again, and goes on by
    // the second path alone.
    world.ordered(&second, 0, &register(1));
    let messages = world.messages(&second);
    let first = messages.first().map(|(number, _)| *number);
    assert_eq!(first, Some(1), "what was not taken comes again this way: {messages:?}");
    assert!(world.read(&second, 0).outcome().data_in.iter().all(|&byte| byte == 0), "and registers the block");
    let unknown = Some(Sense::SHARING_UNKNOWN_CLIENT);
    assert_eq!(world.write(&client.0, 0, 2).sense(), unknown, "it comes late");
    assert_eq!(world.read(&client.0, 0).sense(), unknown);
    assert_eq!(world.order(&client.0, client.1, &Parameters::Renew { taken: 0 }).sense, unknown);
    assert!(world.read(&second, 0).outcome().data_in.iter().all(|&byte| byte == 0));
    world.ordered(&client.0, client.1, &register(1));
    world.write(&client.0, 0, 3).good();
    world.write(&second, 8, 4).good();
}

/// The same with a write that waits at the gate: the read waits for it.
#[test]
fn what_waits_of_a_path_that_was_given_up_is_before_what_is_read_then() {
    let mut world = World::new();
    let (client, other) = (world.client("first", 1), world.client("other", 2));
    let second = world.nexus("second");
    world.read(&other.0, 0).good();
    let write = world.write(&client.0, 0, 7);
    world.ordered(&second, 0, &register(1));
    let read = world.read(&second, 0);
    assert!(!write.is_over() && !read.is_over());
    let callback = world.purge(&other.0);
    world.acknowledge(&other, callback);
    write.good();
    assert!(read.outcome().data_in.iter().all(|&byte| byte == 7));
}

/// Other hosts may wait for a client's answer: so the answer waits for nothing.
/// Its end tells whether the unit can be used.
#[test]
fn a_sanitize_that_waits_for_a_client_goes_on_when_its_session_has_ended() {
    let mut world = World::new();
    let host = world.client("host", 1);
    let stock = world.nexus("stock");
    world.read(&host.0, 0).good();
    let list = scsi::sanitize::Overwrite { is_inverting: false, count: 1, pattern: vec![1] }.emit();
    let sanitize = scsi::cdb::Sanitize {
        service_action: scsi::sanitize::action::OVERWRITE,
        is_immediate: true,
        is_unrestricted_exit: false,
        parameter_list_length: list.len() as u16,
    };
    world.start(&stock, Cdb::Sanitize(sanitize), &list).good();
    let callback = world.purge(&host.0);
    world.luns.remove_nexus(&stock);
    world.settle();
    world.acknowledge(&host, callback);
    world.advance(2 * LEASE);
    let late = world.nexus("late");
    assert_eq!(world.run(&late, Cdb::TestUnitReady, &[]).sense, None);
}

#[test]
fn an_answer_passes_ordered_tasks_a_sanitize_and_unit_attentions() {
    let mut world = World::new();
    let reader = world.client("reader", 1);
    let stock = world.nexus("stock");
    world.read(&reader.0, 0).good();
    let write = Cdb::Write(transfer(Blocks::new(0, 1)));
    let change = world.start_as(&stock, write, &[1; BLOCK_BYTES], TaskAttribute::Ordered);
    let other = world.read(&stock, 64);
    assert!(!change.is_over() && !other.is_over(), "all wait behind it");
    world.luns.tell_of_cleared_commands(&reader.0, 0);
    let callback = world.purge(&reader.0);
    world.acknowledge(&reader, callback);
    change.good();
    other.good();
    assert_eq!(world.run(&reader.0, Cdb::TestUnitReady, &[]).sense, Some(Sense::COMMANDS_CLEARED_BY_TRANSPORT));
    world.read(&reader.0, 0).good();
    let sanitize = scsi::cdb::Sanitize {
        service_action: 2,
        is_immediate: true,
        is_unrestricted_exit: true,
        parameter_list_length: 0,
    };
    world.start(&stock, Cdb::Sanitize(sanitize), &[]).good();
    let callback = world.purge(&reader.0);
    assert!(world.read(&stock, 0).sense().is_some(), "it goes on");
    world.acknowledge(&reader, callback);
    world.advance(Duration::from_secs(60));
    assert_eq!(world.run(&stock, Cdb::TestUnitReady, &[]).sense, None);
}

#[test]
fn what_a_rule_forbids_is_refused_by_a_message_and_what_is_malformed_by_its_byte() {
    let mut world = World::new();
    let client = world.client("client", 1);
    world.ordered(&client.0, client.1, &lock(5, Resource::Group(7, 0), Mode::Exclusive));
    let reason = Reason::LeafBeforeRoot;
    assert_eq!(world.messages(&client.0), [(2, MessageBody::Refused { request: 5, reason, index: 0 })]);
    let empty = Parameters::Lock { request: 6, transaction: 0, is_reclaim: false, locks: Vec::new() };
    let sense = world.order(&client.0, client.1, &empty).sense.unwrap();
    assert_eq!(sense.field.map(|field| (field.is_in_cdb, field.byte)), Some((false, 14)));
    let not_held = Lock { resource: Resource::Metadata(1), mode: None, grant: 3 };
    let unlock = Parameters::Unlock { transaction: 0, locks: vec![not_held] };
    let sense = world.order(&client.0, client.1, &unlock).sense.unwrap();
    assert_eq!(sense.field.map(|field| (field.is_in_cdb, field.byte)), Some((false, 8)));
    assert_eq!(world.messages(&client.0), []);
}

#[test]
fn transactions_and_open_files_are_told_of() {
    let mut world = World::new();
    let (a, b) = (world.client("a", 1), world.client("b", 2));
    world.ordered(&a.0, a.1, &Parameters::Begin { transaction: 1, birth: 0 });
    assert!(matches!(world.messages(&a.0)[..], [(2, MessageBody::Begun { transaction: 1, birth: 1.. })]));
    let locks = vec![Lock { resource: Resource::Metadata(1), mode: Some(Mode::MetadataExclusive), grant: 0 }];
    world.ordered(&a.0, a.1, &Parameters::Lock { request: 1, transaction: 1, is_reclaim: false, locks });
    assert!(matches!(world.messages(&a.0)[..], [(3, MessageBody::Granted { transaction: 1, .. })]));
    world.ordered(&b.0, b.1, &lock(1, Resource::Metadata(1), Mode::MetadataShared));
    assert!(matches!(world.messages(&b.0)[..], [(2, MessageBody::Queued { request: 1 })]));
    world.ordered(&a.0, a.1, &Parameters::End { transaction: 1 });
    assert!(matches!(world.messages(&b.0)[..], [(3, MessageBody::Granted { request: 1, .. })]));
    for client in [&a, &b] {
        world.ordered(&client.0, client.1, &Parameters::Open { file: 12, is_write: false });
    }
    world.ordered(&a.0, a.1, &Parameters::Close { file: 12, is_write: false });
    assert_eq!(world.messages(&a.0), []);
    world.ordered(&b.0, b.1, &Parameters::Close { file: 12, is_write: false });
    assert_eq!(world.messages(&b.0), [(4, MessageBody::LastClose { file: 12 })]);
    world.ordered(&b.0, b.1, &Parameters::Fence { client: a.1 });
    assert_eq!(world.order(&a.0, a.1, &Parameters::Renew { taken: 0 }).sense, Some(Sense::SHARING_FENCED));
    world.ordered(&b.0, b.1, &Parameters::Leave);
    world.write(&b.0, 0, 1).good();
}

/// Whatever number of files a client names: the fence of one costs each other one message.
#[test]
fn the_files_of_a_fenced_client_are_one_message_to_others_and_those_of_one_that_leaves_none() {
    let mut world = World::with(memory(), SharingOptions { untaken_max: 4, ..options() });
    let (honest, quiet) = (world.client("honest", 1), world.client("quiet", 2));
    let closed = MessageBody::LastClose { file: 0 };
    for round in 0..8 {
        let liar = world.client("liar", 10 + round);
        for file in 1..40 {
            world.ordered(&liar.0, liar.1, &Parameters::Open { file, is_write: true });
        }
        if round % 2 == 1 {
            world.ordered(&liar.0, liar.1, &Parameters::Leave);
            world.settle();
            assert_eq!(world.messages(&honest.0), [], "it said itself that it closes them");
            continue;
        }
        // It says nothing any more, and its lease ends; the others renew theirs.
        for _ in 0..3 {
            world.advance(LEASE / 2);
            world.renew(&honest);
            world.renew(&quiet);
        }
        let taken = match &world.messages(&honest.0)[..] {
            [(number, body)] if *body == closed => *number,
            other => panic!("{other:?}"),
        };
        world.ordered(&honest.0, honest.1, &Parameters::Renew { taken });
    }
    let told = world.messages(&quiet.0);
    assert_eq!(told, [(2, closed)], "what was not sent yet tells of all");
}

/// Locks of this many files from one on.
fn lock_files(request: u64, first: u64, count: u64) -> Parameters {
    let wanted = |file| Lock { resource: Resource::File(file), mode: Some(Mode::Exclusive), grant: 0 };
    let locks = (first + 1..=first + count).map(wanted).collect();
    Parameters::Lock { request, transaction: 0, is_reclaim: false, locks }
}

/// Another session of an initiator name, as a client of its own.
fn another_client(world: &mut World, name: &str, session: u8) -> (NexusId, u64) {
    let nexus = NexusId::new(&format!("{name},i,0x{session},target,t,0x1"));
    world.luns.add_nexus(&nexus);
    let _ = world.run(&nexus, Cdb::TestUnitReady, &[]);
    let client = world.register(&nexus, 100 + session);
    (nexus, client)
}

#[test]
fn a_host_holds_no_more_than_it_leaves_to_others_however_many_clients_it_is() {
    let mut world = World::with(memory(), SharingOptions { holdings_max: 1024, ..options() });
    let first = world.client("first", 1);
    let full = Some(Sense::SHARING_TABLE_FULL);
    for request in 0..8 {
        world.ordered(&first.0, first.1, &lock_files(request, request * 64, 64));
    }
    let open = Parameters::Open { file: 7, is_write: false };
    assert_eq!(world.order(&first.0, first.1, &open).sense, full);
    assert_eq!(world.order(&first.0, first.1, &lock_files(8, 0, 1)).sense, full);
    let again = another_client(&mut world, "first", 2);
    assert_eq!(world.order(&again.0, again.1, &open).sense, full, "it is the same host");
    let second = world.client("second", 2);
    for _ in 0..256 {
        world.ordered(&second.0, second.1, &open);
    }
    assert_eq!(world.order(&second.0, second.1, &open).sense, full, "as many as are then left");
    let third = world.client("third", 3);
    world.ordered(&third.0, third.1, &lock_files(1, 512, 64));
    world.ordered(&third.0, third.1, &lock_files(2, 576, 64));
    assert_eq!(world.order(&third.0, third.1, &open).sense, full);
    let names = ["fourth", "fifth", "sixth"];
    for (number, name) in (4..).zip(names) {
        let small = world.client(name, number);
        world.ordered(&small.0, small.1, &lock_files(1, 64 * u64::from(number) + 400, 64));
    }
    world.ordered(&first.0, first.1, &Parameters::Leave);
    world.settle();
    world.ordered(&second.0, second.1, &open);
}

/// Who takes its messages goes on, whatever others leave untaken.
#[test]
fn of_too_many_messages_those_of_the_host_with_most_of_them_go_with_its_client() {
    let mut world = World::with(memory(), SharingOptions { untaken_bytes_max: 64 << 10, ..options() });
    let honest = world.client("honest", 1);
    for request in 0..20 {
        world.ordered(&honest.0, honest.1, &lock_files(request, 0, 2));
    }
    let lazy = [world.client("lazy", 2), another_client(&mut world, "lazy", 2), another_client(&mut world, "lazy", 3)];
    let mut fenced = 0;
    for round in 0..30 {
        for (number, client) in (1..).zip(&lazy) {
            let sense = world.order(&client.0, client.1, &lock_files(round, 100 * number, 64)).sense;
            assert!(sense.is_none() || sense == Some(Sense::SHARING_FENCED), "{sense:?}");
            fenced += usize::from(sense.is_some());
        }
    }
    assert!(fenced > 30, "{fenced} of their orders were refused");
    let told = world.messages(&honest.0);
    assert_eq!(told.len(), 20);
    world.ordered(&honest.0, honest.1, &Parameters::Renew { taken: 21 });
    world.ordered(&honest.0, honest.1, &lock_files(50, 0, 2));
    assert_eq!(world.messages(&honest.0).len(), 1);
}

/// A host that holds a range alone and delays its writes is asked for its copies while it still has
/// to write.
#[test]
fn who_writes_back_under_its_lock_passes_the_change_that_asks_for_it() {
    let mut world = World::new();
    let holder = world.client("holder", 1);
    let stock = world.nexus("stock");
    world.ordered(&holder.0, holder.1, &lock(1, Resource::Metadata(0), Mode::MetadataExclusive));
    world.messages(&holder.0);
    world.read(&holder.0, 0).good();
    let change = world.write(&stock, 0, 0x5a);
    let callback = world.purge(&holder.0);
    let getting_on = Parameters::Acknowledge { taken: 0, callback, answer: CallbackAnswer::GettingOn };
    for _ in 0..8 {
        world.advance(Duration::from_secs(1));
        world.ordered(&holder.0, holder.1, &getting_on);
        world.renew(&holder);
    }
    world.write(&holder.0, 1, 0x77).good();
    assert!(!change.is_over());
    world.acknowledge(&holder, callback);
    change.good();
    assert!(world.read(&stock, 1).outcome().data_in.iter().all(|&byte| byte == 0x77));
}
