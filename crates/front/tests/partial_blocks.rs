//! Requests of partial blocks: clients that ignore the smallest block size are served, and no other
//! bytes change.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::random::Random;
use block::device::DeviceExt;
use block::{Completion, Device, Geometry, Identity, Request, SharedDevice};
use common::step_client::StepClient;
use common::{memory, memory_with};
use front::{Exported, NbdOptions, NbdServer};
use nbd::{Command, ErrorCode};

const MIB: u64 = 1 << 20;

fn blocks_of(block_bytes: u32, size_bytes: u64) -> SharedDevice {
    let geometry = Geometry {
        logical_block_bytes: block_bytes,
        physical_block_bytes: block_bytes,
        discard_granularity_bytes: Some(block_bytes),
        ..Geometry::plain(size_bytes)
    };
    memory_with(geometry)
}

#[tokio::test]
async fn any_bytes_can_be_written_and_read() {
    for block_bytes in [512, 4096, 128 << 10] {
        let size_bytes = 4 * MIB as usize;
        let device = blocks_of(block_bytes, size_bytes as u64);
        let server = NbdServer::new(Arc::clone(&device), NbdOptions::default());
        let mut client = StepClient::connect(&server).await;
        let mut random = Random::new(u64::from(block_bytes));
        let mut model = vec![0u8; size_bytes];
        for step in 0..60u32 {
            let length = 1 + random.below([10, 5000, 700_000][step as usize % 3]);
            let offset = random.below(size_bytes as u64 - length);
            let range = offset as usize..(offset + length) as usize;
            match random.below(4) {
                0 | 1 => {
                    let mut bytes = vec![0; length as usize];
                    random.fill(&mut bytes);
                    client.write(offset, &bytes).await;
                    model[range].copy_from_slice(&bytes);
                }
                2 => {
                    let (length, fua, may_discard, only_if_fast) = (length as u32, true, true, false);
                    let zeroing = Command::WriteZeroes { offset, length, fua, may_discard, only_if_fast };
                    client.ask(zeroing).await.result.unwrap();
                    model[range].fill(0);
                }
                _ => {
                    client.ask(Command::Trim { offset, length: length as u32, fua: false }).await.result.unwrap();
                    // Only whole blocks are discarded, and those read as zeroes here.
                    let block = block_bytes as usize;
                    let (first, end) = (range.start.next_multiple_of(block), range.end / block * block);
                    if first < end {
                        model[first..end].fill(0);
                    }
                }
            }
            let length = 1 + random.below(100_000) as usize;
            let offset = random.below((size_bytes - length) as u64) as usize;
            let read = client.read(offset as u64, length).await;
            assert!(read == model[offset..offset + length], "blocks of {block_bytes}, step {step}");
        }
        let below = device.read(0, Buffer::zeroed(size_bytes)).await.unwrap();
        assert!(below[..] == model[..], "blocks of {block_bytes}");
    }
}

#[tokio::test]
async fn the_smallest_block_that_is_announced_is_served() {
    let device = blocks_of(1 << 20, 8 * MIB);
    let server = NbdServer::new(device, NbdOptions::default());
    let mut client = StepClient::connect(&server).await;
    assert_eq!((client.sizes.min, client.sizes.preferred), (1, 1 << 20), "larger than NBD allows as a minimum");
    client.write(64 << 10, &[7; 1]).await;
    assert_eq!(client.read((64 << 10) - 1, 2).await, [0, 7]);
}

#[tokio::test]
async fn block_status_covers_what_was_asked_for() {
    let device = memory(4 * MIB);
    device.write(MIB, Buffer::copy_of(&[7; 4096]), false).await.unwrap();
    let server = NbdServer::new(device, NbdOptions::default());
    let mut client = StepClient::connect(&server).await;
    let status = client.ask(Command::BlockStatus { offset: MIB - 700, length: 1000, only_first: false }).await;
    status.result.unwrap();
    let lengths: Vec<_> = status.extents.iter().map(|extent| (extent.length_bytes, extent.is_hole)).collect();
    assert_eq!(lengths, [(700, true), (300, false)]);
    let past = client.ask(Command::Read { offset: 4 * MIB - 10, length: 11 }).await;
    assert_eq!(past.result.unwrap_err().code, ErrorCode::Invalid);
}

/// A device that carries out at once and answers later: the data of a read is old when it arrives.
struct Late(SharedDevice);

impl Device for Late {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let (completion, sender) = Completion::slot();
        let below = self.0.submit(request);
        tokio::spawn(async move {
            let response = below.await;
            tokio::time::sleep(Duration::from_millis(10)).await;
            sender.complete(response);
        });
        completion
    }
}

#[tokio::test(start_paused = true)]
async fn parts_of_one_block_that_are_written_at_once_are_all_there() {
    let device = memory(MIB);
    let server = NbdServer::new(Arc::new(Late(device.clone())), NbdOptions::default());
    let mut writers = Vec::new();
    for part in 0..8u64 {
        let server = server.clone();
        writers.push(tokio::spawn(async move {
            let mut client = StepClient::connect(&server).await;
            client.write(part * 96, &[part as u8 + 1; 96]).await;
        }));
    }
    // A whole block and a part of it at the same time: the rest of the block must keep the new
    // data.
    let (mut whole, mut part) = (StepClient::connect(&server).await, StepClient::connect(&server).await);
    tokio::join!(whole.write(1024, &[9; 512]), part.write(1500, &[10; 20]));
    for writer in writers {
        writer.await.unwrap();
    }
    let bytes = device.read(0, Buffer::zeroed(2048)).await.unwrap();
    for (at, &byte) in bytes.iter().enumerate() {
        let is_right = match at {
            0..768 => usize::from(byte) == at / 96 + 1,
            1500..1520 => byte == 9 || byte == 10,
            1024..1536 => byte == 9,
            _ => byte == 0,
        };
        assert!(is_right, "byte {at} is {byte}");
    }
}

/// Each reads the rest of the block and writes it back: without common turns it would undo what the
/// other has changed.
#[tokio::test(start_paused = true)]
async fn parts_of_one_block_that_two_servers_write_at_once_are_all_there() {
    let device = memory(MIB);
    let late: SharedDevice = Arc::new(Late(device.clone()));
    let exported = Exported::alone(late);
    let servers = [(), ()].map(|()| NbdServer::beside(exported.clone(), NbdOptions::default()));
    let writers = (0..8u64).map(|part| {
        let server = servers[part as usize % 2].clone();
        tokio::spawn(async move {
            let mut client = StepClient::connect(&server).await;
            client.write(part * 64, &[part as u8 + 1; 64]).await;
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let bytes = device.read(0, Buffer::zeroed(512)).await.unwrap();
    for (at, &byte) in bytes.iter().enumerate() {
        assert_eq!(usize::from(byte), at / 64 + 1, "byte {at}");
    }
}
