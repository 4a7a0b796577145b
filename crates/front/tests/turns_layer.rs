//! Initiators of a gateway, which are submitters of its device, beside one that asks for much.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::buffer::Buffer;
use block::device::DeviceExt;
use block::layer::submitter::SubmitterLayer;
use block::{Completion, Device, Geometry, Identity, OperationKind, Request, SharedDevice, Submitter};
use common::memory;
use common::model::{Model, SIZE};
use common::raw_client::RawClient;
use front::{Exported, NbdOptions, NbdServer, TurnsLayer};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The offset that the good one reads; the others do not touch it.
const OWN: u64 = SIZE - MIB;
/// NBD_CMD_WRITE.
const WRITE: u16 = 1;

/// The layer over a device, with its background work.
fn layer(exported: &Exported) -> SharedDevice {
    let layer = TurnsLayer::new(exported);
    tokio::spawn(layer.run());
    Arc::new(layer)
}

/// The layer for the initiator of this name.
fn of(layer: &SharedDevice, name: &str) -> SharedDevice {
    Arc::new(SubmitterLayer::of(Arc::clone(layer), Submitter::named(name)))
}

/// Keeps so many requests of so many bytes under way.
fn keep_asking(device: &SharedDevice, (kind, length, depth): (OperationKind, u64, u64)) {
    for number in 0..depth {
        let device = Arc::clone(device);
        tokio::spawn(async move {
            let buffer = || Buffer::zeroed(length as usize);
            let offset = number * length % (OWN - length);
            loop {
                match kind {
                    OperationKind::Read => drop(device.read(offset, buffer()).await.unwrap()),
                    _ => device.write(offset, buffer(), false).await.map(drop).unwrap(),
                }
            }
        });
    }
}

fn bytes_of_others(device: &Model) -> u64 {
    device.take_asked().into_iter().filter(|(_, offset, _)| *offset != OWN).map(|(_, _, length)| length).sum()
}

/// The most bytes that the device was asked for by others during one of sixty-four reads of the good one. Before,
/// others may have more there until somebody else is active.
async fn most_in_a_read(device: &Model, good: &SharedDevice) -> u64 {
    for _ in 0..4 {
        good.read(OWN, Buffer::zeroed(4096)).await.unwrap();
    }
    bytes_of_others(device);
    let mut most = 0;
    for _ in 0..64 {
        good.read(OWN, Buffer::zeroed(4096)).await.unwrap();
        most = most.max(bytes_of_others(device));
    }
    most
}

#[tokio::test(start_paused = true)]
async fn a_read_waits_for_a_few_pieces_of_an_initiator_that_asks_for_much() {
    let much = [(OperationKind::Write, MIB, 32), (OperationKind::Read, MIB, 32), (OperationKind::Write, 4 * KIB, 128)];
    for (much, count) in much.into_iter().flat_map(|much| [(much, 1), (much, 4)]) {
        let device = Model::new(Some(Duration::from_millis(1)));
        let layer = layer(&Exported::alone(Arc::clone(&device) as SharedDevice));
        // Sessions of one name are one initiator.
        (0..count).for_each(|_| keep_asking(&of(&layer, "bad"), much));
        let most = most_in_a_read(&device, &of(&layer, "good")).await;
        assert!((1..=512 * KIB).contains(&most), "{count} sessions with {much:?}: {most} bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_waits_for_a_few_pieces_of_the_clients_of_another_front() {
    let device = Model::new(Some(Duration::from_millis(1)));
    let exported = Exported::alone(Arc::clone(&device) as SharedDevice);
    let server = NbdServer::beside(exported.clone(), NbdOptions::default());
    RawClient::connect(&server).await.keep_asking(WRITE, MIB as u32, 16);
    let most = most_in_a_read(&device, &of(&layer(&exported), "good")).await;
    assert!((1..=512 * KIB).contains(&most), "{most} bytes");
}

/// Over a long link requests do not delay each other.
#[tokio::test(start_paused = true)]
async fn over_a_long_link_an_initiator_that_asks_for_much_is_not_held_up() {
    let model = Model::new(Some(Duration::from_millis(10)));
    let device = Arc::new(Model { is_parallel: true, ..Arc::into_inner(model).unwrap() });
    let layer = layer(&Exported::alone(Arc::clone(&device) as SharedDevice));
    keep_asking(&of(&layer, "bad"), (OperationKind::Write, MIB, 32));
    for _ in 0..100 {
        of(&layer, "good").read(OWN, Buffer::zeroed(4096)).await.unwrap();
    }
    let most = most_in_a_read(&device, &of(&layer, "good")).await;
    assert!(most >= 8 * MIB, "{most} bytes in 10 ms");
}

/// A device that records who asked for what.
struct Recorded {
    below: SharedDevice,
    asked: Mutex<Vec<(Submitter, OperationKind, u64)>>,
}

impl Device for Recorded {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let length = request.range().unwrap_or_default().length;
        self.asked.lock().unwrap().push((request.submitter, request.operation.kind(), length));
        self.below.submit(request)
    }
}

#[tokio::test(start_paused = true)]
async fn alone_requests_stay_as_they_are_and_beside_others_pieces_make_up_the_whole() {
    let recorded = Arc::new(Recorded { below: memory(SIZE), asked: Mutex::default() });
    let layer = layer(&Exported::alone(Arc::clone(&recorded) as SharedDevice));
    let (much, little) = (of(&layer, "much"), of(&layer, "little"));
    let asked = || std::mem::take(&mut *recorded.asked.lock().unwrap());
    let bytes: Vec<u8> = (0..MIB).map(|at| (at / 100) as u8).collect();
    much.write(0, Buffer::copy_of(&bytes), true).await.unwrap();
    assert_eq!(asked(), [(Submitter::named("much"), OperationKind::Write, MIB)]);

    little.read(OWN, Buffer::zeroed(4096)).await.unwrap();
    asked();
    much.write(MIB, Buffer::copy_of(&bytes), true).await.unwrap();
    let seen = asked();
    assert!(seen.iter().all(|(who, _, length)| *who == Submitter::named("much") && *length <= 64 * KIB), "{seen:?}");
    assert_eq!(seen.iter().map(|(_, _, length)| length).sum::<u64>(), MIB);
    let flushes: Vec<bool> = seen.iter().map(|(_, kind, _)| *kind == OperationKind::Flush).collect();
    assert_eq!(flushes.iter().position(|is_flush| *is_flush), Some(flushes.len() - 1), "once, at the end: {seen:?}");

    // A part of a buffer, as of a long read.
    little.read(OWN, Buffer::zeroed(4096)).await.unwrap();
    asked();
    let mut buffer = Buffer::zeroed(3 * MIB as usize);
    buffer.set_window(MIB as usize, MIB as usize);
    let mut buffer = much.read(MIB, buffer).await.unwrap();
    assert!(asked().len() > 1 && buffer[..] == bytes[..]);
    buffer.set_window(0, 3 * MIB as usize);
    let (before, after) = (&buffer[..MIB as usize], &buffer[2 * MIB as usize..]);
    assert!(before.iter().chain(after).all(|&byte| byte == 0), "nothing beside it was touched");
}
