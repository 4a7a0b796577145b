//! A daemon from its beginning to its end.

use std::future::Future;
use std::path::Path;
use std::rc::Rc;

use stack::control::ControlServer;
use stack::paths::Paths;
use stack::systemd;
use stack::{Error, Failure, Result};

use crate::NAME;
use crate::config::DaemonConfig;
use crate::keeper::Keeper;
use crate::requests::Requests;

/// A daemon that has its name, and does nothing yet.
pub struct Daemon {
    keeper: Rc<Keeper>,
    control: ControlServer,
}

impl Daemon {
    /// Takes the daemon's name, and reads the files.
    ///
    /// # Errors
    /// `InUse` when a daemon runs already; a directory that cannot be read.
    pub async fn start(config: DaemonConfig, paths: &Paths) -> Result<Self> {
        let control = ControlServer::bind_as(paths, NAME).map_err(|error| match error.failure() {
            Failure::InUse => {
                let message = format!(
                    "a daemon runs already: `forebay status {NAME}` shows it, and `forebay detach {NAME}` ends it alone"
                );
                Error::new(Failure::InUse, message)
            }
            _ => error,
        })?;
        let keeper = Keeper::new(config, paths, control.events())?;
        keeper.begin().await?;
        Ok(Self { keeper: Rc::new(keeper), control })
    }

    /// Keeps the attachments until `signal`, or until it is told to end. `again` ends the wait for
    /// attachments that are being detached.
    ///
    /// # Errors
    /// When attachments that were to be detached did not end in order.
    pub async fn run(
        self,
        signal: impl Future<Output = ()>,
        again: impl AsyncFnOnce(),
        on_ready: impl FnOnce(&Path),
    ) -> Result<()> {
        let Self { keeper, control } = self;
        let until_end = || {
            let mut ended = keeper.ended.subscribe();
            // The sender is there as long as this future.
            async move { drop(ended.wait_for(|ended| *ended).await) }
        };
        let work = async {
            tokio::select! {
                () = keeper.keep() => {}
                () = until_end() => {}
            }
            keeper.ended.send_replace(true);
        };
        let stop = async {
            tokio::select! {
                () = signal => keeper.stop(again).await,
                () = until_end() => {}
            }
        };
        let control = control.serve(Rc::new(Requests(Rc::clone(&keeper))), until_end());
        let informing = async {
            tokio::select! {
                () = keeper.inform(on_ready) => {}
                () = until_end() => systemd::stopping(),
            }
        };
        let reloading = async {
            tokio::select! {
                () = base::background::named("reload", keeper.reload_on_hangup()) => {}
                () = until_end() => {}
            }
        };
        tokio::join!(base::background::named("keeping", work), stop, control, informing, reloading);
        keeper.check_end()
    }
}
