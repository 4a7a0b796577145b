//! An event that happens once, and that several tasks wait for: the flag is raised and stays
//! raised.

use tokio::sync::watch::Sender;

/// Waits for `flag` to be raised. The waiting task borrows its sender, so the sender outlives the
/// wait.
pub(crate) async fn wait_until(flag: &Sender<bool>) {
    let _ = flag.subscribe().wait_for(|is_raised| *is_raised).await;
}
