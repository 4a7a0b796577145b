//! The mapping from the blocks of a file to the blocks of the device.
//!
//! ```text
//!   inode   12 numbers of blocks
//!           1 number of a table of them                    (depth 1)
//!           1 number of a table of tables                  (depth 2)
//!           1 number of a table of tables of tables        (depth 3)
//! ```
//! A number that is zero is a hole, as large as the reach of the missing table. Every walk is
//! bounded by the depth: no number can make it circular.

use std::ops::Range;

use crate::allocation;
use crate::blocks::{Block, Object, Operation};
use crate::error::{Error, ErrorKind};
use crate::inode::{DIRECT_BLOCKS, Inode};
use crate::layout::Layout;
use crate::numbers::{BlockNumber, FileBlock};
use crate::work::Work;

/// The place of a block of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// This block of the device.
    Block(BlockNumber),
    /// None; neither have the others in this range of the file's blocks.
    Hole(Range<u64>),
}

/// The path to a block of a file: the slot in the inode, then in each table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Path {
    depth: usize,
    slots: [u32; 4],
}

impl Path {
    /// `None` beyond the reach of three levels.
    fn new(layout: &Layout, at: u64) -> Option<Self> {
        let per = u64::from(layout.numbers_per_block());
        if at < DIRECT_BLOCKS as u64 {
            return Some(Self { depth: 0, slots: [at as u32, 0, 0, 0] });
        }
        let mut rest = at - DIRECT_BLOCKS as u64;
        let mut reach = per;
        for depth in 1..=3 {
            if rest < reach {
                let mut slots = [(DIRECT_BLOCKS + depth - 1) as u32, 0, 0, 0];
                for level in (1..=depth).rev() {
                    slots[level] = (rest % per) as u32;
                    rest /= per;
                }
                return Some(Self { depth, slots });
            }
            rest -= reach;
            reach *= per;
        }
        None
    }

    /// Most blocks of a file.
    fn reach_max(layout: &Layout) -> u64 {
        let per = u64::from(layout.numbers_per_block());
        DIRECT_BLOCKS as u64 + per + per * per + per * per * per
    }

    /// The blocks of the file under the number at `level`, `at` among them.
    fn reach(&self, layout: &Layout, at: u64, level: usize) -> Range<u64> {
        let per = u64::from(layout.numbers_per_block());
        let (mut size, mut before) = (1, 0);
        for below in (level + 1..=self.depth).rev() {
            before += u64::from(self.slots[below]) * size;
            size *= per;
        }
        at - before..at - before + size
    }
}

fn number_at(table: &Block, slot: u32) -> u32 {
    let at = slot as usize * 4;
    table.get(at..at + 4).map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes were taken")))
}

