//! An ext2 to be damaged, and what is done with it then.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use block::SharedDevice;
use ext2::{
    Error, FileSystem, InodeNumber, MakeOptions, NewNode, OpenOptions, Owner, PlainBlocks, RenameMode, SetMode,
    Timestamp, make,
};
use uuid::Uuid;

use crate::damage::{content, device};
use crate::input::Input;

/// One host, and a device of its own.
pub type Plain = FileSystem<PlainBlocks>;

const SIZE_BYTES: usize = 512 << 10;
/// Directories and files that one walk looks at.
pub const INODES_MAX: usize = 500;

#[path = "../../crates/ext2/tests/walk/mod.rs"]
mod walk;
pub use walk::{entries_of, walk};

/// The result of a future over a device in memory.
///
/// # Panics
/// When it waits.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("memory lets nobody wait"),
    }
}

/// Opens the file system of a device.
pub fn open(device: &SharedDevice, is_read_only: bool) -> Result<Plain, Error> {
    let wall_clock = Arc::new(|| Timestamp { seconds: 1_600_000_000, nanoseconds: 0 });
    let options = OpenOptions { is_read_only, may_use_reserved: true, wall_clock };
    now(async { FileSystem::open(PlainBlocks::new(Arc::clone(device)).await?, options).await })
}

/// Images with something of everything, in blocks of each size.
pub fn images() -> &'static [Vec<u8>] {
    static IMAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    IMAGES.get_or_init(|| [(1024, 256), (1024, 128), (4096, 256)].map(|(block, inode)| image(block, inode)).to_vec())
}

fn image(block_bytes: usize, inode_bytes: usize) -> Vec<u8> {
    let device = device(&vec![0; SIZE_BYTES], "E");
    let id = Uuid::from_u128(1);
    let options = MakeOptions::new(id, id, Timestamp::default());
    let options = MakeOptions { block_bytes: Some(block_bytes), inode_bytes, ..options };
    now(make(&device, &options)).expect("there is room");
    let file_system = open(&device, false).expect("it was made just now");
    let fill = async {
        let (root, owner) = (InodeNumber::ROOT, Owner { uid: 1, gid: 2, permissions: 0o755 });
        let many = file_system.create(root, b"many", NewNode::Directory, owner).await?.inode;
        let deep = file_system.create(many, b"deep", NewNode::Directory, owner).await?.inode;
        let file = file_system.create(deep, b"file", NewNode::File, owner).await?.inode;
        file_system.create(deep, b"short", NewNode::SymbolicLink(b"target"), owner).await?;
        file_system.create(deep, b"long", NewNode::SymbolicLink(&[b'l'; 100]), owner).await?;
        for number in 0..40_u8 {
            let name = [&[b'a' + number % 26, b'0' + number / 26][..], &[b'n'; 150]].concat();
            file_system.link(file, many, &name).await?;
        }
        for offset in [0, 20_000, 400_000, 70 << 20] {
            file_system.write_file(file, offset, &[7; 3000]).await?;
        }
        file_system.set_attribute(file, b"user.a", &[1; 100], SetMode::Any).await?;
        let gone = file_system.create(deep, b"gone", NewNode::File, owner).await?.inode;
        file_system.open_file(gone).await?;
        file_system.unlink(deep, b"gone").await?;
        file_system.commit().await
    };
    now(fill).expect("there is room for all of it");
    content(&device)
}

/// Does what the input says with what the root and its directories name.
pub fn act(file_system: &Plain, input: &mut Input<'_>) {
    let owner = Owner::default();
    while !input.is_empty() {
        let (action, pick, number) = (input.byte(), input.byte(), u64::from(input.u16()));
        let mut directory = InodeNumber::ROOT;
        for _ in 0..pick % 3 {
            let below = entries_of(file_system, directory);
            directory = below.get(2 + usize::from(pick / 3) % 4).map_or(directory, |(_, inode)| *inode);
        }
        let entries = entries_of(file_system, directory);
        let Some((name, inode)) = entries.get(usize::from(pick) % entries.len().max(1)) else { continue };
        let (inode, new) = (*inode, [b"new".as_slice(), &[action; 120]].concat());
        let _ = match action % 10 {
            0 => now(file_system.unlink(directory, name)),
            1 => now(file_system.remove_directory(directory, name)),
            2 => now(file_system.create(directory, &new, NewNode::Directory, owner)).map(drop),
            3 => now(file_system.create(directory, &new, NewNode::SymbolicLink(&[b's'; 90]), owner)).map(drop),
            4 => now(file_system.rename((directory, name), (InodeNumber::ROOT, &new), RenameMode::Replace)),
            5 => now(file_system.write_file(inode, number * 10, &[9; 4000])),
            6 => now(file_system.set_size(inode, number * 10)),
            7 => now(file_system.punch_hole(inode, number..number * 20)),
            8 => now(file_system.set_attribute(inode, b"user.a", &[3; 50], SetMode::Any)),
            _ => now(file_system.remove_attribute(inode, b"user.a")),
        };
    }
    let _ = now(file_system.commit());
}
