//! COMPARE AND WRITE at the LUN itself, where this host keeps none of its data: other hosts may
//! write there at the same time, and only the LUN can do it atomically for all.

use std::sync::Arc;

use block::Buffer;
use initiator::{Compared, RemoteLun};
use logical_unit::{CompareAndWrite, Comparing, Comparison};

use super::Stack;

impl Stack {
    /// The LUN, for COMPARE AND WRITE, where the stack is one LUN by one path and nothing else.
    /// With a cache, a log or a difference, this host is the only writer, and the newest data may
    /// be here.
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
