//! An unfair client: it sends as many commands as it can, of the kind that costs the target most.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use initiator::{InitiatorOptions, RemoteLun, TcpConnector};
use scsi::Cdb;
use scsi::cdb::{Blocks, Transfer, Verification, WriteSame};
use scsi::extended_copy::{Segment, emit_list};
use scsi::sharing::{Lock, Mode, Parameters, Resource};
use scsi::unmap::{self, Descriptor};
use scsi::vpd::{self, Designator, page};
use tokio::task::JoinSet;

use crate::flood::{self, Flood};
use crate::{BLOCK_BYTES, Result};

/// Locks of one request: as many as a target accepts.
const LOCKS: u64 = 64;
/// Block groups that the requests of all clients name.
const GROUPS: u64 = 256;

/// A kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Attack {
    /// WRITE SAME of 32 MiB, block by block, all of the same blocks
    WriteSame,
    /// UNMAP of 256 ranges of 512 KiB
    Unmap,
    /// COMPARE AND WRITE of one block
    CompareAndWrite,
    /// COMPARE AND WRITE of 64 KiB
    LongCompareAndWrite,
    /// TEST UNIT READY in 32 sessions of each client
    TestUnitReady,
    /// READ of 4 KiB
    SmallRead,
    /// READ of 1 MiB
    Read,
    /// WRITE of 256 KiB whose data comes with the command
    ImmediateWrite,
    /// WRITE of 1 MiB whose data is asked for
    SolicitedWrite,
    /// NOP-Out with 256 KiB of data
    Ping,
    /// Text requests of 16 KiB
    Text,
    /// READ of 16 MiB
    LongRead,
    /// WRITE of 16 MiB
    LongWrite,
    /// VERIFY of 16 MiB
    LongVerify,
    /// EXTENDED COPY of 64 segments of 32 MiB, all from and to the same blocks
    Copy,
    /// LOCK of 64 block groups that others hold, taken back at once
    Locks,
    /// Transactions that lock block groups in any order, so that circles close
    Circles,
}

impl Attack {
    /// Commands in flight of each client.
    fn depth(self) -> u64 {
        match self {
            Self::LongRead | Self::LongWrite | Self::LongVerify | Self::Copy => 8,
            Self::WriteSame | Self::TestUnitReady | Self::Read | Self::ImmediateWrite | Self::SolicitedWrite => 32,
            Self::SmallRead => 100,
            Self::Unmap | Self::Locks | Self::Circles => 64,
            Self::CompareAndWrite | Self::LongCompareAndWrite => 128,
            Self::Ping | Self::Text => 1,
        }
    }

    /// Sessions of each client.
    fn sessions(self) -> u64 {
        if self == Self::TestUnitReady { 32 } else { 1 }
    }

    fn is_of_locks(self) -> bool {
        matches!(self, Self::Locks | Self::Circles)
    }

    /// One command, for those that are all alike: it, what it writes, and how many bytes it brings. `own_name` is that
    /// of the logical unit.
    fn command(self, own_name: u64) -> (Cdb, Vec<u8>, usize) {
        let blocks = |bytes: usize| Blocks::sixteen(0, (bytes / BLOCK_BYTES) as u32);
        let transfer = |bytes| Transfer { blocks: blocks(bytes), is_dpo: false, is_fua: false };
        let compare = |count: u8| {
            let cdb = Cdb::CompareAndWrite { lba: 0, block_count: count, is_dpo: false, is_fua: false };
            (cdb, vec![0; 2 * usize::from(count) * BLOCK_BYTES], 0)
        };
        match self {
            Self::WriteSame => {
                let blocks = Blocks::sixteen(0, u32::from(u16::MAX));
                let same = WriteSame { blocks, is_unmap: false, is_anchor: false, has_no_data_out: false };
                (Cdb::WriteSame(same), vec![7; BLOCK_BYTES], 0)
            }
            Self::Unmap => {
                let range = |number: u64| Descriptor { lba: number * 1024, block_count: 1024 };
                let list = unmap::emit(&(0..256).map(range).collect::<Vec<_>>());
                (Cdb::Unmap { is_anchor: false, parameter_list_length: list.len() as u16 }, list, 0)
            }
            Self::CompareAndWrite => compare(1),
            Self::LongCompareAndWrite => compare(128),
            Self::SmallRead => (Cdb::Read(transfer(4 << 10)), Vec::new(), 4 << 10),
            Self::Read => (Cdb::Read(transfer(1 << 20)), Vec::new(), 1 << 20),
            Self::ImmediateWrite => (Cdb::Write(transfer(256 << 10)), vec![7; 256 << 10], 0),
            Self::SolicitedWrite => (Cdb::Write(transfer(1 << 20)), vec![7; 1 << 20], 0),
            Self::LongRead => (Cdb::Read(transfer(16 << 20)), Vec::new(), 16 << 20),
            Self::LongWrite => (Cdb::Write(transfer(16 << 20)), vec![7; 16 << 20], 0),
            Self::LongVerify => {
                let verification = Verification { blocks: blocks(16 << 20), byte_check: 0, is_dpo: false };
                (Cdb::Verify(verification), Vec::new(), 0)
            }
            Self::Copy => {
                let list = copy_list(own_name);
                (Cdb::ExtendedCopy { parameter_list_length: list.len() as u32 }, list, 0)
            }
            Self::TestUnitReady | Self::Locks | Self::Circles | Self::Ping | Self::Text => {
                (Cdb::TestUnitReady, Vec::new(), 0)
            }
        }
    }

