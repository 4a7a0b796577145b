//! The far side of a stack: one remote LUN, or several that are one device.
//!
//! Whatever they make together, each of them is a LUN of its own: it is locked on this host, and the registry of dirty
//! caches knows it by its own name, too. So a member of a striped set with a dirty cache in front is refused alone, as
//! any LUN with a dirty cache is.

use std::future::Future;
use std::sync::Arc;

use base::clock::Clock;
use block::layer::multipath::{Multipath, Policy};
use block::layer::stripe::{Layout, Stripe};
use block::{Device, ErrorKind, Identity, SharedDevice};
use futures_util::future::select_all;
use initiator::{Connector, RemoteLun, State};
use iscsi::name;
use iscsi::pdu::Isid;
use iscsi::url::Portal;
use tokio::task::JoinHandle;

use crate::access_watch;
use crate::error::{Error, Failure, Result};
use crate::portal_group::GroupConnector;
use crate::remote::{RemoteConfig, Traffic, in_a_word, remote_status};
use crate::settings::Settings;
use crate::status::members::{MemberStatus, MultipathStatus, PathStatus, StripeStatus};
use crate::status::remote::RemoteStatus;

/// How several LUNs are one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// There is one LUN, by one path.
    Single,
    /// They are one LUN, reached by several portals.
    Paths(Policy),
    /// Units on each in turn (RAID-0).
    Stripe {
        /// Bytes of a unit.
        unit_bytes: u64,
    },
}

/// LUNs, in order, and what they make together.
#[derive(Clone, Debug)]
pub struct RemotesConfig {
    /// How to reach each; at least one, and exactly one when they are not arranged.
    pub remotes: Vec<RemoteConfig>,
    /// What they make together.
    pub arrangement: Arrangement,
}

/// Connected LUNs as one device.
pub struct Remotes {
    /// In order.
    connected: Vec<Connected>,
    whole: Whole,
    _background: Option<Background>,
}

enum Whole {
    Single,
    Stripe(Arc<Stripe>),
    Paths(Arc<Multipath>),
}

/// Ends with what it serves.
struct Background(JoinHandle<()>);

impl Background {
    fn start(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(base::background::named("paths", future)))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RemotesConfig {
    /// The LUNs at `urls`, separated by commas, with what `settings` say of the logins and of what they are together.
    ///
    /// # Errors
    /// A bad URL, bad credentials, or an arrangement of one.
    pub fn of(urls: &str, settings: &Settings) -> Result<Self> {
        let mut remotes = urls.split(',').map(|url| RemoteConfig::of(url, settings)).collect::<Result<Vec<_>>>()?;
        number_sessions(&mut remotes, settings.parsed("isid")?);
        let arrangement = arrangement(remotes.len(), settings)?;
        Ok(Self { remotes, arrangement })
    }

    /// Logs in everywhere. The sessions are kept up on the current runtime until they are closed.
    ///
    /// # Errors
    /// What stands in the way of one of them, or of what they are to make together; then all are closed again.
    pub async fn connect(&self, clock: &Arc<dyn Clock>) -> Result<Remotes> {
        let mut connected = Vec::with_capacity(self.remotes.len());
        let has_other_paths = matches!(self.arrangement, Arrangement::Paths(_));
        let arranged = match connect_each(&self.remotes, has_other_paths, clock, &mut connected).await {
            Ok(()) => self.arrange(&mut connected, clock).await,
            Err(error) => Err(error),
        };
        match arranged {
            Ok((whole, background)) => Ok(Remotes { connected, whole, _background: background }),
            Err(error) => {
                for each in &connected {
                    // Nothing was written to it.
                    let _ = each.lun.close().await;
                }
                Err(error)
            }
        }
    }

    async fn arrange(
        &self,
        connected: &mut Vec<Connected>,
        clock: &Arc<dyn Clock>,
    ) -> Result<(Whole, Option<Background>)> {
        match self.arrangement {
            Arrangement::Single => Ok((Whole::Single, None)),
            Arrangement::Paths(policy) => {
                check_one_unit(connected)?;
                join_groups(connected, policy).await;
                let paths = Arc::new(Multipath::new(devices(connected), policy, Arc::clone(clock)).map_err(refusal)?);
                let (running, clock) = (Arc::clone(&paths), Arc::clone(clock));
                let luns = connected.iter().map(|each| Arc::clone(&each.lun)).collect();
                let background = Background::start(async move {
                    tokio::join!(running.run(), access_watch::watch(&running, luns, &*clock));
                });
                Ok((Whole::Paths(paths), Some(background)))
            }
            Arrangement::Stripe { unit_bytes } => {
                let stripe = Arc::new(Stripe::new(devices(connected), unit_bytes).map_err(refusal)?);
                let running = Arc::clone(&stripe);
                let background = Background::start(async move { running.run().await });
                Ok((Whole::Stripe(stripe), Some(background)))
            }
        }
    }
}

/// A LUN that was logged in to.
struct Connected {
    lun: Arc<RemoteLun>,
    connector: Arc<GroupConnector>,
    traffic: Traffic,
    portal: Portal,
    target: String,
}

impl Connected {
    /// Target and portal group, where the target says it: what must be the same for a session to move.
    fn group(&self) -> Option<(String, u16)> {
        Some((self.target.clone(), self.lun.status().portal_group_tag?))
    }

