//! Events of the LUN while its log is being opened.

mod common;

use std::sync::Arc;

use base::buffer::Buffer;
use base::executor::Executor;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::{
    Completion, Device, ErrorKind, Event, EventReceiver, Geometry, Identity, Operation, Request, SharedDevice,
};
use common::{Kind, format, open_options, try_open};
use writelog::{DestageOrder, Durability};

/// A log device during whose reads the LUN becomes another disk.
struct Eventful {
    medium: CrashLayer,
    origin: CrashLayer,
}

impl Device for Eventful {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn identity(&self) -> Identity {
        self.medium.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if matches!(request.operation, Operation::Read { .. }) {
            self.origin.publish(&Event::IdentityChanged);
        }
        self.medium.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.medium.subscribe()
    }
}

#[test]
fn a_lun_that_becomes_another_disk_while_its_log_is_opened_gets_nothing() {
    let mut executor = Executor::in_order();
    let (medium, origin) = (CrashLayer::new(512 << 10, 1), CrashLayer::new(64 * 4096, 2));
    let (plain, below): (SharedDevice, SharedDevice) = (Arc::new(medium.clone()), Arc::new(origin.clone()));
    format(&mut executor, &plain, &below);
    let kind = Kind { durability: Durability::Log, order: DestageOrder::Log };
    let device: SharedDevice = Arc::new(Eventful { medium, origin });
    let options = open_options(&executor, kind, None);
    let log = try_open(&mut executor, &device, &below, options).expect("nobody has looked yet");
    executor.run_until_stalled();
    let writing = log.write(0, Buffer::copy_of(&[1; 4096]), false);
    assert_eq!(executor.block_on(writing).map(drop).map_err(|error| error.kind()), Err(ErrorKind::Gone));
}
