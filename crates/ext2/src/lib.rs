//! The ext2 file system (revision 1; revision 0 may be read), over blocks that someone else reads, keeps and makes durable.
#![forbid(unsafe_code)]
pub mod blocks;
mod error;
pub mod features;
pub mod limits;
mod numbers;
mod plain;
pub mod superblock;

pub use blocks::{Access, Block, Blocks, Object, Operation};
pub use error::{Error, ErrorKind};
pub use numbers::{BlockNumber, FileBlock, GroupNumber, InodeNumber};
pub use plain::{PlainBlocks, PlainOperation};