    fn flood(self, own_name: u64) -> Flood {
        let (cdb, data_out, data_in_bytes) = self.command(own_name);
        Flood { cdb, data_in_bytes, data_out, depth: self.depth(), sessions: self.sessions() }
    }

    /// Attacks until the process is ended, with PDUs that are made once. Locks are the exception: no request of them is
    /// like another, and they take a registered client, which our initiator is. A client that asks for locks and takes
    /// none of the messages about them is fenced soon: it comes back as another one.
    pub async fn run(self, url: &str, number: usize) -> Result<()> {
        let name = format!("iqn.2026-11.io.forebay:unfair{number}");
        let options = self.options(url, &name)?;
        match self {
            Self::Ping => return flood::pings(&options),
            Self::Text => return flood::texts(&options),
            Self::Locks | Self::Circles => {}
            _ => {
                let lun = self.connect(url, &name).await?;
                let own_name = own_name(&lun).await?;
                lun.close().await?;
                return self.flood(own_name).run(&options);
            }
        }
        loop {
            // The end of one is the beginning of the next.
            let _ = self.lock_once(url, &name).await;
        }
    }

    async fn lock_once(self, url: &str, name: &str) -> Result<()> {
        let requests = Arc::new(AtomicU64::new(1));
        let mut tasks = JoinSet::new();
        let lun = self.connect(url, name).await?;
        for task in 0..self.depth() {
            let (lun, requests) = (Arc::clone(&lun), Arc::clone(&requests));
            tasks.spawn(async move {
                loop {
                    match self {
                        Self::Circles => transact(&lun, &requests, task).await?,
                        _ => ask_and_cancel(&lun, &requests).await?,
                    }
                }
            });
        }
        tasks.join_next().await.ok_or("an attack has tasks")??
    }

    fn options(self, url: &str, name: &str) -> Result<InitiatorOptions> {
        let url = url.parse()?;
        let is_shared = self.is_of_locks();
        let initiator_name = name.to_owned();
        Ok(InitiatorOptions { initiator_name, is_shared, ..InitiatorOptions::for_url(&url) })
    }

    async fn connect(self, url: &str, name: &str) -> Result<Arc<RemoteLun>> {
        let (lun, driver) = initiator::connect(self.options(url, name)?, Arc::new(TcpConnector)).await?;
        tokio::spawn(driver);
        Ok(lun)
    }
}

/// The name of the logical unit in lists of copies.
async fn own_name(lun: &RemoteLun) -> Result<u64> {
    let inquiry = Cdb::Inquiry { is_vpd: true, page: page::DEVICE_IDENTIFICATION, allocation_length: 255 };
    let names = lun.execute(&inquiry.emit(), &[], 255).await?;
    let mut names = vpd::parse_device_identification(&names.data_in).into_iter().flatten();
    let name = names.find_map(|name| match name {
        Designator::Naa(name) => Some(name),
        _ => None,
    });
    Ok(name.ok_or("a logical unit has a name")?)
}

/// A list of copies of a logical unit to itself, from the start to behind the first 64 MiB.
fn copy_list(name: u64) -> Vec<u8> {
    let block_count = u16::MAX;
    let destination_lba = (64 << 20) / BLOCK_BYTES as u64;
    let segment = Segment { source: 0, destination: 0, block_count, source_lba: 0, destination_lba };
    emit_list(None, &[(name, BLOCK_BYTES as u32)], &[segment; 64])
}

/// Requests block groups that other clients hold, and cancels the request.
async fn ask_and_cancel(lun: &RemoteLun, requests: &AtomicU64) -> Result<()> {
    let request = requests.fetch_add(1, Ordering::Relaxed);
    let groups = (0..LOCKS - 1).map(|index| (request + index * 3) % GROUPS);
    order(lun, &Parameters::Lock { request, transaction: 0, is_reclaim: false, locks: exclusive(groups) }).await?;
    order(lun, &Parameters::Cancel { request }).await
}

/// Locks a few block groups one after the other, in an order of its own.
async fn transact(lun: &RemoteLun, requests: &AtomicU64, task: u64) -> Result<()> {
    let transaction = task as u32 + 1;
    order(lun, &Parameters::Begin { transaction, birth: 0 }).await?;
    for step in 0..4 {
        let request = requests.fetch_add(1, Ordering::Relaxed);
        let group = (request * 7 + step) % 16;
        order(lun, &Parameters::Lock { request, transaction, is_reclaim: false, locks: exclusive([group]) }).await?;
    }
    order(lun, &Parameters::End { transaction }).await
}

/// Exclusive locks of block groups, behind the intention lock of the unit.
fn exclusive(groups: impl IntoIterator<Item = u64>) -> Vec<Lock> {
    let root = Lock { resource: Resource::File(0), mode: Some(Mode::IntentionExclusive), grant: 0 };
    let leaf = |group| Lock { resource: Resource::Group(0, group), mode: Some(Mode::Exclusive), grant: 0 };
    [root].into_iter().chain(groups.into_iter().map(leaf)).collect()
}

/// Sends `parameters`; a refusal is no error.
async fn order(lun: &RemoteLun, parameters: &Parameters) -> Result<()> {
    let client = lun.status().sharing.and_then(|sharing| sharing.client).unwrap_or_default();
    let list = parameters.emit();
    let (service_action, parameter_list_length) = (parameters.action(), list.len() as u32);
    let cdb = Cdb::SharingOut { service_action, client, parameter_list_length };
    lun.execute(&cdb.emit(), &list, 0).await?;
    Ok(())
}