    fn status(&self) -> RemoteStatus {
        remote_status(&self.lun.status(), &self.traffic)
    }
}

fn devices(connected: &[Connected]) -> Vec<SharedDevice> {
    connected.iter().map(|each| each.lun.clone() as SharedDevice).collect()
}

/// Several LUNs without a word on how they are one device can only be paths to one.
fn check_one_unit(connected: &[Connected]) -> Result<()> {
    let mut identities = connected.iter().map(|each| each.lun.identity());
    let Some(first) = identities.next() else { return Ok(()) };
    match identities.find(|other| (&other.unit, &other.serial) != (&first.unit, &first.serial)) {
        None => Ok(()),
        Some(other) => {
            let words = format!(
                "these are different logical units, not paths to one: {first}; {other}; --stripe 64KiB makes one \
                 device of several"
            );
            Err(Error::new(Failure::Usage, words))
        }
    }
}

/// Tells each session the portals of its group. With failover a group is one path: the session of its first portal; the
/// others' are closed.
async fn join_groups(connected: &mut Vec<Connected>, policy: Policy) {
    let places: Vec<_> = connected.iter().map(|each| (each.group(), each.portal.clone())).collect();
    for each in connected.iter() {
        let group = each.group();
        let mut portals: Vec<Portal> = Vec::new();
        for (other, portal) in &places {
            if group.is_some() && *other == group && !portals.contains(portal) {
                portals.push(portal.clone());
            }
        }
        if !portals.is_empty() {
            each.connector.set_portals(portals);
        }
    }
    if policy == Policy::Failover {
        let mut groups = Vec::new();
        for each in std::mem::take(connected) {
            let group = each.group();
            if group.is_some() && groups.contains(&group) {
                // Nothing was written to it.
                let _ = each.lun.close().await;
            } else {
                groups.push(group);
                connected.push(each);
            }
        }
    }
}

/// What so many LUNs are together.
fn arrangement(count: usize, settings: &Settings) -> Result<Arrangement> {
    let (stripe, multipath) = (settings.number("stripe"), settings.is_given("multipath"));
    let refused = |message: String| Err(Error::new(Failure::Usage, message));
    let too_few = |key: &str| format!("{} takes at least two URLs, separated by commas", settings.name_of(key));
    match (count, stripe) {
        (_, Some(_)) if multipath => {
            refused(format!("{} cannot be used with {}", settings.name_of("multipath"), settings.name_of("stripe")))
        }
        (1, None) if multipath => refused(too_few("multipath")),
        (1, None) => Ok(Arrangement::Single),
        (1, Some(_)) => refused(too_few("stripe")),
        (_, Some(unit_bytes)) => Ok(Arrangement::Stripe { unit_bytes }),
        (_, None) => Ok(Arrangement::Paths(settings.parsed("multipath")?.unwrap_or(Policy::Failover))),
    }
}

/// Names sessions from `first` on; a session by the name of another would end that one (RFC 7143 6.3.5).
pub fn number_sessions(remotes: &mut [RemoteConfig], first: Option<Isid>) {
    for (count, remote) in (0..).zip(remotes) {
        remote.isid = first.map(|isid| isid.further(count));
    }
}

/// What makes no sense about an arrangement is a matter of the command line.
fn refusal(error: block::Error) -> Error {
    match error.kind() {
        ErrorKind::InvalidRange => Error::new(Failure::Usage, error.to_string()),
        _ => error.into(),
    }
}

async fn connect_each(
    configs: &[RemoteConfig],
    has_other_paths: bool,
    clock: &Arc<dyn Clock>,
    connected: &mut Vec<Connected>,
) -> Result<()> {
    for config in configs {
        let portal = config.url.portal.clone();
        let mut connector = None;
        let over = |inner| {
            let group = GroupConnector::new(inner, portal.clone());
            connector = Some(Arc::clone(&group));
            group as Arc<dyn Connector>
        };
        let traffic = Traffic::default();
        let lun = config.connect_by(clock, has_other_paths, &traffic, over).await?;
        let connector = connector.expect("nothing is connected without a connector");
        let target = name::folded(&config.url.target);
        connected.push(Connected { lun, connector, traffic, portal, target });
    }
    Ok(())
}

/// The state of a session, in words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Session {
    /// The state in a word.
    pub(crate) state: String,
    /// The portal.
    pub(crate) portal: String,
    /// What went wrong last.
    pub(crate) last_error: Option<String>,
}

