//! The ext2 file system (revision 1; revision 0 may be read), over blocks that someone else reads, keeps and makes durable.
#![forbid(unsafe_code)]
mod allocation;
mod attributes;
mod bitmap;
pub mod blocks;
mod content;
mod descriptor;
mod device_number;
mod directory;
mod entry;
mod error;
mod features;
mod file_system;
mod hash;
mod index;
mod inode;
mod inodes;
mod layout;
pub mod limits;
mod make;
mod mapping;
mod numbers;
mod orphans;
mod plain;
mod removal;
mod superblock;
mod time;
mod tree;
mod work;

pub use attributes::SetMode;
pub use blocks::{Access, Block, Blocks, Object, Operation};
pub use directory::DirectoryEntry;
pub use error::{Error, ErrorKind};
pub use file_system::{
    FileSystem, Metadata, MetadataChange, NewNode, OpenOptions, Owner, RenameMode, Statistics, WallClock,
};
pub use inode::FileType;
pub use make::{Made, MakeOptions, make};
pub use numbers::{BlockNumber, FileBlock, GroupNumber, InodeNumber};
pub use plain::{PlainBlocks, PlainOperation};
pub use time::Timestamp;
