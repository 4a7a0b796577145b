//! The driver makes and loses sessions; the [`Engine`] and its requests outlive them.
//!
//! ```text
//!           ┌────────────────────── attention: ask again, replay after power-on ───────────────────┐
//!           ▼                                                                                      │
//!  connect ─► Online ──session lost──► Reconnecting ──login, same identity──► Replaying ──done──► Online
//!                                        │    │                                  
//!                      replacement timeout    └─another identity──► Replaced (everything fails, for good)
//!                                        ▼
//!                                     Failing: requests fail, the search goes on
//! ```
//!
//! A reconnect is a new session with the same ISID, so that the target ends what the old one left behind (RFC 7143
//! 6.3.5) before anything is issued again. The first attempt is made at once, or after the Time2Wait that was agreed;
//! then waits double up to a bound, and begin anew only after a session that was of use ([`BackOff`]).

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::task::{Context, Poll};
use std::time::Duration;

use base::clock::{Clock, Instant};
use block::grants::WHOLE_DEVICE;
use block::{Copies, Error, ErrorKind, Event, Geometry};
use iscsi::url::Portal;
use scsi::Sense;
use scsi::change_mark::Support;

use crate::alarm::{Alarm, within};
use crate::back_off::BackOff;
use crate::change_guard::ReportedChanges;
use crate::change_marks;
use crate::changed_ranges;
use crate::connector::Connector;
use crate::engine::{Engine, Stop};
use crate::error::LinkError;
use crate::limits::{BUSY_WAIT_MAX, GRANT_BYTES, LEASE_MIN, NOTICES_MAX};
use crate::link::{Link, Opener};
use crate::log_limit::LogLimit;
use crate::notice::Notice;
use crate::options::InitiatorOptions;
use crate::remote_lun::RemoteLun;
use crate::rounds::Rounds;
use crate::shared::Shared;
use crate::sharing::member::short_lease;
use crate::sharing::{ClientPath, Member, SharingClient};
use crate::status::{State, Status};
use crate::unit::{Probe, Unit, lacks_known_identity};
use crate::verdict::Attention;

