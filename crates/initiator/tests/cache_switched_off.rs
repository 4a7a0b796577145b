//! A unit whose write cache is switched off by another host (MODE SELECT, reported with 2Ah/01h)
//! while copies are retained: a flush releases the copies, and no request waits for ever.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::device::DeviceExt;
use block::{Buffer, Device, Request};
use initiator::{InitiatorOptions, RemoteLun};
use scsi::cdb::CdbForm;
use scsi::vpd::{self, BlockLimits};
use scsi::{Cdb, Sense, mode};
use support::World;
use support::scripted::{Disk, Reaction, Reply, Scripted};

fn attach(world: &mut World, retained_bytes_max: usize) -> (Scripted, Arc<RemoteLun>) {
    let target = Scripted::new(world);
    let options =
        InitiatorOptions { replacement_timeout: Duration::from_secs(30), retained_bytes_max, ..world.options() };
    let lun = attach_with(world, &target, options);
    (target, lun)
}

fn attach_with(world: &mut World, target: &Scripted, options: InitiatorOptions) -> Arc<RemoteLun> {
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    lun
}

fn other_host(world: &World) -> InitiatorOptions {
    InitiatorOptions {
        isid: Some(iscsi::pdu::Isid::random_format(2, 2)),
        initiator_name: "iqn.2026-01.io.forebay:other-host".to_owned(),
        ..world.options()
    }
}

fn caching_off() -> Vec<u8> {
    let caching = mode::Caching { is_write_cache_enabled: false, is_read_cache_disabled: false };
    mode::emit(CdbForm::Six, &mode::Header::default(), &caching.emit())
}

/// The unit's cache is switched off, and the command that `is_turn` chooses reports it; `then`
/// handles the others.
fn switch_cache_off_at(
    target: &Scripted,
    mut is_turn: impl FnMut(&Cdb) -> bool + Send + 'static,
    mut then: impl FnMut(&mut Disk, &Cdb) -> Reaction + Send + 'static,
) {
    let mut is_off = false;
    target.tell(move |disk, cdb| match cdb {
        Cdb::ModeSense(_) if is_off => Reaction::Answer(Reply::data(caching_off())),
        _ if !is_off && is_turn(cdb) => {
            is_off = true;
            Reaction::Answer(Reply::sense(Sense::MODE_PARAMETERS_CHANGED))
        }
        _ => then(disk, cdb),
    });
}

/// Writes 4 KiB at the start, of which a copy is retained; then the cache is switched off, and the initiator knows it.
fn write_and_switch_off(world: &mut World, target: &Scripted, lun: &Arc<RemoteLun>) {
    let writing = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(writing).unwrap();
    assert_eq!(lun.status().retained_bytes, 4096);
    switch_cache_off_at(target, |_| true, |_, _| Reaction::Proper);
    let reading = lun.read(8192, Buffer::zeroed(4096));
    world.run(reading).unwrap();
    assert!(!lun.geometry().is_write_cache_volatile);
}

/// Whether `future` ends within ten minutes of the virtual clock.
fn ends<T: Send + 'static>(world: &mut World, future: impl Future<Output = T> + Send + 'static) -> bool {
    let is_over = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&is_over);
    world.executor.spawn(async move {
        drop(future.await);
        noted.store(true, Ordering::Release);
    });
    world.pass(Duration::from_secs(600));
    is_over.load(Ordering::Acquire)
}

#[test]
fn a_raw_command_over_a_retained_copy_ends_when_the_cache_is_switched_off() {
    let mut world = World::new(3);
    let (target, lun) = attach(&mut world, 1 << 20);
    write_and_switch_off(&mut world, &target, &lun);
    let raw = Arc::clone(&lun);
    assert!(ends(&mut world, async move { raw.compare_and_write(0, &[7; 512], &[8; 512]).await }));
    assert_eq!(lun.status().retained_bytes, 0);
}

#[test]
fn a_flush_makes_durable_what_was_written_before_the_cache_was_switched_off() {
    let mut world = World::new(4);
    let (target, lun) = attach(&mut world, 1 << 20);
    write_and_switch_off(&mut world, &target, &lun);
    let flushing = lun.flush();
    world.run(flushing).unwrap();
    assert_eq!((target.disk().durable(0, 4096), lun.status().retained_bytes), (vec![7; 4096], 0));
    let sent = lun.status().commands_sent;
    let flushing = lun.flush();
    world.run(flushing).unwrap();
    assert_eq!(lun.status().commands_sent, sent, "there is nothing left to be flushed");
}

#[test]
fn a_device_whose_cache_was_switched_off_is_closed_with_everything_durable() {
    let mut world = World::new(4);
    let (target, lun) = attach(&mut world, 1 << 20);
    write_and_switch_off(&mut world, &target, &lun);
    world.run(async move { lun.close().await }).expect("nothing is lost");
    assert_eq!(target.disk().durable(0, 4096), [7; 4096]);
}

