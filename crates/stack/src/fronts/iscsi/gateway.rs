//! The target of a gateway, and its logical unit.
//!
//! The unit is not the LUN behind it: it gets a random serial number of its own when an attachment
//! of this name is first offered, kept in the state directory. The newest data may be in a cache or
//! a log of this host, so multipath must never take the two for one disk; nor the gateways of two
//! hosts.
//!
//! Reservations apply among the gateway's own initiators, and are kept beside the serial number. To
//! the LUN behind they are all one initiator.

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use ::target::{Status, Target, TargetServer, TargetServerOptions};
use block::{Completion, Device, EventReceiver, Geometry, Identity, Request, SharedDevice};
use front::TurnsLayer;
use futures_util::future::join;
use iscsi::target::{AccessList, AccessRule};
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};

use crate::fronts::kind::Served;
use crate::fronts::options::FrontOptions;
use crate::limits::GATEWAY_DRAIN_SECONDS;
use crate::registry::file_stem;
use crate::sidecar::Sidecar;
use crate::time::system_clock;

/// The LUN number of the unit.
pub(super) const LUN: u64 = 0;

/// A target with one unit.
pub(super) struct Gateway {
    unit: Arc<LogicalUnit>,
    /// The device, of which each initiator has its share.
    shared: Arc<TurnsLayer>,
    server: TargetServer,
}

impl Gateway {
    /// A gateway for the device of `served`.
    ///
    /// # Errors
    /// When its serial number can neither be read nor made.
    pub(super) fn open(all: &FrontOptions, served: &Served) -> io::Result<Self> {
        let options = &all.gateway;
        let name = format!("{}-{}", all.name, file_stem(&served.exported.device.identity()));
        let sidecar = Sidecar::named(&name, &options.folder).map_err(io::Error::other)?;
        let serial = sidecar.serial().map_err(io::Error::other)?;
        let (reservation_store, saved_reservations) = sidecar.reservations().map_err(io::Error::other)?;
        let identity = Identity { target: "gateway".into(), unit: "lun".into(), serial };
        let shared = Arc::new(TurnsLayer::new(&served.exported));
        let device = Arc::new(WithIdentity { inner: Arc::clone(&shared) as SharedDevice, identity });
        let geometry = device.geometry();
        let unit_options = LogicalUnitOptions {
            product: "GATEWAY DISK".into(),
            is_read_only: all.is_read_only,
            physical_block_bytes: Some(geometry.physical_block_bytes),
            reservation_store: Some(Arc::new(reservation_store)),
            saved_reservations,
            waits_for_device: true,
            tells_lost_writes: true,
            losses: Some(Arc::clone(&served.exported.losses)),
            compares_below: served.compares_below.clone(),
            clock: Some(system_clock().map_err(io::Error::other)?),
            ..LogicalUnitOptions::default()
        };
        let unit = LogicalUnit::new(device, unit_options);
        let luns = LunMap::new();
        luns.insert(LUN, Arc::clone(&unit));
        let target = Target {
            access: AccessList(vec![AccessRule::any_initiator(options.accounts.clone())]),
            own: options.own.clone(),
            ..Target::new(options.iqn.clone(), luns)
        };
        let server_options =
            TargetServerOptions { drain_seconds: GATEWAY_DRAIN_SECONDS, ..TargetServerOptions::default() };
        Ok(Self { unit, shared, server: TargetServer::new(vec![target], server_options) })
    }

    /// Serves connections until `stop`, then lets sessions end.
    ///
    /// # Errors
    /// When the server cannot run.
    pub(super) async fn serve(&self, listener: TcpListener, stop: impl Future<Output = ()>) -> io::Result<()> {
        self.server.adopt(vec![listener])?.run(stop).await
    }

    /// The background work of the unit and of its device, without end.
    pub(super) fn run(&self) -> impl Future<Output = ()> + use<> {
        let (unit, shared) = (self.unit.run(), self.shared.run());
        async move {
            join(unit, shared).await;
        }
    }

    /// The target's status.
    pub(super) fn counted(&self) -> Status {
        self.server.counted()
    }
}

/// The device, with an identity of its own.
struct WithIdentity {
    inner: SharedDevice,
    identity: Identity,
}

impl Device for WithIdentity {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn submit(&self, request: Request) -> Completion {
        self.inner.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use block::memory::MemoryDevice;
    use block::{Buffer, Error, ErrorKind};
    use front::Exported;
    use logical_unit::{Command, NexusId};
    use scsi::cdb::{Blocks, CacheRange};
    use scsi::{Cdb, Sense, TaskAttribute};

    use super::*;
    use crate::fronts::options::GatewayOptions;

    fn memory(serial: &str) -> SharedDevice {
        let identity = Identity { target: "t".into(), unit: "u".into(), serial: serial.into() };
        Arc::new(MemoryDevice::new(1 << 20, identity))
    }

    fn identity_of(name: &str, behind: &str, folder: &Path) -> Identity {
        unit_of(name, Exported::alone(memory(behind)), folder).device().identity()
    }

    fn unit_of(name: &str, exported: Exported, folder: &Path) -> Arc<LogicalUnit> {
        let served = Served { exported, compares_below: None };
        let gateway = GatewayOptions {
            iqn: "iqn.2026-11.io.forebay:gateway".into(),
            folder: folder.join("gateways"),
            ..GatewayOptions::default()
        };
        let options = FrontOptions { name: name.into(), gateway, ..FrontOptions::default() };
        Gateway::open(&options, &served).unwrap().unit
    }

    #[tokio::test]
    async fn a_loss_that_a_client_of_another_front_was_told_of_is_told_to_initiators() {
        let state = tempfile::tempdir().unwrap();
        let device: SharedDevice = memory("a");
        let exported = Exported::alone(device);
        let losses = Arc::clone(&exported.losses);
        let luns = LunMap::new();
        luns.insert(LUN, unit_of("disk", exported, state.path()));
        let nexus = NexusId::new("initiator,i,0x1 target,t,0x1");
        luns.add_nexus(&nexus);
        let run = async |cdb: Cdb| {
            let command = Command {
                cdb: Ok(cdb),
                data_out: Buffer::empty(),
                data_in_bytes_max: 0,
                attribute: TaskAttribute::Simple,
                task_tag: 1,
            };
            luns.execute(&nexus, LUN, command).await.sense
        };
        let flush = Cdb::SynchronizeCache(CacheRange { blocks: Blocks::new(0, 0), is_immediate: false });
        assert_eq!(run(Cdb::TestUnitReady).await, Some(Sense::POWER_ON_OR_RESET));
        assert_eq!(run(flush).await, None);
        losses.note(Error::new(ErrorKind::Media, "lost"));
        assert_eq!(run(Cdb::TestUnitReady).await, Some(Sense::POWER_ON_OR_RESET));
        assert_eq!([run(flush).await, run(flush).await], [Some(Sense::WRITE_ERROR), None]);
    }

    #[tokio::test]
    async fn a_gateway_is_itself_at_every_start_and_nobody_else() {
        let state = tempfile::tempdir().unwrap();
        let first = identity_of("disk", "a", state.path());
        assert_eq!(identity_of("disk", "a", state.path()), first);
        assert_ne!(first.serial, "a", "it is not the LUN behind");
        assert_ne!(identity_of("disk", "b", state.path()), first, "of another LUN");
        assert_ne!(identity_of("other", "a", state.path()), first, "another attachment");
        let elsewhere = tempfile::tempdir().unwrap();
        assert_ne!(identity_of("disk", "a", elsewhere.path()), first, "on another host");
    }
}
