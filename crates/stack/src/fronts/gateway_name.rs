//! The target name of the gateways of one attachment, which no other attachment of this host may have.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::Result;
use crate::name_lock::NameLock;

/// The name's lock, once a front has it. Clones are of the same attachment.
#[derive(Clone, Debug, Default)]
pub(crate) struct GatewayName(Arc<Mutex<Weak<NameLock>>>);

impl GatewayName {
    /// The lock on `iqn`, in the `folder` of gateways: the first front of the attachment takes it, and
    /// it is held until the last has ended.
    ///
    /// # Errors
    /// `InUse` when another attachment has a gateway of that name.
    pub(super) fn take(&self, folder: &Path, iqn: &str) -> Result<Arc<NameLock>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = known.upgrade() {
            return Ok(taken);
        }
        let taken = NameLock::take_in(folder, iqn, |process| {
            format!(
                "{iqn} is the name of another attachment's gateway (process {process}), and initiators take two \
                 targets of one name for two ways to one disk: give another name with --set iscsi.name=IQN, or give \
                 one attachment --as twice"
            )
        })?;
        let taken = Arc::new(taken);
        *known = Arc::downgrade(&taken);
        Ok(taken)
    }
}