/// One LUN of a device, by all its paths.
#[derive(Clone)]
pub(crate) struct MemberLun {
    /// The LUN's identity.
    pub(crate) identity: Identity,
    /// The paths to it, at least one.
    pub(crate) luns: Vec<Arc<RemoteLun>>,
    /// How it is laid out in a stripe, and which member of it it is.
    pub(crate) stripe: Option<(Layout, usize)>,
}

impl Remotes {
    /// The LUNs they are.
    pub(crate) fn member_luns(&self) -> Vec<MemberLun> {
        let luns = || self.connected.iter().map(|each| Arc::clone(&each.lun));
        match &self.whole {
            Whole::Single | Whole::Paths(_) => {
                vec![MemberLun { identity: self.identity(), luns: luns().collect(), stripe: None }]
            }
            Whole::Stripe(stripe) => luns()
                .enumerate()
                .map(|(member, lun)| MemberLun {
                    identity: lun.identity(),
                    luns: vec![lun],
                    stripe: Some((stripe.layout(), member)),
                })
                .collect(),
        }
    }

    /// The device they make.
    pub fn device(&self) -> SharedDevice {
        match &self.whole {
            Whole::Single => self.connected.first().expect("nothing is connected without a LUN").lun.clone(),
            Whole::Stripe(stripe) => stripe.clone(),
            Whole::Paths(paths) => paths.clone(),
        }
    }

    /// The LUN that the device is, where it is just one by one path.
    pub(crate) fn single(&self) -> Option<Arc<RemoteLun>> {
        let Whole::Single = self.whole else { return None };
        self.connected.first().map(|each| Arc::clone(&each.lun))
    }

    /// Who the device is.
    pub fn identity(&self) -> Identity {
        self.device().identity()
    }