/// The future that owns a LUN's connections. Requests make progress only while it is polled, in a
/// task of its own or beside others. It ends when the LUN is closed, or replaced by another.
/// Dropping it leaves requests under way with an unknown outcome.
pub struct Driver(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

/// Attaches a LUN. Nothing is tried twice: a failure is returned at once.
///
/// # Errors
/// `Gone` when no target answers at the portal, `NotFound` when there is no such target or LUN,
/// `AccessDenied`, `TimedOut`, and others; each in one line that says what to do.
pub async fn connect(
    options: InitiatorOptions,
    connector: Arc<dyn Connector>,
) -> Result<(Arc<RemoteLun>, Driver), Error> {
    let options = Arc::new(options);
    let isid = options.isid_or_random()?;
    let mut portal = options.portal.clone();
    let wanted = Arc::new(AtomicU16::new(options.connections));
    let opener = Opener { options: Arc::clone(&options), connector, isid, wanted };
    // Reports that came before the first session are no concern of this attachment.
    let opened = establish(&opener, &mut portal, None, None, &mut Vec::new()).await;
    let Session { link, unit, .. } = opened.map_err(|error| error.into_error(&options))?;
    let status = Status {
        session_count: 1,
        portal: link.portal().to_string(),
        isid: Some(isid),
        portal_group_tag: link.portal_group_tag(),
        negotiated: Some(*link.session.negotiated()),
        ..Status::default()
    };
    let wanted = Arc::clone(&opener.wanted);
    let client = client_of(&options, &unit)?;
    let shared = Arc::new(Shared::new(&unit, status, wanted, client));
    let engine = Engine::new(Arc::clone(&options), Arc::clone(&shared), unit);
    let back_off = BackOff::new(options.reconnect_wait_min, options.reconnect_wait_max);
    let group = link.portal_group_tag();
    let runner = Runner {
        options: Arc::clone(&options),
        opener,
        portal,
        group,
        shared: Arc::clone(&shared),
        engine,
        back_off,
        away_since: None,
        notices: LogLimit::with_lines(NOTICES_MAX),
    };
    let guard = StopGuard { shared: Arc::clone(&shared), place: options.place(), clock: Arc::clone(&options.clock) };
    let lun = Arc::new(RemoteLun::new(options.place(), shared));
    Ok((
        lun,
        Driver(Box::pin(async move {
            // Made here, so that waiting callers are notified even if the driver is dropped before
            // its first poll.
            let _guard = guard;
            runner.run(link).await;
        })),
    ))
}

/// The client of the lock manager that uses a shared LUN; `None` where it is not shared.
fn client_of(options: &InitiatorOptions, unit: &Unit) -> Result<Option<SharingClient>, Error> {
    let Some(support) = unit.sharing.filter(|_| options.is_shared) else { return Ok(None) };
    if let Some(client) = &options.joins {
        client.check(&unit.identity)?;
        return Ok(Some(client.clone()));
    }
    let clock = Arc::clone(&options.clock);
    // Otherwise other hosts would read older data than what was written here.
    let copies = match support.withholds && !support.is_paper_profile {
        true if options.holds_whole => Copies::with_grants(clock, WHOLE_DEVICE),
        true => Copies::with_grants(clock, GRANT_BYTES),
        false => Copies::new(clock),
    };
    let member = Member::new(options.place(), InitiatorOptions::sharing_key()?, support, copies);
    Ok(Some(SharingClient::new(member, unit.identity.clone())))
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

/// A new session, and what was read from the unit in it.
struct Session {
    link: Link,
    unit: Unit,
    /// What other hosts changed while there was no session.
    changed: ReportedChanges,
    /// Reports of the unit that came after its properties were read.
    late_senses: Vec<Sense>,
}

/// Logs in, reads the unit's properties, and takes the `held` marks again. The portal must be in
/// `group` if that is given. On failure, `senses` gets what the unit reported meanwhile, since it
/// reports each thing once.
async fn establish(
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
async fn ask_again(
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

struct Runner {
    options: Arc<InitiatorOptions>,
    opener: Opener,
    /// The portal of the target, after permanent redirections.
    portal: Portal,
    /// The portal group of the last session.
    group: Option<u16>,
    shared: Arc<Shared>,
    engine: Engine,
    back_off: BackOff,
    /// When the LUN became unusable; read only while there is no session.
    away_since: Option<Instant>,
    notices: LogLimit<Notice>,
}

/// Notifies those that wait for the driver's end, however it ends.
struct StopGuard {
    shared: Arc<Shared>,
    place: String,
    clock: Arc<dyn Clock>,
}

impl Drop for StopGuard {
    fn drop(&mut self) {
        {
            let mut view = self.shared.view();
            if !matches!(view.status.state, State::Replaced | State::Fenced) {
                view.status.state = State::Closed;
            }
        }
        let now = self.clock.now();
        self.shared.client().into_iter().for_each(|path| path.end(now));
        self.shared.stop(&self.place);
    }
}

/// Why no further session is made.
enum End {
    Closed,
    Replaced(Error),
}

impl Runner {
    async fn run(mut self, link: Link) {
        self.keep_up(link).await;
        if let Some(error) = self.engine.possible_loss() {
            self.shared.note_possible_loss(error);
        }
    }

    /// Keeps up a session until the device is closed or replaced.
    async fn keep_up(&mut self, mut link: Link) {
        loop {
            self.publish_session(&link);
            let began = self.options.clock.now();
            let wait = match self.serve(&mut link).await {
                Ok(()) => {
                    self.shared.client().into_iter().for_each(ClientPath::part);
                    return link.logout().await;
                }
                Err(LinkError::Replaced(error)) => return self.give_up(&error),
                Err(LinkError::Fenced(error)) => return self.be_fenced(link, error),
                Err(error) => {
                    let now = self.options.clock.now();
                    let was_useful = self.engine.take_usefulness();
                    self.back_off.note_session(now.since(began), was_useful);
                    // The time limit of requests runs on over sessions in which none was carried
                    // out.
                    let waits_since = self.engine.waits_since().filter(|_| !was_useful);
                    let away_since = self.away_since.zip(waits_since).map(|(away, waits)| away.max(waits));
                    self.away_since = Some(away_since.unwrap_or(now));
                    let wait = first_wait(&link, &error).max(self.back_off.take());
                    self.note_loss(&error);
                    if matches!(error, LinkError::LogoutRequested) {
                        link.logout().await;
                    }
                    self.engine.take_back(link, &error);
                    wait
                }
            };
            link = match self.reconnect(wait).await {
                Ok(link) => link,
                Err(End::Closed) => {
                    let words = format!("{} was closed while it could not be reached", self.options.place());
                    return self.engine.fail_all(&Error::new(ErrorKind::Gone, words));
                }
                Err(End::Replaced(error)) => return self.give_up(&error),
            };
        }
    }

    /// Serves requests until the device is closed. When the unit reports a change, its properties
    /// are read again.
    async fn serve(&mut self, link: &mut Link) -> Result<(), LinkError> {
        let mut is_back = false;
        let mut rounds = Rounds::new();
        self.engine.begin_session();
        loop {
            // "Back" is logged only when everything that was not durable is written again.
            let stop = poll_fn(|context| {
                let stop = self.engine.poll(link, context);
                if !is_back && self.engine.is_ready() {
                    is_back = true;
                    self.announce_back();
                }
                stop
            })
            .await;
            match stop {
                Stop::Closed => return Ok(()),
                Stop::Lost(error) => return Err(error),
                Stop::Fenced(error) => return Err(LinkError::Fenced(error)),
                Stop::Attention(Attention::Leave) => return Err(LinkError::LogoutRequested),
                Stop::Attention(attention) => {
                    let mut probe = Probe::new(link, &self.options)?;
                    let unit = while_asking(&mut self.engine, probe.run()).await?;
                    let support = unit.change_marks;
                    let attention = attention.max(self.learn(link));
                    self.check_named(&unit)?;
                    // Identity first: another device must not learn of our marks.
                    self.adopt(unit).map_err(LinkError::Replaced)?;
                    // A nexus reset drops the marks at the target; after other reports this finds
                    // them in place.
                    let mut probe = Probe::new(link, &self.options)?;
                    let asking = ask_again(&mut probe, support, &self.shared, self.options.is_shared);
                    let changed = while_asking(&mut self.engine, asking).await?;
                    let decision = self.decision_about(&changed);
                    while_asking(&mut self.engine, decision).await;
                    self.tell_of(&changed);
                    // These reports came after the unit was read: it is read again.
                    std::mem::take(&mut link.senses).iter().for_each(|sense| self.engine.note_sense(sense));
                    if attention >= Attention::PowerOn {
                        self.engine.begin_again();
                        self.engine.start_replay();
                    }
                    if self.engine.has_attention() {
                        let wait = rounds.note_unsettled().ok_or(LinkError::Unsettled)?;
                        let waiting = self.options.clock.sleep(wait);
                        while_asking(&mut self.engine, waiting).await;
                    } else {
                        rounds.note_settled();
                    }
                }
            }
        }
    }

    /// Tries to log in until the LUN is back, or the device is closed.
    async fn reconnect(&mut self, first_wait: Duration) -> Result<Link, End> {
        let since = self.away_since.unwrap_or_else(|| self.options.clock.now());
        let fail_at = since + self.options.replacement_timeout;
        let mut wait = first_wait;
        // A request from while there still was a session is void.
        self.shared.take_reconnect_request();
        for attempt in 1u32.. {
            self.publish_attempt(attempt, wait);
            let waiting = self.options.clock.sleep(wait);
            if self.while_away(fail_at, waiting).await?.is_none() {
                self.back_off.reset();
                self.back_off.take();
            }
            let (opener, mut portal) = (self.opener.clone(), self.portal.clone());
            let shared = Arc::clone(&self.shared);
            // Only in that group does the login end the tasks of the lost session (RFC 7143 6.3.5).
            let group = self.group.filter(|_| self.engine.has_writes_in_doubt());
            let mut senses = Vec::new();
            let received = &mut senses;
            let attempted =
                async move { (establish(&opener, &mut portal, group, Some(&shared), received).await, portal) };
            let Some((opened, portal)) = self.while_away(fail_at, attempted).await? else {
                self.back_off.reset();
                wait = self.back_off.take();
                continue;
            };
            match opened.and_then(|session| self.check_named(&session.unit).map(|()| session)) {
                Ok(Session { mut link, unit, changed, late_senses }) => {
                    self.portal = portal;
                    self.group = link.portal_group_tag();
                    // All retained writes are written again in any case.
                    self.learn(&mut link);
                    self.adopt(unit).map_err(End::Replaced)?;
                    let decision = self.decision_about(&changed);
                    if self.while_away(fail_at, decision).await?.is_none() {
                        self.back_off.reset();
                        wait = self.back_off.take();
                        continue;
                    }
                    self.tell_of(&changed);
                    // For a shared LUN the registration decides whether writes can be lost.
                    if !self.options.is_shared {
                        self.engine.start_replay();
                    }
                    // These reports came after the unit was read: it is read again.
                    late_senses.iter().for_each(|sense| self.engine.note_sense(sense));
                    self.shared.set_refusal(None);
                    return Ok(link);
                }
                Err(error) => {
                    for sense in &senses {
                        self.engine.learn(sense);
                    }
                    let (place, portal) = (self.options.place(), &self.portal);
                    // While a target is away for long, a few lines say as much as thousands.
                    let is_few = attempt.is_power_of_two();
                    match is_few.then(|| self.notices.admit(Notice::NoSession, self.options.clock.now())).flatten() {
                        Some(left_out) => {
                            tracing::warn!(%error, attempt, place, %portal, left_out, "no session yet");
                        }
                        None => tracing::debug!(%error, attempt, place, %portal, "no session yet"),
                    }
                    self.shared.view().status.last_error = Some(error.into_error(&self.options).to_string());
                    wait = self.back_off.take();
                }
            }
        }
        unreachable!("attempts are not counted to their end in a lifetime")
    }

    /// Waits for `future`. Requests that come in meanwhile are queued, and fail when their time is
    /// up. Returns `None` when the user asks to reconnect now, and an error when the device is
    /// closed.
    async fn while_away<T>(&mut self, fail_at: Instant, future: impl Future<Output = T>) -> Result<Option<T>, End> {
        let mut future = pin!(future);
        let mut alarm = Alarm::default();
        let Self { engine, shared, options, .. } = self;
        poll_fn(|context| {
            engine.accept(context);
            engine.pass_on();
            engine.publish_queues();
            if shared.is_closing() {
                return Poll::Ready(Err(End::Closed));
            }
            if alarm.poll(context, &*options.clock, options.clock.now(), Some(fail_at)) {
                start_failing(engine, shared, options);
            }
            if shared.take_reconnect_request() {
                return Poll::Ready(Ok(None));
            }
            future.as_mut().poll(context).map(|output| Ok(Some(output)))
        })
        .await
    }

    /// Takes note of what the unit reported while its properties were read. Returns the weightiest
    /// attention.
    fn learn(&mut self, link: &mut Link) -> Attention {
        let senses = std::mem::take(&mut link.senses);
        senses.iter().map(|sense| self.engine.learn(sense)).max().unwrap_or_default()
    }

    /// Refuses, for this attempt, a unit that does not report the name that is known of it: it may
    /// be the same one or another.
    fn check_named(&self, unit: &Unit) -> Result<(), LinkError> {
        let known = &self.engine.unit.identity;
        if !lacks_known_identity(&unit.identity, known, self.options.lun) {
            return Ok(());
        }
        let words =
            format!("{} does not say what it is: it was {known}, and says {}", self.options.place(), unit.identity);
        Err(LinkError::Unit(Error::new(ErrorKind::TimedOut, words)))
    }

    /// Adopts the unit's new properties, if it is still the same unit.
    fn adopt(&mut self, unit: Unit) -> Result<(), Error> {
        let known = &self.engine.unit.identity;
        if unit.identity != *known {
            let words = format!(
                "{} is another device now: it was {known}, and it is {}; nothing is written there; detach and look",
                self.options.place(),
                unit.identity
            );
            return Err(Error::new(ErrorKind::Gone, words));
        }
        let geometry = unit.geometry;
        let (blocks, known_blocks) = (geometry.logical_block_bytes, self.engine.unit.geometry.logical_block_bytes);
        if blocks != known_blocks {
            // Requests under way, retained writes and the layers above use blocks that the unit has
            // no more.
            let words = format!(
                "{} is another device now: its blocks had {known_blocks} bytes, and have {blocks}; nothing is written \
                 there; what was written since the last flush may be lost; detach and look",
                self.options.place()
            );
            return Err(Error::new(ErrorKind::Gone, words));
        }
        {
            let mut view = self.shared.view();
            (view.change_marks, view.sharing) = (unit.change_marks, unit.sharing);
        }
        self.engine.adopt(unit);
        let previous = std::mem::replace(&mut self.shared.view().geometry, geometry);
        if previous != geometry {
            if let Some(left_out) = self.notices.admit(Notice::OtherProperties, self.options.clock.now()) {
                let what = changes(&previous, &geometry);
                tracing::info!(place = self.options.place(), left_out, "the LUN has changed: {what}");
            }
            self.shared.events.publish(&Event::Resized(geometry));
        }
        Ok(())
    }

    fn within_unit(&self, changed: &ReportedChanges) -> ReportedChanges {
        changed.within(self.shared.view().geometry.size_bytes)
    }

    /// The guard's decision, after these changes, whether this host may still change the unit. A unit
    /// that cannot tell any more says nothing of what is dirty.
    fn decision_about(&self, changed: &ReportedChanges) -> impl Future<Output = ()> + Send + use<> {
        let (shared, changed) = (Arc::clone(&self.shared), self.within_unit(changed));
        let can_tell = shared.view().change_marks.is_some();
        async move {
            if let Some(guard) = shared.guard.get().filter(|_| can_tell) {
                guard.receive(changed).await;
            }
        }
    }

    /// Publishes what other hosts changed: copies of it above are void. The guard has decided before
    /// whether this host may still change the unit.
    fn tell_of(&mut self, changed: &ReportedChanges) {
        let size_bytes = self.shared.view().geometry.size_bytes;
        let reported = self.within_unit(changed);
        let changed = reported.ranges();
        let bytes: u64 = changed.iter().map(|range| range.length).sum();
        self.log_changes(&reported, bytes);
        self.shared.view().status.changed_by_others_bytes += bytes;
        changed_ranges::publish(&self.shared.events, changed, size_bytes);
    }

    fn log_changes(&mut self, reported: &ReportedChanges, bytes: u64) {
        let (place, now) = (self.options.place(), self.options.clock.now());
        let notice = match &reported.unreported {
            Some(_) => Notice::Untold,
            None if reported.unknown.is_some() => Notice::PerhapsChanged,
            None if bytes > 0 => Notice::Changed,
            None => return,
        };
        let Some(left_out) = self.notices.admit(notice, now) else { return };
        match &reported.unreported {
            Some(error) => {
                tracing::warn!(
                    bytes,
                    place,
                    error,
                    left_out,
                    "the target does not tell what others changed while the LUN was out of reach: all of it counts as \
                     changed"
                );
            }
            None if notice == Notice::PerhapsChanged => {
                tracing::warn!(
                    bytes,
                    place,
                    left_out,
                    "the target does not know what others changed while the LUN was out of reach: perhaps all of it"
                );
            }
            None => tracing::warn!(bytes, place, left_out, "others changed the LUN while it was out of reach"),
        }
    }

    /// Fails everything for good: another device is in the LUN's place.
    fn give_up(&mut self, error: &Error) {
        tracing::error!(%error, place = self.options.place(), "the device was replaced");
        {
            let mut view = self.shared.view();
            view.status.state = State::Replaced;
            view.status.last_error = Some(error.to_string());
        }
        self.shared.set_refusal(Some(error.clone()));
        self.shared.events.publish(&Event::IdentityChanged);
        self.engine.fail_all(error);
    }

    /// Fails everything: this host is fenced. The outcome of what it had under way is unknown.
    fn be_fenced(&mut self, link: Link, error: Error) {
        tracing::error!(%error, "fenced");
        self.shared.events.publish(&Event::IdentityChanged);
        self.engine.take_back(link, &LinkError::Fenced(error.clone()));
        {
            let mut view = self.shared.view();
            view.status.state = State::Fenced;
            view.status.last_error = Some(error.to_string());
        }
        self.shared.set_refusal(Some(error.clone()));
        self.engine.fail_all(&error);
    }

    fn note_loss(&mut self, error: &LinkError) {
        if let Some(left_out) = self.notices.admit(Notice::SessionLost, self.options.clock.now()) {
            tracing::warn!(%error, place = self.options.place(), left_out, "the session is lost");
        }
        {
            let mut view = self.shared.view();
            view.status.state = State::Reconnecting;
            view.status.last_error = Some(error.to_string());
        }
        self.shared.events.publish(&Event::Offline);
    }

    fn announce_back(&mut self) {
        let (session, portal) = {
            let mut view = self.shared.view();
            view.status.state = State::Online;
            (view.status.session_count, view.status.portal.clone())
        };
        if session > 1 {
            // A warning, like the loss: a reader of warnings alone would otherwise believe the
            // target still lost.
            if let Some(left_out) = self.notices.admit(Notice::SessionBack, self.options.clock.now()) {
                tracing::warn!(place = self.options.place(), portal, session, left_out, "the session is back");
            }
            self.shared.events.publish(&Event::Back);
        }
    }

    fn publish_session(&self, link: &Link) {
        let mut view = self.shared.view();
        let status = &mut view.status;
        if status.state != State::Online {
            status.session_count += 1;
        }
        status.state = if self.engine.is_replaying() { State::Replaying } else { State::Online };
        status.portal = link.portal().to_string();
        status.portal_group_tag = link.portal_group_tag();
        status.reconnect_attempts = 0;
        status.reconnect_wait = None;
        status.negotiated = Some(*link.session.negotiated());
    }

    fn publish_attempt(&self, attempt: u32, wait: Duration) {
        let mut view = self.shared.view();
        view.status.portal = self.portal.to_string();
        view.status.reconnect_attempts = attempt;
        view.status.reconnect_wait = Some(wait);
    }
}

/// Waits for `future`, for which all requests wait in a session that goes on. Those that come meanwhile are queued, and
/// each ends when its time is up.
async fn while_asking<T>(engine: &mut Engine, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    poll_fn(|context| {
        engine.wait_for_answers(context);
        future.as_mut().poll(context)
    })
    .await
}

/// Fails what waits and what comes: the replacement timeout has passed.
fn start_failing(engine: &mut Engine, shared: &Shared, options: &InitiatorOptions) {
    let seconds = options.replacement_timeout.as_secs_f64();
    let words = format!("{} has not been reachable for {seconds} s; it is still looked for", options.place());
    shared.view().status.state = State::Failing;
    shared.set_refusal(Some(Error::new(ErrorKind::Gone, words.clone())));
    engine.fail_all(&Error::new(ErrorKind::TimedOut, words));
}

/// The wait before the first attempt: Time2Wait where the target asked for one (RFC 7143 13.15). A
/// session that ended before it was of use is not replaced at once.
fn first_wait(link: &Link, error: &LinkError) -> Duration {
    use iscsi::initiator::ConnectionError::Dropped;
    match error {
        LinkError::Connection(Dropped { wait_seconds }) => Duration::from_secs((*wait_seconds).into()),
        LinkError::Unit(_) => BUSY_WAIT_MAX,
        _ => Duration::from_secs(link.session.negotiated().default_time2wait.into()),
    }
}

/// Asks a portal for its targets.
///
/// # Errors
/// As [`connect`].
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

/// What has changed about a unit, in words for the log.
fn changes(before: &Geometry, now: &Geometry) -> String {
    let mut words = Vec::new();
    if before.size_bytes != now.size_bytes {
        words.push(format!("its size was {} bytes and is {}", before.size_bytes, now.size_bytes));
    }
    if before.is_write_cache_volatile != now.is_write_cache_volatile {
        words.push(format!("its write cache is {}", if now.is_write_cache_volatile { "on" } else { "off" }));
    }
    if before.is_read_only != now.is_read_only {
        words.push(format!("it may {} be written to", if now.is_read_only { "no longer" } else { "again" }));
    }
    if words.is_empty() {
        words.push("its blocks or limits".to_owned());
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_what_changed_and_nothing_else() {
        let before = Geometry::plain(4096);
        let switched = Geometry { is_write_cache_volatile: !before.is_write_cache_volatile, ..before };
        assert!(!changes(&before, &switched).contains("size"), "{}", changes(&before, &switched));
        assert!(changes(&before, &switched).contains("write cache"));
        let grown = Geometry { size_bytes: 8192, ..before };
        assert_eq!(changes(&before, &grown), "its size was 4096 bytes and is 8192");
        let shut = Geometry { is_read_only: true, ..before };
        assert_eq!(changes(&before, &shut), "it may no longer be written to");
        assert_eq!(changes(&before, &Geometry { physical_block_bytes: 8192, ..before }), "its blocks or limits");
    }
}
