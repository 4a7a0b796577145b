//! Background work on a thread of its own, so that requests need not wait for their turn while it computes.

use std::future::Future;
use std::thread::JoinHandle;

use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// The thread. It ends when the work does, or when this is dropped.
pub(crate) struct WorkerThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WorkerThread {
    /// Starts the work. `name` is the thread's name, for debuggers.
    ///
    /// # Errors
    /// When the system cannot start a thread.
    pub(crate) fn start(name: &str, work: impl Future<Output = ()> + Send + 'static) -> Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::io(format!("there is no runtime for {name}"), &error))?;
        let (stop, is_stopped) = oneshot::channel();
        let run = async {
            tokio::select! {
                () = work => {}
                // Also when the sender was dropped.
                _ = is_stopped => {}
            }
        };
        // Its log lines have the span of the thread that starts it.
        let span = tracing::Span::current();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || span.in_scope(|| runtime.block_on(run)))
            .map_err(|error| Error::io(format!("there is no thread for {name}"), &error))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Its panic has been reported on its thread.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_its_thread_and_ends_with_it() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let worker = WorkerThread::start("destaging", async move {
            let name = std::thread::current().name().map(str::to_owned);
            sender.send(name).expect("the test waits");
            std::future::pending::<()>().await;
        })
        .unwrap();
        assert_eq!(receiver.recv().unwrap().as_deref(), Some("destaging"));
        drop(worker);
        assert!(receiver.recv().is_err(), "the work went on");
    }
}
