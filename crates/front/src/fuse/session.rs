//! A FUSE session on a thread of its own, from its beginning to its end.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::pin;

use fuser::{Filesystem, Session, SessionUnmounter};
use tokio::sync::oneshot;

use super::mountpoint::detach;

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its owner stopped it.
    Stopped,
    /// Another process unmounted it.
    Unmounted,
}

/// Serves until `stop`, or until another process unmounts it. Then it runs `close`, which ends the
/// requests under way, and unmounts what is still mounted; programs that have it open get errors
/// from then on.
pub(crate) async fn serve<F: Filesystem>(
    mut session: Session<F>,
    path: &Path,
    stop: impl Future<Output = ()>,
    close: impl Future<Output = ()>,
) -> io::Result<Ended> {
    let unmounter = session.unmount_callable();
    let (sender, ended) = oneshot::channel();
    // The thread reads requests from the FUSE device, and answers at once where the block device
    // does.
    std::thread::Builder::new().name("fuse".to_owned()).spawn(move || {
        base::background::turn("fuse");
        let _ = sender.send(session.run());
    })?;
    let (mut ended, stop) = (pin!(ended), pin!(stop));
    tokio::select! {
        () = stop => {}
        ended = &mut ended => {
            let ended = ended.unwrap_or_else(|_| Err(io::Error::other("its thread has ended")));
            close.await;
            return ended.map(|()| Ended::Unmounted);
        }
    }
    close.await;
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || unmount(unmounter, &path)).await.map_err(io::Error::other)??;
    Ok(Ended::Stopped)
}

/// Unmounts the file, even while it is open.
fn unmount(mut unmounter: SessionUnmounter, path: &Path) -> io::Result<()> {
    match unmounter.unmount() {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            tracing::warn!("{} is still open: whoever has it open gets errors from now on", path.display());
            detach(path)
        }
        done => done,
    }
}
