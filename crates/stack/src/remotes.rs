//! The far side of a stack: one remote LUN, or several that form one device.
//!
//! In any arrangement each of them is a LUN of its own: it is locked on this host, and the registry
//! of dirty caches has it under its own name, too. So a member of a striped set with a dirty cache
//! is refused alone, like any LUN with a dirty cache.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use block::layer::multipath::{Multipath, Policy};
use block::layer::stripe::{Layout, Stripe};
use block::{ByteRange, Device, ErrorKind, Identity, SharedDevice};
use futures_util::future::select_all;
use initiator::{Connector, RemoteLun, State};
use iscsi::name;
use iscsi::pdu::Isid;
use iscsi::url::Portal;
use scsi::Cdb;
use tokio::task::JoinHandle;

use crate::access_watch;
use crate::error::{Error, Failure, Result};
use crate::portal_group::GroupConnector;
use crate::remote::{RemoteConfig, Traffic, in_a_word, remote_status};
use crate::settings::Settings;
use crate::status::members::{MemberStatus, MultipathStatus, PathStatus, StripeStatus};
use crate::status::remote::RemoteStatus;

/// How several LUNs form one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// One LUN, by one path.
    Single,
    /// Several paths to one LUN.
    Paths(Policy),
    /// Units on each in turn (RAID-0).
    Stripe {
        /// Bytes of a unit.
        unit_bytes: u64,
    },
}

/// LUNs, in order, and their arrangement.
#[derive(Clone, Debug)]
pub struct RemotesConfig {
    /// Each LUN and its login; at least one, and exactly one for `Single`.
    pub remotes: Vec<RemoteConfig>,
    /// The device that they make together.
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

/// A background task, which ends when this is dropped.
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
    /// The LUNs at `urls`, separated by commas, with the logins and the arrangement in `settings`.
    ///
    /// # Errors
    /// A bad URL, bad credentials, or an arrangement for one LUN.
    pub fn of(urls: &str, settings: &Settings) -> Result<Self> {
        let mut remotes = urls.split(',').map(|url| RemoteConfig::of(url, settings)).collect::<Result<Vec<_>>>()?;
        number_sessions(&mut remotes, settings.parsed("isid")?);
        let arrangement = arrangement(remotes.len(), settings)?;
        Ok(Self { remotes, arrangement })
    }

    /// Logs in to all. The sessions are maintained on the current runtime until they are closed.
    ///
    /// # Errors
    /// Whatever prevents one login, or the arrangement; all are closed again then.
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
                    // No data was written to it.
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
                let patience = self.remotes.iter().map(|remote| remote.waits.replacement).max().unwrap_or_default();
                let paths = Multipath::new(devices(connected), policy, patience, Arc::clone(clock));
                let paths = Arc::new(paths.map_err(refusal)?);
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
    /// Target name and portal group, if the target reports it: a session can only move between
    /// portals where both are equal.
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

/// Several LUNs without an arrangement can only be paths to one.
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

/// Gives each session the portals of its group. With failover a group is one path: the session of
/// its first portal; those of the others are closed.
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
                // No data was written to it.
                let _ = each.lun.close().await;
            } else {
                groups.push(group);
                connected.push(each);
            }
        }
    }
}

/// The arrangement of this many LUNs.
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

/// Numbers the sessions from `first` on; a session with the name of another would end that one (RFC
/// 7143 6.3.5).
pub fn number_sessions(remotes: &mut [RemoteConfig], first: Option<Isid>) {
    for (count, remote) in (0..).zip(remotes) {
        remote.isid = first.map(|isid| isid.further(count));
    }
}

/// An impossible arrangement is an error of the command line.
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
        let joins = connected.first().filter(|_| has_other_paths).and_then(|first| first.lun.sharing_client());
        let lun = config.connect_by(clock, (has_other_paths, joins), &traffic, over).await?;
        let connector = connector.expect("nothing is connected without a connector");
        let target = name::folded(&config.url.target);
        connected.push(Connected { lun: Arc::clone(&lun), connector, traffic, portal, target });
        // Who is to share it learns at once where that cannot be.
        if config.is_shared {
            joined(&lun, config.waits.login).await?;
        }
    }
    Ok(())
}

/// Waits until a path to a LUN that several hosts share is one of this host's client.
async fn joined(lun: &RemoteLun, time_max: Duration) -> Result<()> {
    match tokio::time::timeout(time_max, lun.joined()).await {
        Ok(joined) => Ok(joined?),
        Err(_) => {
            let words = format!("{} does not take this host as a client of the shared logical unit", lun.place());
            Err(Error::new(Failure::Unreachable, words))
        }
    }
}

