//! A mount that shares its file system with mounts of other hosts.

use std::pin::Pin;
use std::sync::Arc;

use base::clock::Clock;
use initiator::{RemoteLun, State};
use scsi::sharing::report::ReportRecord;
use sharedfs::Hosts;

use crate::error::{Error, Failure, Result};
use crate::remotes::Remotes;

/// What the file system asks of the logical unit and its other hosts.
///
/// # Errors
/// `Usage` for what is no single logical unit.
pub(super) fn hosts_of(remotes: Option<&Remotes>, clock: Arc<dyn Clock>) -> Result<Hosts> {
    let luns = remotes.map(Remotes::member_luns).unwrap_or_default().into_iter().flat_map(|member| member.luns);
    let [lun] = <[Arc<RemoteLun>; 1]>::try_from(luns.collect::<Vec<_>>()).map_err(|_| {
        Error::new(Failure::Usage, "--shared takes the URL of one logical unit, by one path: locks are at its target")
    })?;
    let asked = Arc::clone(&lun);
    let probe = move || -> Pin<Box<dyn Future<Output = _> + Send>> {
        let lun = Arc::clone(&asked);
        Box::pin(async move { probe(&lun).await.map_err(ext2::Error::from) })
    };
    let others = move || -> Pin<Box<dyn Future<Output = _> + Send>> {
        let lun = Arc::clone(&lun);
        Box::pin(async move { has_others(&lun).await.map_err(ext2::Error::from) })
    };
    Ok(Hosts { clock, others: Arc::new(others), probe: Arc::new(probe) })
}

/// Asks whether the logical unit answers. `Gone` only where it never does again: one that is away
/// may come back within the lease.
async fn probe(lun: &RemoteLun) -> std::result::Result<(), block::Error> {
    let answered = lun.check_answers().await;
    let is_for_good = matches!(lun.status().state, State::Fenced | State::Replaced | State::Closed);
    answered.map_err(|error| match error.kind() {
        block::ErrorKind::Gone if !is_for_good => block::Error::new(block::ErrorKind::TimedOut, error.to_string()),
        _ => error,
    })
}

/// Whether the target knows of other clients, or that some of before its start may come back.
async fn has_others(lun: &RemoteLun) -> std::result::Result<bool, block::Error> {
    let records = lun.sharing_report().await?;
    let own = lun.status().sharing.and_then(|sharing| sharing.client);
    let is_other =
        |record: &ReportRecord| matches!(record, ReportRecord::Client { client, .. } if Some(*client) != own);
    Ok(records.iter().any(is_other))
}

/// Refuses a mount that others do not know of, of a logical unit that hosts may share.
///
/// # Errors
/// `Usage`, saying what to do.
pub(super) fn check_alone(remotes: &Remotes) -> Result<()> {
    let is_sharable = |lun: &Arc<RemoteLun>| lun.sharing_support().is_some();
    if !remotes.member_luns().iter().flat_map(|member| &member.luns).any(is_sharable) {
        return Ok(());
    }
    let message = "this logical unit is served with the option \"shared\": other hosts may change its file system \
                   while this mount does not hear of it, which destroys it. Mount it with --shared, on every host";
    Err(Error::new(Failure::Usage, message))
}
