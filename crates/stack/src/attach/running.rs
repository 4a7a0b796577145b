//! An attachment while it serves: what goes on side by side, and who asks it for something.

use std::future::Future;
use std::rc::Rc;

use serde_json::Value;

use super::ending::Ending;
use super::{Attachment, wait_until};
use crate::control::{Handler, Progress, Request};
use crate::error::{Error, Failure, Result};
use crate::systemd;
use crate::watch::Watch;

impl Attachment {
    /// Serves until it is detached, or until `signal`: then it stops at once and keeps dirty data.
    ///
    /// # Errors
    /// When the listener fails, or dirty data could not be brought to safety.
    pub async fn run(self, signal: impl Future<Output = ()>) -> Result<()> {
        let attachment = Rc::new(self);
        let serve = async {
            let listener = attachment.listener.borrow_mut().take().expect("an attachment runs once");
            let served = attachment.server.serve(listener, attachment.wait_for_stop()).await;
            attachment.front_finished.send_replace(true);
            served.map_err(|error| Error::io("the NBD server stopped", &error))
        };
        let stop_on_signal = async {
            tokio::select! {
                () = signal => attachment.end_at_once().await,
                () = wait_until(&attachment.ended) => Ok(()),
            }
        };
        let handler = Rc::new(ControlHandler { attachment: Rc::clone(&attachment) });
        let control = attachment.control.serve(handler, wait_until(&attachment.ended));
        let metrics = attachment.metrics.borrow_mut().take();
        let metrics = async {
            let Some(metrics) = metrics else { return };
            // An attachment goes on without its metrics.
            if let Err(error) = metrics.serve(async || attachment.status(), wait_until(&attachment.ended)).await {
                tracing::error!(%error, "there are no metrics any more");
            }
        };
        let informing = async {
            systemd::ready();
            tokio::select! {
                () = systemd::keep_informed(|| async { attachment.summary() }) => {}
                () = attachment.wait_for_stop() => systemd::stopping(),
            }
        };
        let watching = async {
            let mut watch = Watch::default();
            tokio::select! {
                () = watch.look_for_ever(|| attachment.sight()) => {}
                () = wait_until(&attachment.ended) => {}
            }
        };
        let (served, stopped, ..) = tokio::join!(serve, stop_on_signal, control, metrics, informing, watching);
        attachment.background.borrow_mut().abort_all();
        drop(attachment.destaging.take());
        served.and(stopped)
    }
}

struct ControlHandler {
    attachment: Rc<Attachment>,
}

impl Handler for ControlHandler {
    async fn handle(&self, request: Request, progress: Progress) -> Result<Value> {
        match request {
            Request::Status => Ok(self.attachment.status()),
            Request::Reload => {
                let message = format!("\"{}\" is an attachment: it has no configuration file", self.attachment.name);
                Err(Error::new(Failure::Usage, message))
            }
            Request::Clean => self.attachment.clean(progress).await,
            Request::Set { key, value } => self.attachment.set(&key, &value).await,
            Request::Detach { remove_cache: true, .. } => self.attachment.detach_and_remove(progress).await,
            Request::Detach { keep_dirty, .. } => {
                let ending = if keep_dirty { Ending::KeepDirty } else { Ending::Clean };
                self.attachment.check_last_copy(ending)?;
                self.attachment.detach(ending, Some(progress)).await
            }
        }
    }
}