    /// Who the device is, and who each LUN is where that differs.
    pub fn identities(&self) -> Vec<Identity> {
        let mut identities = vec![self.identity()];
        for identity in self.connected.iter().map(|each| each.lun.identity()) {
            if !identities.contains(&identity) {
                identities.push(identity);
            }
        }
        identities
    }

    /// Changes how many connections, or pairs of them, each LUN's session has.
    pub fn set_connections(&self, count: u16) {
        self.connected.iter().for_each(|each| each.lun.set_connections(count));
    }

    /// Tries at once to reconnect those that are away.
    pub fn reconnect_now(&self) {
        self.connected.iter().for_each(|each| each.lun.reconnect_now());
    }

    /// Flushes what the LUNs might lose and logs out, of all of them.
    ///
    /// # Errors
    /// The first of [`RemoteLun::close`]: what was acknowledged may not be durable.
    pub async fn close(&self) -> std::result::Result<(), block::Error> {
        let mut closed = Ok(());
        for each in &self.connected {
            closed = closed.and(each.lun.close().await);
        }
        closed
    }

    /// Waits until the target of each LUN has answered a question (TEST UNIT READY, SPC-4 6.47), whatever the answer
    /// is; of a LUN with several paths, one of them.
    pub(crate) async fn answer(&self) {
        for member in self.member_luns() {
            let asked = member.luns.iter().map(|lun| Box::pin(lun.execute(&[0; 6], &[], 0)));
            // A refusal is an answer, too.
            let _ = select_all(asked).await;
        }
    }

    /// What [`Self::close`] would tell, where nobody waits for it.
    ///
    /// # Errors
    /// `OutcomeUnknown` where a LUN holds something that was acknowledged and may still be lost.
    pub fn check_nothing_in_doubt(&self) -> std::result::Result<(), block::Error> {
        if self.connected.iter().all(|each| each.lun.status().retained_changes == 0) {
            return Ok(());
        }
        let words = "what was acknowledged last was not flushed: the target did not answer in time";
        Err(block::Error::new(block::ErrorKind::OutcomeUnknown, words))
    }

    /// The LUN that is worst off: what the whole can be relied on for.
    fn worst(&self) -> Option<&Connected> {
        let worst = self.connected.iter().find(|each| each.lun.status().state != State::Online);
        worst.or_else(|| self.connected.first())
    }

    /// The state, in words, of the LUN that is worst off.
    pub(crate) fn session(&self) -> Session {
        let worst = self.worst().map(|each| each.lun.status());
        worst.map_or_else(Session::default, |status| Session {
            state: in_a_word(status.state),
            portal: status.portal,
            last_error: status.last_error,
        })
    }

    /// The state of the LUN that is worst off.
    pub fn status(&self) -> Option<RemoteStatus> {
        self.worst().map(Connected::status)
    }

    /// The paths to a LUN with several.
    pub fn multipath_status(&self) -> Option<MultipathStatus> {
        let Whole::Paths(multipath) = &self.whole else { return None };
        let paths = multipath.paths().into_iter().zip(&self.connected).map(|(path, each)| PathStatus {
            portal: each.connector.current().to_string(),
            is_online: path.is_online,
            access: path.access.as_str().to_owned(),
            requests: path.request_count,
            changes_in_doubt: path.doubt_count,
            remote: each.status(),
        });
        Some(MultipathStatus { policy: multipath.policy().as_str().to_owned(), paths: paths.collect() })
    }

    /// The members of a stripe.
    pub fn stripe_status(&self) -> Option<StripeStatus> {
        let Whole::Stripe(stripe) = &self.whole else { return None };
        let members = stripe.members().into_iter().zip(&self.connected).map(|(member, each)| MemberStatus {
            lun: (&member.identity).into(),
            size_bytes: member.size_bytes,
            unused_bytes: member.unused_bytes,
            is_online: member.is_online,
            remote: each.status(),
        });
        Some(StripeStatus { unit_bytes: stripe.layout().unit_bytes, members: members.collect() })
    }
}
