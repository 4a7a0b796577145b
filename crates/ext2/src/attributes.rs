//! Extended attributes of an inode: in a block that inodes with equal attributes may share, or
//! behind the fields of a large inode.
//!
//! Both places are read. New values go to the block, where the kernel's ext2 finds them, too; an
//! attribute behind the fields is removed there when it is replaced or removed.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::allocation;
use crate::blocks::{Object, Operation};
use crate::content;
use crate::error::{Error, ErrorKind};
use crate::features::COMPAT_EXT_ATTR;
use crate::inode::{INODE_BYTES_MIN, Inode};
use crate::numbers::BlockNumber;
use crate::work::Work;

const MAGIC: u32 = 0xea02_0000;
/// Most inodes that share one block, as in the kernel.
const REFERENCES_MAX: u32 = 1024;

/// Prefixes of names in the interface, and the byte that stands for each on disk.
const PREFIXES: [(u8, &str); 3] = [(1, "user."), (4, "trusted."), (6, "security.")];

/// The header of a block of attributes.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderRaw {
    magic: U32,         //  0
    references: U32,    //  4  inodes that have this block
    blocks: U32,        //  8  one
    hash: U32,          // 12  of all attributes
    checksum: U32,      // 16  ext4's
    reserved: [U32; 3], // 20
}
const HEADER_BYTES: usize = 32;
const _: () = assert!(size_of::<HeaderRaw>() == HEADER_BYTES);

/// One attribute; its name follows. The list ends with four zero bytes.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryRaw {
    name_bytes: u8,    //  0
    prefix: u8,        //  1
    value_offset: U16, //  2  from the block's beginning, or from the first entry in an inode
    value_inode: U32,  //  4  ext4's
    value_bytes: U32,  //  8
    hash: U32,         // 12  of name and value
}
const ENTRY_BYTES: usize = 16;
const _: () = assert!(size_of::<EntryRaw>() == ENTRY_BYTES);

/// An attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Attribute {
    prefix: u8,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// What to do if the attribute exists, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    /// Create it or replace its value.
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

impl Attribute {
    fn is(&self, prefix: u8, name: &[u8]) -> bool {
        self.prefix == prefix && self.name == name
    }

    /// Bytes of its entry and of its value.
    fn bytes(&self) -> usize {
        (ENTRY_BYTES + self.name.len()).next_multiple_of(4) + self.value.len().next_multiple_of(4)
    }

    fn hash(&self) -> u32 {
        let name = self.name.iter().fold(0_u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
        self.value.chunks(4).fold(name, |hash, part| {
            let mut word = [0; 4];
            word[..part.len()].copy_from_slice(part);
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        })
    }

    /// The name with its prefix; `None` for unsupported kinds.
    fn outside_name(&self) -> Option<Vec<u8>> {
        let (_, prefix) = PREFIXES.iter().find(|(byte, _)| *byte == self.prefix)?;
        Some([prefix.as_bytes(), &self.name].concat())
    }
}

/// Splits a name into the byte of its prefix and the rest.
fn inside_name(name: &[u8]) -> Result<(u8, &[u8]), Error> {
    let split = PREFIXES.iter().find_map(|(byte, prefix)| Some((*byte, name.strip_prefix(prefix.as_bytes())?)));
    let (prefix, rest) = split.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "attributes of this kind: supported are user, trusted and security")
    })?;
    match rest.len() {
        0 => Err(ErrorKind::Invalid.into()),
        1..=255 => Ok((prefix, rest)),
        _ => Err(ErrorKind::NameTooLong.into()),
    }
}

/// The attributes of a region: entries from `entries` on; their value offsets count from `base`.
fn parse(region: &[u8], entries: usize, base: usize) -> Result<Vec<Attribute>, Error> {
    let damaged = || Error::corrupt("attributes are damaged");
    let mut attributes = Vec::new();
    let mut at = entries;
    loop {
        let rest = region.get(at..).ok_or_else(damaged)?;
        if rest.first_chunk::<4>().is_none_or(|word| *word == [0; 4]) {
            return Ok(attributes);
        }
        let (raw, rest) = EntryRaw::ref_from_prefix(rest).map_err(|_| damaged())?;
        let name_bytes = usize::from(raw.name_bytes);
        let (offset, length) = (base + usize::from(raw.value_offset.get()), raw.value_bytes.get() as usize);
        if raw.value_inode.get() != 0 {
            return Err(damaged());
        }
        let value =
            if length == 0 { Some(&[][..]) } else { region.get(offset..).and_then(|bytes| bytes.get(..length)) };
        let (name, value) = rest.get(..name_bytes).zip(value).ok_or_else(damaged)?;
        attributes.push(Attribute { prefix: raw.prefix, name: name.to_vec(), value: value.to_vec() });
        at += (ENTRY_BYTES + name_bytes).next_multiple_of(4);
    }
}

