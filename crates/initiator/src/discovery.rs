//! The question to a portal for its targets, in a session of its own.

use std::sync::Arc;
use std::sync::atomic::AtomicU16;

use block::Error;

use crate::alarm::within;
use crate::connector::Connector;
use crate::error::LinkError;
use crate::link::{Link, Opener};
use crate::options::InitiatorOptions;

/// Asks a portal for its targets.
///
/// # Errors
/// As [`connect`](crate::connect).
pub async fn discover(
    options: InitiatorOptions,
    connector: Arc<dyn Connector>,
) -> Result<Vec<iscsi::initiator::DiscoveredTarget>, Error> {
    let isid = options.isid_or_random()?;
    let mut portal = options.portal.clone();
    let options = Arc::new(options);
    let opener = Opener { options: Arc::clone(&options), connector, isid, wanted: Arc::new(AtomicU16::new(1)) };
    let asked = async {
        let mut link = Link::open(&opener, true, &mut portal).await?;
        let listed = within(&options.clock, options.command_timeout, link.send_targets()).await;
        let targets = listed.ok_or(LinkError::ListTimedOut)??;
        link.logout().await;
        Ok(targets)
    };
    asked.await.map_err(|error: LinkError| error.into_error(&options))
}
