//! COMPARE AND WRITE at the LUN itself, where nothing of it is held here: then others may write it at the same time,
//! and only there it is atomic for all.

use std::sync::Arc;

use block::Buffer;
use initiator::{Compared, RemoteLun};
use logical_unit::{CompareAndWrite, Comparing, Comparison};

use super::Stack;

impl Stack {
    /// Who compares and writes for those above: the LUN, where the stack is one LUN by one path and nothing else. With
    /// a cache, a log or a difference between, this host is the only one that writes it, and what is newest may be
    /// here.
    pub(crate) fn compares_below(&self) -> Option<Arc<dyn CompareAndWrite>> {
        let is_bare = self.cache().is_none() && self.log.is_none() && self.difference.is_none();
        let lun = self.remotes.single().filter(|_| is_bare)?;
        Some(Arc::new(AtLun(lun)))
    }
}

struct AtLun(Arc<RemoteLun>);

impl CompareAndWrite for AtLun {
    fn compare_and_write(&self, offset: u64, data: Buffer) -> Comparing {
        let lun = Arc::clone(&self.0);
        Box::pin(async move {
            let (expected, new) = data.split_at(data.len() / 2);
            let compared = lun.compare_and_write(offset, expected, new).await?;
            Ok(match compared {
                Compared::Written => Comparison::Written,
                Compared::Different { at } => Comparison::Different { at },
            })
        })
    }
}