/// Writes attributes into a region: entries from `entries` on, values from its end backwards. They
/// are in the kernel's order, on which its search relies.
fn emit(region: &mut [u8], entries: usize, base: usize, attributes: &[Attribute]) {
    region[entries..].fill(0);
    let (mut at, mut end) = (entries, region.len());
    for attribute in attributes {
        end -= attribute.value.len().next_multiple_of(4);
        let raw = EntryRaw {
            name_bytes: attribute.name.len() as u8,
            prefix: attribute.prefix,
            value_offset: (if attribute.value.is_empty() { 0 } else { (end - base) as u16 }).into(),
            value_inode: U32::ZERO,
            value_bytes: (attribute.value.len() as u32).into(),
            hash: attribute.hash().into(),
        };
        region[at..at + ENTRY_BYTES].copy_from_slice(raw.as_bytes());
        region[at + ENTRY_BYTES..][..attribute.name.len()].copy_from_slice(&attribute.name);
        region[end..end + attribute.value.len()].copy_from_slice(&attribute.value);
        at += (ENTRY_BYTES + attribute.name.len()).next_multiple_of(4);
    }
}

fn header(block: &[u8], number: BlockNumber) -> Result<HeaderRaw, Error> {
    let (header, _) = HeaderRaw::ref_from_prefix(block).map_err(|_| Error::corrupt("attributes are damaged"))?;
    if header.magic.get() != MAGIC || header.blocks.get() != 1 || header.references.get() == 0 {
        return Err(Error::corrupt(format!("{number} should hold attributes, and does not")));
    }
    Ok(*header)
}

async fn in_block<O: Operation>(work: &mut Work<O>, inode: &Inode) -> Result<Vec<Attribute>, Error> {
    let Some(number) = inode.attributes_block() else { return Ok(Vec::new()) };
    work.layout.check_content(number, inode.number)?;
    let block = work.operation.read(number, Object::Attributes).await?;
    header(&block, number)?;
    parse(&block, HEADER_BYTES, 0)
}

/// Offset, in the bytes of an inode, of the word that its attributes follow.
fn place_in_inode(bytes: &[u8]) -> Option<usize> {
    let extra: [u8; 2] = *bytes.get(INODE_BYTES_MIN..)?.first_chunk()?;
    let at = INODE_BYTES_MIN + usize::from(u16::from_le_bytes(extra));
    let magic = bytes.get(at..)?.first_chunk()?;
    (at.is_multiple_of(4) && u32::from_le_bytes(*magic) == MAGIC).then_some(at)
}

async fn in_inode<O: Operation>(work: &mut Work<O>, inode: &Inode) -> Result<Vec<Attribute>, Error> {
    let place = work.layout.inode_place(inode.number)?;
    let block = work.operation.read(place.block, work.layout.table_object(&place)).await?;
    let bytes = block.get(place.offset..place.offset + work.layout.inode_bytes).unwrap_or_default();
    match place_in_inode(bytes) {
        Some(at) => parse(bytes, at + 4, at + 4),
        None => Ok(Vec::new()),
    }
}

/// The value of an attribute.
///
/// # Errors
/// `NoAttribute` when the inode has none of this name.
pub async fn get<O: Operation>(work: &mut Work<O>, inode: &Inode, name: &[u8]) -> Result<Vec<u8>, Error> {
    let (prefix, name) = inside_name(name)?;
    let mut all = in_inode(work, inode).await?;
    all.extend(in_block(work, inode).await?);
    let found = all.into_iter().find(|attribute| attribute.is(prefix, name));
    found.map(|attribute| attribute.value).ok_or_else(|| ErrorKind::NoAttribute.into())
}

/// The names of all attributes of supported kinds.
pub async fn list<O: Operation>(work: &mut Work<O>, inode: &Inode) -> Result<Vec<Vec<u8>>, Error> {
    let mut all = in_inode(work, inode).await?;
    all.extend(in_block(work, inode).await?);
    Ok(all.iter().filter_map(Attribute::outside_name).collect())
}

/// Sets an attribute. The caller stores the inode.
///
/// # Errors
/// `Exists`, `NoAttribute` according to the mode; `NoSpace` when all together need more than a
/// block.
pub async fn set<O: Operation>(
    work: &mut Work<O>,
    inode: &mut Inode,
    name: &[u8],
    value: &[u8],
    mode: SetMode,
) -> Result<(), Error> {
    let (prefix, name) = inside_name(name)?;
    let removed = take_from_inode(work, inode, prefix, name).await?;
    let mut all = in_block(work, inode).await?;
    let before = all.len();
    all.retain(|attribute| !attribute.is(prefix, name));
    match (mode, removed || all.len() < before) {
        (SetMode::Create, true) => return Err(ErrorKind::Exists.into()),
        (SetMode::Replace, false) => return Err(ErrorKind::NoAttribute.into()),
        _ => {}
    }
    all.push(Attribute { prefix, name: name.to_vec(), value: value.to_vec() });
    set_block(work, inode, all).await
}

