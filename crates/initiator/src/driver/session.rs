//! A new session: login, the unit's properties, and the marks that are taken again.

use std::time::Duration;

use block::{Error, ErrorKind};
use iscsi::url::Portal;
use scsi::Sense;
use scsi::change_mark::Support;

use crate::change_guard::ReportedChanges;
use crate::change_marks;
use crate::error::LinkError;
use crate::limits::LEASE_MIN;
use crate::link::{Link, Opener};
use crate::options::InitiatorOptions;
use crate::shared::Shared;
use crate::sharing::member::short_lease;
use crate::unit::{Probe, Unit};

/// A new session, and what was read from the unit in it.
pub(super) struct Session {
    pub(super) link: Link,
    pub(super) unit: Unit,
    /// What other hosts changed while there was no session.
    pub(super) changed: ReportedChanges,
    /// Reports of the unit that came after its properties were read.
    pub(super) late_senses: Vec<Sense>,
}

/// Logs in, reads the unit's properties, and takes the `held` marks again. The portal must be in
/// `group` if that is given. On failure, `senses` gets what the unit reported meanwhile, since it
/// reports each thing once.
pub(super) async fn establish(
    opener: &Opener,
    portal: &mut Portal,
    group: Option<u16>,
    held: Option<&Shared>,
    senses: &mut Vec<Sense>,
) -> Result<Session, LinkError> {
    let mut link = Link::open(opener, false, portal).await?;
    if let (Some(from), Some(to)) = (group, link.portal_group_tag())
        && from != to
    {
        link.logout().await;
        return Err(LinkError::OtherGroup { from, to });
    }
    match look(&mut link, &opener.options, held).await {
        Ok((unit, changed, late_senses)) => match check_sharing(&link, &opener.options, &unit) {
            Ok(()) => Ok(Session { link, unit, changed, late_senses }),
            Err(error) => {
                link.logout().await;
                Err(error)
            }
        },
        Err(error) => {
            senses.append(&mut link.senses);
            Err(error)
        }
    }
}

/// The unit's properties, what others changed, and what it reported after its properties were read.
async fn look(
    link: &mut Link,
    options: &InitiatorOptions,
    held: Option<&Shared>,
) -> Result<(Unit, ReportedChanges, Vec<Sense>), LinkError> {
    let unit = Probe::new(link, options)?.run().await?;
    let already = link.senses.len();
    let mut probe = Probe::new(link, options)?;
    let changed = match held {
        // Another device must not learn of our marks.
        Some(shared) if shared.view().identity == unit.identity => {
            ask_again(&mut probe, unit.change_marks, shared, options.is_shared).await?
        }
        _ => ReportedChanges::default(),
    };
    let late_senses = link.senses.split_off(already);
    Ok((unit, changed, late_senses))
}

/// Takes the marks again and asks for the content, of the same unit as before. Returns what others
/// changed.
pub(super) async fn ask_again(
    probe: &mut Probe<'_>,
    support: Option<Support>,
    shared: &Shared,
    is_shared: bool,
) -> Result<ReportedChanges, LinkError> {
    if let Some(guard) = shared.content_guard.get() {
        guard.ask(probe).await?;
    }
    change_marks::take_again(probe, support, &shared.taken, is_shared).await
}

/// Refuses a LUN that the options say is shared but that cannot be.
fn check_sharing(link: &Link, options: &InitiatorOptions, unit: &Unit) -> Result<(), LinkError> {
    let is_agreed = link.logged_in.as_ref().is_some_and(|logged_in| logged_in.may_share);
    let (place, words) = match (options.is_shared, is_agreed, unit.sharing) {
        (true, true, Some(support)) => {
            let lease = Duration::from_millis(support.lease_ms.into());
            return if lease < LEASE_MIN { Err(LinkError::Unit(short_lease(&options.place(), lease))) } else { Ok(()) };
        }
        (false, ..) => return Ok(()),
        (true, false, _) => (options.place(), "its target does not keep the caches of several hosts coherent"),
        (true, true, None) => (options.place(), "its target does not let it be shared"),
    };
    let words = format!(
        "{place} cannot be shared: {words}. \"forebay target serve\" does so for a LUN with the option \"shared\"; \
         without a cache, several hosts may use any LUN"
    );
    Err(LinkError::Unit(Error::new(ErrorKind::Unsupported, words)))
}
