//! A remote LUN as a block device.

use std::future::poll_fn;
use std::sync::Arc;

use block::{
    ByteRange, Completion, Copies, Device, Error, ErrorKind, EventReceiver, Geometry, Grants, Identity, Request,
};
use scsi::sharing::Support;
use tokio::sync::{oneshot, watch};

use crate::change_guard::ChangeGuard;
use crate::changed_ranges;
use crate::raw_command::{RawCdb, RawCommand, RawOutcome, Repeat};
use crate::shared::{Incoming, Shared};
use crate::sharing::SharingClient;
use crate::status::Status;

/// A logical unit that is reached through an iSCSI session. Its [`Driver`](crate::Driver) does the
/// work.
pub struct RemoteLun {
    place: String,
    shared: Arc<Shared>,
}

impl RemoteLun {
    pub(crate) fn new(place: String, shared: Arc<Shared>) -> Self {
        Self { place, shared }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Notifies the layers above that other hosts have changed these bytes: copies of them are
    /// void.
    pub fn invalidate(&self, ranges: &[ByteRange]) {
        let size_bytes = self.geometry().size_bytes;
        let changed = ranges.iter().filter_map(|&range| changed_ranges::within(range, size_bytes));
        changed_ranges::publish(&self.shared.events, changed.collect(), size_bytes);
    }

    /// Sets what decides about changes by others, once. It is of use where a change mark is held.
    pub fn set_guard(&self, guard: ChangeGuard) {
        // Another one would have been set by the same caller.
        let _ = self.shared.guard.set(guard);
    }

    /// The ranges that others had changed, as the last new session heard; of a LUN with a guard.
    pub fn reported_changes(&self) -> Vec<ByteRange> {
        self.shared.guard.get().map(ChangeGuard::reported).unwrap_or_default()
    }

    /// The URL of the LUN, `iscsi://...`.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Its T10 vendor identification, by INQUIRY.
    pub fn vendor(&self) -> String {
        self.shared.view().vendor.clone()
    }

    /// The state and the counts of the attachment.
    pub fn status(&self) -> Status {
        self.shared.view().status.clone()
    }

    /// The times and bounds for hosts that share the LUN; `None` where it cannot be shared, or the
    /// target does not coordinate the hosts.
    pub fn sharing_support(&self) -> Option<Support> {
        self.shared.view().sharing
    }

    /// This host as a client of the shared LUN, for sessions through other portals to join; `None` where it is not
    /// shared.
    pub fn sharing_client(&self) -> Option<SharingClient> {
        self.shared.client().map(|path| path.client().clone())
    }

    /// Waits until this session is a path of its client; at once where the LUN is not shared. The caller bounds the
    /// time.
    ///
    /// # Errors
    /// `Unsupported` for a session that was to join a client and whose target does not know that; `Gone` when the
    /// client, or the session, has ended.
    pub async fn joined(&self) -> Result<(), Error> {
        match self.shared.client() {
            Some(path) => path.joined().await,
            None => Ok(()),
        }
    }

    /// Sends a SCSI command as it is and returns what came back. It is never issued twice.
    ///
    /// # Errors
    /// `InvalidRange` when the CDB is longer than 16 bytes or data goes both ways, `OutcomeUnknown` when the session is
    /// lost, `Gone` when there is none.
    pub async fn execute(&self, cdb: &[u8], data_out: &[u8], data_in_length: usize) -> Result<RawOutcome, Error> {
        if cdb.len() > 16 || (!data_out.is_empty() && data_in_length > 0) {
            let words = "a command has a CDB of at most 16 bytes and moves data one way";
            return Err(Error::new(ErrorKind::InvalidRange, words));
        }
        if data_out.len().max(data_in_length) > base::limits::BUFFER_BYTES_MAX {
            return Err(Error::new(ErrorKind::InvalidRange, "a command that moves more than any buffer holds"));
        }
        let (cdb, data_out) = (RawCdb::of_bytes(cdb), data_out.to_vec());
        let range = ByteRange::default();
        self.carry_out(RawCommand { repeat: Repeat::Never, range, cdb, data_out, data_in_length }).await
    }

    /// Sends a command that was checked.
    pub(crate) async fn carry_out(&self, raw: RawCommand) -> Result<RawOutcome, Error> {
        let (sender, receiver) = oneshot::channel();
        self.shared.send(Incoming::Raw(raw, sender));
        let stopped = |_| Error::new(ErrorKind::OutcomeUnknown, format!("the driver of {} has ended", self.place));
        receiver.await.map_err(stopped)?
    }

    /// Counts how often the target reported that its list of LUNs has changed (REPORTED LUNS DATA
    /// HAS CHANGED) in a session of this LUN. A receiver that needs the list reads it again.
    /// Changes while there is no session are not counted.
    pub fn lun_list_changes(&self) -> watch::Receiver<u64> {
        self.shared.lun_list_changes()
    }

    /// Changes how many connections the session has, or pairs when they are split, while requests go on. The target may
    /// allow fewer.
    pub fn set_connections(&self, count: u16) {
        self.shared.want_connections(count);
    }

    /// Tries to reconnect at once, and begins again with the shortest wait between attempts. An attempt under way is
    /// given up for it. Does nothing where there is a session.
    pub fn reconnect_now(&self) {
        self.shared.request_reconnect();
    }

    /// Answers what has been submitted, flushes the LUN's cache and logs out. Returns when the
    /// driver has ended.
    ///
    /// # Errors
    /// Acknowledged writes may not be durable, and no flush of a client has reported that: the last
    /// flush or an earlier flush of our own failed, or the LUN could not be reached. The error is
    /// that of the flush, `OutcomeUnknown` where there was none.
    pub async fn close(&self) -> Result<(), Error> {
        self.shared.close(&self.place);
        poll_fn(|context| self.shared.poll_stopped(context)).await
    }
}

impl Device for RemoteLun {
    fn geometry(&self) -> Geometry {
        self.shared.view().geometry
    }

    fn identity(&self) -> Identity {
        self.shared.view().identity.clone()
    }

    fn submit(&self, request: Request) -> Completion {
        if let Err(error) = self.geometry().check(&request) {
            return Completion::ready(request.fail(error));
        }
        let (completion, sender) = Completion::slot();
        let tenure = self.shared.copies().and_then(Copies::grants).and_then(Grants::whole_tenure);
        self.shared.send(Incoming::Request(request, sender, tenure));
        completion
    }

    fn subscribe(&self) -> EventReceiver {
        self.shared.events.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        self.shared.copies().cloned()
    }
}
