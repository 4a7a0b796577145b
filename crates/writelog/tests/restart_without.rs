//! Writes that the LUN acknowledged before the log was attached are durable once a client's flush
//! of the log has succeeded.

mod common;

use std::sync::Arc;

use base::executor::Executor;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, FlushEffect, Loss, Power, Reported};
use block::{ErrorKind, Geometry, SharedDevice};
use common::{Kind, format, open_options, try_open, write};
use writelog::{DestageOrder, Durability};

const ORIGIN_BYTES: u64 = 16 * 4096;

#[test]
fn a_flush_covers_what_the_lun_acknowledged_before_there_was_a_log() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let mut executor = Executor::in_order();
        let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
        let medium = CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry);
        let origin: SharedDevice = Arc::new(medium.clone());
        let log: SharedDevice = Arc::new(CrashLayer::new(4 << 20, 1));
        format(&mut executor, &log, &origin);
        // An attachment without the log: acknowledged by the LUN, which has a volatile cache. It is killed.
        write(&mut executor, &origin, 0, &[7; 4096]);
        drop(executor);
        let mut executor = Executor::in_order();
        let mut options = open_options(&executor, Kind { order, durability: Durability::Log }, None);
        options.order = order;
        let opened = try_open(&mut executor, &log, &origin, options).expect("nothing fails");
        executor.block_on(opened.flush()).expect("nothing fails");
        let after = medium.after_power_loss_as(Loss::All, &Power::new());
        assert_eq!(after.durable_bytes(0, 4096), vec![7; 4096], "{order:?}");
    }
}

/// The LUN reports the loss once, to the flush of a batch, which is repeated and succeeds: the
/// client's flush then succeeds, too.
#[test]
fn a_lun_that_lost_it_does_not_tell_the_log_alone() {
    let mut executor = Executor::in_order();
    let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
    let medium = CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry);
    let origin: SharedDevice = Arc::new(medium.clone());
    let log: SharedDevice = Arc::new(CrashLayer::new(4 << 20, 1));
    format(&mut executor, &log, &origin);
    for block in 0..8 {
        write(&mut executor, &origin, block * 4096, &[7; 4096]);
    }
    drop(executor);
    let mut executor = Executor::in_order();
    medium.fail_flush_as(medium.flushes_seen(), ErrorKind::Media, FlushEffect::DropsUnseen, Reported::Once);
    let kind = Kind { order: DestageOrder::Log, durability: Durability::Log };
    let options = open_options(&executor, kind, None);
    let Ok(opened) = try_open(&mut executor, &log, &origin, options) else { return };
    write(&mut executor, &opened, 12 * 4096, &[8; 4096]);
    let flushed = executor.block_on(opened.flush());
    let closing = Arc::clone(&opened);
    let closed = executor.block_on(async move { closing.close(false).await });
    let after = medium.after_power_loss_as(Loss::All, &Power::new());
    let is_lost = (0..8).any(|block| after.durable_bytes(block * 4096, 4096) != vec![7; 4096]);
    assert!(!is_lost || flushed.is_err() || closed.is_err(), "lost, and nobody was told");
}
