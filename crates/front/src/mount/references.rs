//! The inodes that the kernel knows, with a count of how often each was returned to it.
//!
//! It knows an inode while a program has it open, has it as its directory, or may ask for it again;
//! then it forgets it. An inode that loses its last name while it is known is freed when it is
//! forgotten, so no program ever finds another file under a number that it holds.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ext2::{Blocks, Error, FileSystem, Metadata};
use fuser::INodeNo;

use super::view::View;

/// The inodes that the kernel knows, with their counts.
#[derive(Default)]
pub(super) struct References {
    /// Short sections, never across an await.
    known: Mutex<BTreeMap<INodeNo, Known>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// The generation of the file among those with its number.
    generation: u32,
    /// How often it was returned to the kernel and not forgotten.
    count: u64,
    /// Whether the kernel has asked anything of it: so it has got it.
    was_asked: bool,
}

impl References {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<INodeNo, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an inode that is about to be returned to the kernel. Returns its present attributes;
    /// `None` when its number belongs to another file by now.
    pub(super) async fn add<B: Blocks>(
        &self,
        file_system: &FileSystem<B>,
        view: View,
        found: Metadata,
    ) -> Result<Option<Metadata>, Error> {
        let (inode, generation) = (found.inode, found.generation);
        let node = view.node_of(&found);
        if let Some(known) = self.lock().get_mut(&node) {
            known.count += u64::from(known.generation == generation);
            return Ok((known.generation == generation).then_some(found));
        }
        file_system.open_file(inode).await?;
        let now = file_system.metadata(inode).await;
        let is_same = now.as_ref().is_ok_and(|now| now.generation == generation);
        let is_first = is_same && self.enter(node, generation);
        if !is_first {
            // An earlier reference keeps it open.
            match view.is_shared {
                // If not, the next mount frees it.
                true => file_system.end_use(inode).await.map(drop)?,
                false => file_system.close_file(inode).await?,
            }
        }
        now.map(|now| is_same.then_some(now))
    }

    /// Counts the inode. Returns whether it was not known before.
    fn enter(&self, node: INodeNo, generation: u32) -> bool {
        let mut all = self.lock();
        let known = all.entry(node).or_insert(Known { generation, count: 0, was_asked: false });
        known.count += 1;
        known.count == 1
    }

    /// The kernel asks something of these inodes.
    pub(super) fn note_asked(&self, nodes: &[INodeNo]) {
        let mut all = self.lock();
        nodes.iter().for_each(|node| {
            if let Some(known) = all.get_mut(node) {
                known.was_asked = true;
            }
        });
    }

    /// Whether the kernel has an inode for certain.
    pub(super) fn was_asked(&self, node: INodeNo) -> bool {
        node == INodeNo::ROOT || self.lock().get(&node).is_some_and(|known| known.was_asked)
    }

    /// Lowers the count of an inode that the kernel forgets. Returns whether it is not known any
    /// more, and must be closed.
    pub(super) fn remove(&self, node: INodeNo, count: u64) -> bool {
        let mut all = self.lock();
        let Some(known) = all.get_mut(&node) else { return false };
        known.count = known.count.saturating_sub(count);
        let is_last = known.count == 0;
        if is_last {
            all.remove(&node);
        }
        is_last
    }

    /// Takes all known inodes, to be closed.
    pub(super) fn take_all(&self) -> Vec<INodeNo> {
        std::mem::take(&mut *self.lock()).into_keys().collect()
    }

    /// How many inodes it knows.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }
}
