//! The open files of each client, and their modes: a file that is unlinked stays until no client
//! has it open.

use std::collections::BTreeMap;

use crate::error::{LockError, Table};
use crate::identity::ClientId;
use crate::resource::FileId;

/// How a file is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpenMode {
    /// To read.
    Read,
    /// To read and write.
    Write,
}

/// Files, the clients that have them open, and how many times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpenFiles {
    counts: BTreeMap<(FileId, ClientId, OpenMode), u32>,
    /// How many times each client has a file open.
    totals: BTreeMap<ClientId, usize>,
}

impl OpenFiles {
    /// Counts one more opening of a file by a client.
    ///
    /// # Errors
    /// When it has too many open.
    pub fn open(&mut self, client: ClientId, file: FileId, mode: OpenMode, max: usize) -> Result<(), LockError> {
        let total = self.totals.entry(client).or_insert(0);
        if *total >= max {
            return Err(LockError::Full(Table::OpenFiles));
        }
        *total += 1;
        *self.counts.entry((file, client, mode)).or_insert(0) += 1;
        Ok(())
    }

    /// Counts one closing of a file by a client. Returns whether no client has it open any more.
    ///
    /// # Errors
    /// When the client has not opened it in this mode.
    pub fn close(&mut self, client: ClientId, file: FileId, mode: OpenMode) -> Result<bool, LockError> {
        let count = self.counts.get_mut(&(file, client, mode)).ok_or(LockError::NotOpen(file))?;
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&(file, client, mode));
        }
        if let Some(total) = self.totals.get_mut(&client) {
            *total -= 1;
        }
        Ok(!self.is_open(file))
    }

    /// How many times a client has files open.
    pub fn count_of(&self, client: ClientId) -> usize {
        self.totals.get(&client).copied().unwrap_or(0)
    }

    /// How many times all clients have files open.
    pub fn count(&self) -> usize {
        self.totals.values().sum()
    }

    /// Whether any client has a file open.
    pub fn is_open(&self, file: FileId) -> bool {
        self.users(file).next().is_some()
    }

    /// The clients that have a file open, with mode and count.
    pub fn users(&self, file: FileId) -> impl Iterator<Item = (ClientId, OpenMode, u32)> {
        let all =
            (file, ClientId::from_bits(0), OpenMode::Read)..=(file, ClientId::from_bits(u64::MAX), OpenMode::Write);
        self.counts.range(all).map(|((_, client, mode), count)| (*client, *mode, *count))
    }

    /// Removes a client whose life is over. Returns whether it had a file open that no client has open any more.
    pub fn forget(&mut self, client: ClientId) -> bool {
        if self.totals.remove(&client).is_none() {
            return false;
        }
        let its: Vec<FileId> =
            self.counts.extract_if(.., |(_, of, _), _| *of == client).map(|((file, ..), _)| file).collect();
        its.into_iter().any(|file| !self.is_open(file))
    }
}