/// Many at once, so that some wait for room; the unit says that its cache is off at the n-th command of them.
#[test]
fn writes_that_wait_for_room_end_when_the_cache_is_switched_off() {
    for nth in 1..12u64 {
        let mut world = World::new(5);
        let (target, lun) = attach(&mut world, 16 << 10);
        let mut count = 0;
        let is_nth = move |_: &Cdb| {
            count += 1;
            count == nth
        };
        switch_cache_off_at(&target, is_nth, |_, _| Reaction::Proper);
        let request = |index: u64| Request::write(index * 4096, Buffer::copy_of(&[9; 4096]), false);
        let writes: Vec<_> = (0..12).map(|index| lun.submit(request(index))).collect();
        let all = async move {
            for writing in writes {
                drop(writing.await);
            }
        };
        assert!(ends(&mut world, all), "told at command {nth}: {} wait", lun.status().waiting);
    }
}

/// What was flushed is not replayed: another host may have written there since.
#[test]
fn what_was_flushed_is_not_written_again_over_what_another_host_wrote_since() {
    let mut world = World::new(6);
    let (target, lun) = attach(&mut world, 1 << 20);
    write_and_switch_off(&mut world, &target, &lun);
    let flushing = lun.flush();
    world.run(flushing).expect("the barrier before the LUN is handed to the other host");
    assert_eq!(found_after_another_host_and_a_lost_session(&mut world, &target, &lun), 9);
}

/// The first session that is lost writes everything again, durably; the second one must not.
#[test]
fn what_was_written_again_on_a_unit_without_a_cache_is_not_written_a_second_time() {
    let mut world = World::new(7);
    let (target, lun) = attach(&mut world, 1 << 20);
    write_and_switch_off(&mut world, &target, &lun);
    lose_session(&mut world, &target, &lun);
    assert_eq!((lun.status().writes_replayed, lun.status().retained_bytes), (1, 0));
    assert_eq!(found_after_another_host_and_a_lost_session(&mut world, &target, &lun), 9);
}

/// Another host writes nines where the sevens were; the first host's session is lost. Returns the
/// bytes found then.
fn found_after_another_host_and_a_lost_session(world: &mut World, target: &Scripted, lun: &Arc<RemoteLun>) -> u8 {
    let options = other_host(world);
    let other = attach_with(world, target, options);
    let writing = other.write(0, Buffer::copy_of(&[9; 4096]), true);
    world.run(writing).unwrap();
    lose_session(world, target, lun);
    let reading = other.read(0, Buffer::zeroed(4096));
    world.run(reading).unwrap()[0]
}

/// The session of `lun` is lost once, at its next command.
fn lose_session(world: &mut World, target: &Scripted, lun: &Arc<RemoteLun>) {
    let mut is_lost = false;
    target.tell(move |_, cdb| match cdb {
        Cdb::ModeSense(_) => Reaction::Answer(Reply::data(caching_off())),
        Cdb::Read(_) if !is_lost => {
            is_lost = true;
            Reaction::Leave
        }
        _ => Reaction::Proper,
    });
    let reading = lun.read(16384, Buffer::zeroed(4096));
    world.run(reading).unwrap();
}

/// The first parts of a write are in the cache when it is switched off, the last ones are written to a unit that has
/// none.
#[test]
fn a_write_that_began_with_a_cache_and_ended_without_one_is_kept_until_a_flush() {
    for is_durable in [false, true] {
        let mut world = World::new(8);
        let target = Scripted::new(&world);
        let mut count = 0;
        let is_second = move |cdb: &Cdb| {
            count += u32::from(matches!(cdb, Cdb::Write(_)));
            count == 2
        };
        switch_cache_off_at(&target, is_second, |_, cdb| match cdb {
            Cdb::Inquiry { page: vpd::page::BLOCK_LIMITS, .. } => {
                let limits = BlockLimits { transfer_blocks_max: 8, ..BlockLimits::default() };
                Reaction::Answer(Reply::data(limits.emit()))
            }
            _ => Reaction::Proper,
        });
        let options = world.options();
        let lun = attach_with(&mut world, &target, options);
        let bytes = vec![7; 64 << 10];
        let writing = lun.write(0, Buffer::copy_of(&bytes), is_durable);
        world.run(writing).unwrap();
        assert!(!lun.geometry().is_write_cache_volatile, "it took several commands");
        if !is_durable {
            let flushing = lun.flush();
            world.run(flushing).unwrap();
        }
        assert!(target.disk().durable(0, bytes.len()) == bytes, "durable at once: {is_durable}");
    }
}

/// Another host switches the cache of our own target off, as `sdparm --clear=WCE` does.
#[test]
fn what_was_written_before_is_durable_when_our_target_has_switched_its_cache_off() {
    let mut world = World::new(9);
    let device = block::layer::crash::CrashLayer::new(1 << 20, 7);
    world.serve(Arc::new(device.clone()));
    let lun = world.connect(world.options()).unwrap();
    let other = world.connect(other_host(&world)).unwrap();
    let writing = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(writing).unwrap();
    let mut list = caching_off();
    list[0] = 0;
    let select = async move { other.execute(&[0x15, 0x10, 0, 0, list.len() as u8, 0], &list, 0).await };
    assert_eq!(world.run(select).unwrap().status, 0);
    assert_eq!(device.durable_bytes(0, 4096), [7; 4096]);
    let flushing = lun.flush();
    world.run(flushing).unwrap();
    assert_eq!(lun.status().retained_bytes, 0);
}