/// Removes an attribute. The caller stores the inode.
///
/// # Errors
/// `NoAttribute` when the inode has none of this name.
pub async fn remove<O: Operation>(work: &mut Work<O>, inode: &mut Inode, name: &[u8]) -> Result<(), Error> {
    let (prefix, name) = inside_name(name)?;
    if take_from_inode(work, inode, prefix, name).await? {
        return Ok(());
    }
    let mut all = in_block(work, inode).await?;
    let before = all.len();
    all.retain(|attribute| !attribute.is(prefix, name));
    if all.len() == before {
        return Err(ErrorKind::NoAttribute.into());
    }
    set_block(work, inode, all).await
}

/// Removes an attribute from behind the fields of the inode. Returns whether it was there.
async fn take_from_inode<O: Operation>(
    work: &mut Work<O>,
    inode: &Inode,
    prefix: u8,
    name: &[u8],
) -> Result<bool, Error> {
    let mut all = in_inode(work, inode).await?;
    let before = all.len();
    all.retain(|attribute| !attribute.is(prefix, name));
    if all.len() == before {
        return Ok(false);
    }
    let needed = 4 + all.iter().map(Attribute::bytes).sum::<usize>();
    let bytes = work.inode_bytes_mut(inode.number).await?;
    if let Some(at) = place_in_inode(bytes) {
        if at + 4 + needed > bytes.len() && !all.is_empty() {
            return Err(Error::corrupt(format!("the attributes in {} overlap", inode.number)));
        }
        if all.is_empty() {
            bytes[at..].fill(0);
        } else {
            emit(bytes, at + 4, at + 4, &all);
        }
    }
    Ok(true)
}

/// Stores all attributes of an inode in a block of its own.
async fn set_block<O: Operation>(work: &mut Work<O>, inode: &mut Inode, mut all: Vec<Attribute>) -> Result<(), Error> {
    if all.is_empty() {
        return release(work, inode).await;
    }
    let needed = HEADER_BYTES + 4 + all.iter().map(Attribute::bytes).sum::<usize>();
    if needed > work.layout.block_bytes {
        return Err(Error::new(ErrorKind::NoSpace, "the attributes of a file have to fit in one block"));
    }
    all.sort_by(|a, b| (a.prefix, a.name.len(), &a.name).cmp(&(b.prefix, b.name.len(), &b.name)));
    let number = own_block(work, inode).await?;
    let block = work.operation.replace(number, Object::Attributes).await?;
    let hash = all.iter().fold(0_u32, |hash, attribute| hash.rotate_left(16) ^ attribute.hash());
    let is_shareable = all.iter().all(|attribute| attribute.hash() != 0);
    let header = HeaderRaw {
        magic: MAGIC.into(),
        references: 1.into(),
        blocks: 1.into(),
        hash: (if is_shareable { hash } else { 0 }).into(),
        checksum: U32::ZERO,
        reserved: [U32::ZERO; 3],
    };
    block[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    emit(block, HEADER_BYTES, 0, &all);
    note_feature(work).await
}

/// A block of attributes that only this inode has.
async fn own_block<O: Operation>(work: &mut Work<O>, inode: &mut Inode) -> Result<BlockNumber, Error> {
    let old = inode.attributes_block();
    if let Some(number) = old {
        let block = work.operation.read(number, Object::Attributes).await?;
        if header(&block, number)?.references.get() == 1 {
            return Ok(number);
        }
        release(work, inode).await?;
    }
    let group = work.layout.inode_place(inode.number)?.group;
    let goal = BlockNumber(work.layout.first_block(group).0.saturating_add(1));
    let number = allocation::allocate(work, goal).await?;
    inode.attributes = number.0;
    inode.sectors = inode.sectors.saturating_add(work.sectors_per_block());
    Ok(number)
}

/// Releases the inode's block of attributes. The caller stores the inode.
pub async fn release<O: Operation>(work: &mut Work<O>, inode: &mut Inode) -> Result<(), Error> {
    let Some(number) = inode.attributes_block() else { return Ok(()) };
    work.layout.check_content(number, inode.number)?;
    let block = work.operation.read(number, Object::Attributes).await?;
    let header = header(&block, number)?;
    let references = header.references.get();
    if references > REFERENCES_MAX {
        return Err(Error::corrupt(format!("the attributes in {number} have too many inodes")));
    }
    inode.attributes = 0;
    if references == 1 {
        return content::free_outside(work, inode, number).await;
    }
    let fewer = HeaderRaw { references: (references - 1).into(), ..header };
    let block = work.operation.change(number, Object::Attributes).await?;
    block[..HEADER_BYTES].copy_from_slice(fewer.as_bytes());
    inode.sectors = inode.sectors.saturating_sub(work.sectors_per_block());
    Ok(())
}

async fn note_feature<O: Operation>(work: &mut Work<O>) -> Result<(), Error> {
    let features = work.superblock().await?.features_compatible.get();
    if features & COMPAT_EXT_ATTR == 0 {
        work.superblock_mut().await?.features_compatible = (features | COMPAT_EXT_ATTR).into();
    }
    Ok(())
}
