//! Something that happens once, and that several wait for: it is raised and stays so.

use tokio::sync::watch::Sender;

/// Waits for `flag` to be raised. Its sender outlives the wait: who waits has borrowed it.
pub(crate) async fn wait_until(flag: &Sender<bool>) {
    let _ = flag.subscribe().wait_for(|is_raised| *is_raised).await;
}
