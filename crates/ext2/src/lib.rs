//! The ext2 file system (revision 1; revision 0 may be read), over blocks that another crate reads,
//! keeps and makes durable.
//!
//! A mount uses a [`FileSystem`]. It does everything in operations ([`Operation`]) that are
//! complete or change nothing, over [`Blocks`]: those of a device that one host has to itself
//! ([`PlainBlocks`]), or of a LUN that several hosts share. `docs/formats/ext2.md` lists the
//! supported parts of ext2.
//!
//! | module | holds |
//! |---|---|
//! | `file_system` | [`FileSystem`]: names, files, inodes, as a mount needs them |
//! | `make` | [`make()`]: a new file system |
//! | `removal`, `orphans` | inodes without names |
//! | `directory`, `tree`, `index`, `hash`, `entry` | names in a directory: all of it; its blocks by their index; a node of that; hashes; one block of entries |
//! | `attributes` | extended attributes |
//! | `content`, `mapping` | bytes of a file; the blocks that hold them |
//! | `allocation`, `inodes`, `bitmap` | allocation and release of blocks and inodes |
//! | `work` | what these modules share: an operation, the layout, the time |
//! | `layout`, `superblock`, `descriptor`, `inode`, `features`, `device_number`, `time` | stored structures |
//! | [`mount_state`] | the last mount of a file system, from its superblock |
//! | `plain`, [`transfer`] | [`PlainBlocks`]; blocks to and from a device |
//! | [`blocks`] | the interface to the blocks below the file system |
//! | [`limits`] | the bounds of this crate |

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
pub mod mount_state;
mod numbers;
mod orphans;
mod plain;
mod removal;
mod superblock;
mod time;
pub mod transfer;
mod tree;
mod work;

pub use attributes::SetMode;
pub use blocks::{Access, Block, Blocks, Object, Operation};
pub use directory::DirectoryEntry;
pub use error::{Error, ErrorKind};
pub use file_system::{
    FileSystem, Metadata, MetadataChange, NewNode, OpenOptions, Owner, RenameMode, ReservedFile, Statistics, WallClock,
};
pub use inode::FileType;
pub use make::{Made, MakeOptions, make};
pub use numbers::{BlockNumber, FileBlock, GroupNumber, InodeNumber};
pub use plain::{PlainBlocks, PlainOperation};
pub use time::Timestamp;