/// The status of a session, in words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Session {
    /// The state in a word.
    pub(crate) state: String,
    /// The portal.
    pub(crate) portal: String,
    /// The last error.
    pub(crate) last_error: Option<String>,
}

/// One LUN of a device, by all its paths.
#[derive(Clone)]
pub(crate) struct MemberLun {
    /// The LUN's identity.
    pub(crate) identity: Identity,
    /// The paths to it, at least one.
    pub(crate) luns: Vec<Arc<RemoteLun>>,
    /// The layout of the stripe, and its index there.
    pub(crate) stripe: Option<(Layout, usize)>,
}

/// A range inside a LUN as a range of the whole device, of which it is all or this member of a
/// stripe. For a stripe it also covers units on other LUNs.
pub(crate) fn place_in_whole(stripe: Option<(Layout, usize)>, range: ByteRange) -> Option<ByteRange> {
    let Some((layout, member)) = stripe else { return Some(range) };
    let place = |offset| layout.of_member(member, ByteRange { offset, length: 1 }).next();
    let (first, last) = (place(range.offset)?, place(range.end().checked_sub(1)?)?);
    Some(ByteRange { offset: first.offset, length: last.end() - first.offset })
}

impl Remotes {
    /// The LUNs of the device.
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

    /// The device that they form.
    pub fn device(&self) -> SharedDevice {
        match &self.whole {
            Whole::Single => self.connected.first().expect("nothing is connected without a LUN").lun.clone(),
            Whole::Stripe(stripe) => stripe.clone(),
            Whole::Paths(paths) => paths.clone(),
        }
    }

    /// The LUN of a device that is one LUN by one path.
    pub(crate) fn single(&self) -> Option<Arc<RemoteLun>> {
        let Whole::Single = self.whole else { return None };
        self.connected.first().map(|each| Arc::clone(&each.lun))
    }

    /// The identity of the device.
    pub fn identity(&self) -> Identity {
        self.device().identity()
    }

    /// The identity of the device, and those of its LUNs where they differ.
    pub fn identities(&self) -> Vec<Identity> {
        let mut identities = vec![self.identity()];
        for identity in self.connected.iter().map(|each| each.lun.identity()) {
            if !identities.contains(&identity) {
                identities.push(identity);
            }
        }
        identities
    }

    /// Changes the number of connections, or of pairs, of each LUN's session.
    pub fn set_connections(&self, count: u16) {
        self.connected.iter().for_each(|each| each.lun.set_connections(count));
    }

    /// Tries at once to reconnect the sessions that are lost.
    pub fn reconnect_now(&self) {
        self.connected.iter().for_each(|each| each.lun.reconnect_now());
    }

    /// Flushes the LUNs' caches and logs out, for all of them.
    ///
    /// # Errors
    /// The first error of [`RemoteLun::close`]: acknowledged data may not be durable.
    pub async fn close(&self) -> std::result::Result<(), block::Error> {
        let mut closed = Ok(());
        for each in &self.connected {
            closed = closed.and(each.lun.close().await);
        }
        closed
    }

    /// Waits until the target of each LUN has answered a TEST UNIT READY (SPC-4 6.47), with any
    /// status; for a LUN with several paths, on one of them.
    pub(crate) async fn answer(&self) {
        let cdb = Cdb::TestUnitReady.emit();
        for member in self.member_luns() {
            let asked = member.luns.iter().map(|lun| Box::pin(lun.execute(&cdb, &[], 0)));
            // A refusal is an answer, too.
            let _ = select_all(asked).await;
        }
    }

    /// The check of [`Self::close`], without waiting.
    ///
    /// # Errors
    /// `OutcomeUnknown` where a LUN holds acknowledged data that may still be lost.
    pub fn check_nothing_in_doubt(&self) -> std::result::Result<(), block::Error> {
        if self.connected.iter().all(|each| each.lun.status().retained_changes == 0) {
            return Ok(());
        }
        let words = "what was acknowledged last was not flushed: the target did not answer in time";
        Err(block::Error::new(block::ErrorKind::OutcomeUnknown, words))
    }

    /// The LUN in the worst state, on which the whole depends.
    fn worst(&self) -> Option<&Connected> {
        let worst = self.connected.iter().find(|each| each.lun.status().state != State::Online);
        worst.or_else(|| self.connected.first())
    }

    /// The state, in words, of the LUN in the worst state.
    pub(crate) fn session(&self) -> Session {
        let worst = self.worst().map(|each| each.lun.status());
        worst.map_or_else(Session::default, |status| Session {
            state: in_a_word(status.state),
            portal: status.portal,
            last_error: status.last_error,
        })
    }

    /// The status of the LUN in the worst state.
    pub fn status(&self) -> Option<RemoteStatus> {
        self.worst().map(Connected::status)
    }

    /// The paths to a LUN, if it has several.
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