fn set_number(table: &mut [u8], slot: u32, number: u32) {
    let at = slot as usize * 4;
    table[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

fn too_large() -> Error {
    ErrorKind::TooLarge.into()
}

/// The place of block `at` of a file.
///
/// # Errors
/// `Corrupt` when a number on the path leads to a block that no file can have.
pub async fn lookup<O: Operation>(work: &mut Work<O>, inode: &Inode, at: u64) -> Result<Place, Error> {
    let path = Path::new(&work.layout, at).ok_or_else(too_large)?;
    let mut number = BlockNumber(inode.blocks[path.slots[0] as usize]);
    for level in 0..=path.depth {
        if number.0 == 0 {
            return Ok(Place::Hole(path.reach(&work.layout, at, level)));
        }
        work.layout.check_content(number, inode.number)?;
        if level < path.depth {
            let table = work.operation.read(number, Object::Indirect(inode.number)).await?;
            let slot = path.slots[level + 1];
            number = BlockNumber(number_at(&table, slot));
            if number.0 == 0 {
                // Adjacent numbers that are zero, too, are the same hole: a walk takes one step a
                // table over it.
                let reach = path.reach(&work.layout, at, level + 1);
                let slots = work.layout.numbers_per_block();
                let before = (0..slot).rev().take_while(|slot| number_at(&table, *slot) == 0).count() as u64;
                let behind = (slot + 1..slots).take_while(|slot| number_at(&table, *slot) == 0).count() as u64;
                let size = reach.end - reach.start;
                return Ok(Place::Hole(reach.start - before * size..reach.end + behind * size));
            }
        }
    }
    Ok(Place::Block(number))
}

/// The block that holds block `at` of a file. It is allocated if there is none: then `true` is
/// returned with it, and its content is undefined. The caller stores the inode.
///
/// # Errors
/// `NoSpace`, `TooLarge`.
pub async fn lookup_or_allocate<O: Operation>(
    work: &mut Work<O>,
    inode: &mut Inode,
    at: FileBlock,
) -> Result<(BlockNumber, bool), Error> {
    let at = u64::from(at.0);
    if let Place::Block(number) = lookup(work, inode, at).await? {
        return Ok((number, false));
    }
    let path = Path::new(&work.layout, at).ok_or_else(too_large)?;
    let mut goal = goal(work, inode, at).await?;
    let mut table: Option<BlockNumber> = None;
    for level in 0..=path.depth {
        let slot = path.slots[level];
        let present = match table {
            None => inode.blocks[slot as usize],
            Some(table) => number_at(&work.operation.read(table, Object::Indirect(inode.number)).await?, slot),
        };
        if present != 0 {
            table = Some(BlockNumber(present));
            continue;
        }
        let number = allocation::allocate(work, goal).await?;
        inode.sectors = inode.sectors.checked_add(work.sectors_per_block()).ok_or_else(too_large)?;
        if level < path.depth {
            work.operation.replace(number, Object::Indirect(inode.number)).await?;
        }
        match table {
            None => inode.blocks[slot as usize] = number.0,
            Some(table) => {
                set_number(work.operation.change(table, Object::Indirect(inode.number)).await?, slot, number.0);
            }
        }
        goal = BlockNumber(number.0.saturating_add(1));
        table = Some(number);
    }
    Ok((table.expect("there is one level at least"), true))
}

/// The goal of an allocation: behind the block before; else at the beginning of the inode's group.
async fn goal<O: Operation>(work: &mut Work<O>, inode: &Inode, at: u64) -> Result<BlockNumber, Error> {
    if at > 0
        && let Place::Block(before) = lookup(work, inode, at - 1).await?
    {
        return Ok(BlockNumber(before.0.saturating_add(1)));
    }
    let group = work.layout.inode_place(inode.number)?.group;
    let table = work.layout.group(group)?.inode_table;
    let behind_table = BlockNumber(table.0 + work.layout.inode_table_blocks());
    let is_inside = work.layout.group_of_block(behind_table).0 == group && behind_table.0 < work.layout.block_count;
    Ok(if is_inside { behind_table } else { work.layout.first_block(group) })
}

/// Frees the blocks of a file in this range, and tables that become empty. The caller stores the
/// inode.
pub async fn free_range<O: Operation>(work: &mut Work<O>, inode: &mut Inode, range: Range<u64>) -> Result<(), Error> {
    let mut at = range.start;
    while at < range.end {
        at = match lookup(work, inode, at).await? {
            Place::Hole(hole) => hole.end,
            Place::Block(_) => free_in_table(work, inode, at..range.end).await?,
        };
    }
    Ok(())
}

/// Frees the blocks of the range whose numbers are in one table. Returns where the next table
/// begins.
async fn free_in_table<O: Operation>(work: &mut Work<O>, inode: &mut Inode, range: Range<u64>) -> Result<u64, Error> {
    let path = Path::new(&work.layout, range.start).ok_or_else(too_large)?;
    let tables = tables_of(work, inode, &path).await?;
    let slot = path.slots[path.depth];
    let slots = if path.depth == 0 { DIRECT_BLOCKS as u32 } else { work.layout.numbers_per_block() };
    let count = u64::from(slots - slot).min(range.end - range.start) as u32;
    for slot in slot..slot + count {
        let number = match tables.last() {
            None => std::mem::take(&mut inode.blocks[slot as usize]),
            Some(&table) => {
                let bytes = work.operation.change(table, Object::Indirect(inode.number)).await?;
                let number = u32::from_le_bytes(bytes[slot as usize * 4..][..4].try_into().expect("four bytes"));
                set_number(bytes, slot, 0);
                number
            }
        };
        if number != 0 {
            free_one(work, inode, BlockNumber(number)).await?;
        }
    }
    free_empty_tables(work, inode, &path, &tables).await?;
    Ok(range.start + u64::from(count))
}

/// The tables on the path to block `at` of a file, from the inode on.
pub async fn tables_to<O: Operation>(work: &mut Work<O>, inode: &Inode, at: u64) -> Result<Vec<BlockNumber>, Error> {
    let path = Path::new(&work.layout, at).ok_or_else(too_large)?;
    tables_of(work, inode, &path).await
}

/// The tables on a path, from the inode on.
async fn tables_of<O: Operation>(work: &mut Work<O>, inode: &Inode, path: &Path) -> Result<Vec<BlockNumber>, Error> {
    let mut tables = Vec::with_capacity(path.depth);
    let mut number = BlockNumber(inode.blocks[path.slots[0] as usize]);
    for slot in &path.slots[1..=path.depth] {
        work.layout.check_content(number, inode.number)?;
        tables.push(number);
        number = BlockNumber(number_at(&work.operation.read(number, Object::Indirect(inode.number)).await?, *slot));
    }
    Ok(tables)
}

async fn free_empty_tables<O: Operation>(
    work: &mut Work<O>,
    inode: &mut Inode,
    path: &Path,
    tables: &[BlockNumber],
) -> Result<(), Error> {
    for level in (0..tables.len()).rev() {
        let table = work.operation.read(tables[level], Object::Indirect(inode.number)).await?;
        if table.iter().any(|byte| *byte != 0) {
            return Ok(());
        }
        free_one(work, inode, tables[level]).await?;
        let slot = path.slots[level];
        match level.checked_sub(1) {
            None => inode.blocks[slot as usize] = 0,
            Some(above) => {
                set_number(work.operation.change(tables[above], Object::Indirect(inode.number)).await?, slot, 0);
            }
        }
    }
    Ok(())
}

async fn free_one<O: Operation>(work: &mut Work<O>, inode: &mut Inode, number: BlockNumber) -> Result<(), Error> {
    allocation::free(work, number, inode.number).await?;
    let fewer = inode.sectors.checked_sub(work.sectors_per_block());
    inode.sectors = fewer.ok_or_else(|| Error::corrupt(format!("{} has more blocks than it counts", inode.number)))?;
    Ok(())
}

/// Frees blocks of a file from its end backwards, until those from `from` on are free or
/// `blocks_max` were passed. Returns how many blocks the file then has at most.
pub async fn free_tail<O: Operation>(
    work: &mut Work<O>,
    inode: &mut Inode,
    from: u64,
    blocks_max: u32,
) -> Result<u64, Error> {
    // Begins at the reach of three levels: blocks behind the file's end, which should not exist,
    // are freed as well.
    let mut end = Path::reach_max(&work.layout);
    while end > from {
        match lookup(work, inode, end - 1).await? {
            Place::Hole(hole) => end = hole.start.max(from),
            Place::Block(_) => {
                let start = end.saturating_sub(u64::from(blocks_max)).max(from);
                free_range(work, inode, start..end).await?;
                return Ok(start);
            }
        }
    }
    Ok(from)
}
