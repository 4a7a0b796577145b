//! A command under way, and the ways to carry it out.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use block::{Buffer, ByteRange};
use scsi::Status;

use crate::admission::Admission;
use crate::command::{Command, Outcome};
use crate::execution::Execution;
use crate::failure::Failure;
use crate::nexus::NexusId;
use crate::sharing::Direction;
use crate::task_set::Ticket;
use crate::unit::LogicalUnit;

/// A command under way, with its unit and its nexus.
pub(crate) struct Task<'a> {
    pub(crate) unit: &'a Arc<LogicalUnit>,
    pub(crate) nexus: &'a NexusId,
    pub(crate) command: Command,
    pub(crate) admission: Admission,
}

impl Task<'_> {
    /// Carries out a command that takes several steps.
    pub(super) fn run(&self, steps: impl Future<Output = Result<Buffer, Failure>> + Send + 'static) -> Execution {
        self.run_to(async move { Outcome::from(steps.await) })
    }

    /// Like [`run`](Self::run), for many steps: between two steps it checks its ticket for an
    /// abort.
    pub(super) fn run_long<Steps>(&self, steps: impl FnOnce(Arc<Ticket>) -> Steps) -> Execution
    where
        Steps: Future<Output = Result<Buffer, Failure>> + Send + 'static,
    {
        let ticket = Arc::new(self.unit.enter(self.nexus, &self.command));
        let steps = steps(Arc::clone(&ticket));
        Execution::task(async move { Outcome::from(steps.await) }, ticket, self.unit.workers())
    }

    /// Makes durable what the nexus wrote.
    pub(super) fn run_flush(&self) -> Execution {
        self.run_long(|ticket| {
            let flush = self.unit.flush(self.nexus, ticket);
            async move { flush.await.map(|()| Buffer::empty()) }
        })
    }

    /// Carries out a command that changes a range, once it holds that exclusively. Its place in the
    /// queue of the range is taken at once. If it was aborted or a sanitize began while it waited,
    /// nothing of it is carried out.
    pub(super) fn run_alone<Steps>(&self, range: ByteRange, steps: impl FnOnce(Arc<Ticket>) -> Steps) -> Execution
    where
        Steps: Future<Output = Result<Buffer, Failure>> + Send + 'static,
    {
        let place = self.unit.access.enter(self.nexus, range, Direction::Change);
        let (unit, admission) = (Arc::clone(self.unit), self.admission);
        self.run_long(|ticket| {
            let steps = steps(Arc::clone(&ticket));
            async move {
                let _entry = place.take(Some(&ticket)).await?;
                admission.check(&unit, &ticket)?;
                steps.await
            }
        })
    }

    /// Like [`run`](Self::run), with steps that make the outcome themselves.
    fn run_to(&self, steps: impl Future<Output = Outcome> + Send + 'static) -> Execution {
        let ticket = self.unit.enter(self.nexus, &self.command);
        Execution::task(steps, Arc::new(ticket), self.unit.workers())
    }

    /// Carries out a command that reads a range, once it holds that shared. Its place in the queue
    /// of the range is taken at once.
    pub(super) fn run_beside(
        &self,
        range: ByteRange,
        direction: Direction,
        steps: impl Future<Output = Outcome> + Send + 'static,
    ) -> Execution {
        let place = self.unit.access.enter(self.nexus, range, direction);
        let ticket = Arc::new(self.unit.enter(self.nexus, &self.command));
        let own = Arc::clone(&ticket);
        let steps = async move {
            match place.take(Some(&own)).await {
                Ok(_entry) => steps.await,
                Err(failure) => Outcome::from(Err(failure)),
            }
        };
        Execution::task(steps, ticket, self.unit.workers())
    }

    /// The data-out, exactly as long as the CDB asks: more is cut, less is refused.
    pub(super) fn take_data_out(&mut self, bytes: u64) -> Result<Buffer, Failure> {
        let data_out = self.take_data_out_up_to(bytes);
        if data_out.len() as u64 == bytes {
            Ok(data_out)
        } else {
            Err(scsi::Sense::INVALID_FIELD_IN_INFORMATION_UNIT.into())
        }
    }

    /// The data-out, at most as long as the CDB asks.
    pub(super) fn take_data_out_up_to(&mut self, bytes: u64) -> Buffer {
        let mut data_out = std::mem::take(&mut self.command.data_out);
        let length = usize::try_from(bytes).map_or(data_out.len(), |bytes| bytes.min(data_out.len()));
        data_out.set_length(length);
        data_out
    }
}

/// Yields to other tasks, which a device that answers at once would not do.
pub(super) async fn give_way() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Between two pieces of a long command: yields to other tasks, and ends the command if it was
/// aborted meanwhile.
pub(super) async fn between_pieces(ticket: &Ticket) -> Result<(), Failure> {
    give_way().await;
    // The status that is sent, if any, depends on the kind of abort.
    if ticket.abort().is_some() { Err(Failure::Status(Status::TaskAborted)) } else { Ok(()) }
}

/// A command that is refused.
pub(super) fn refuse(failure: impl Into<Failure>) -> Execution {
    Execution::ready(Outcome::from(Err(failure.into())))
}

/// A command without effect.
pub(super) fn nothing() -> Execution {
    Execution::ready(Outcome::good(Buffer::empty()))
}
