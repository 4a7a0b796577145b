//! A mounted file system: the ext2 of a remote LUN, or of a file, in a directory.
//!
//! ```text
//! directory  ->  Volume (FUSE)  ->  ext2  ->  sharedfs  ->  remote LUN or file
//! ```
//! It answers on its control socket from the beginning, and is mounted when it reports `ready`.
//! Order of the end, after a signal, `forebay detach` or `umount`: the directory is unmounted and
//! requests under way are answered, all changes become durable and are written to their place, the
//! superblock is marked clean, and the session is closed. `ending` is the part of that which is
//! left out where the target is away. `flushing` is what is asked for by the control socket. `mark` is how it hears
//! that others changed the LUN meanwhile; `sharing` is how it gets on with other hosts that have it mounted.

use std::cell::Cell;
use std::future::{Future, pending};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use base::clock::Clock;
use block::SharedDevice;
use ext2::{OpenOptions, Timestamp};
use file::{FileDevice, FileOptions};
use front::{Volume, VolumeOptions, make_mountable};
use sharedfs::{Hosts, Mounted, Redo, SharedBlocks};
use tokio::sync::watch::Sender;

use crate::caches::Caches;
use crate::control::{ControlRequest, ControlServer, Handler, Progress, is_no_daemon};
use crate::ending_time::EndingTime;
use crate::error::{Error, Failure, Result};
use crate::events::{EventKind, EventLog};
use crate::flag::wait_until;
use crate::freshness::note_writable_opening;
use crate::fronts::MOUNTABLE;
use crate::limits::{CLOSE_TIME_MAX, MOUNT_CACHE_BYTES};
use crate::login::attachment_isid;
use crate::newest_data;
use crate::occurrences::{Look, note_occurrences};
use crate::paths::{Paths, check_name};
use crate::registry::{Registry, UnitLock};
use crate::remotes::{Remotes, RemotesConfig, number_sessions};
use crate::search::{Search, Sought};
use crate::settings::Settings;
use crate::status::mount::{MountCounts, MountStatus};
use crate::status::{Answer, Left, ProcessStatus};
use crate::systemd;
use crate::time::system_clock;

mod ending;
mod flushing;
mod mark;
mod parts;
mod sharing;

use mark::MountMark;
use parts::MountParts;

/// The configuration of a mount.
#[derive(Debug)]
pub struct MountConfig {
    /// The URL of a logical unit, or the path of a file or block device.
    pub source: String,
    /// The directory.
    pub directory: PathBuf,
    /// Its name; by default the last part of the directory's path.
    pub name: Option<String>,
    /// Whether it is read only.
    pub is_read_only: bool,
    /// Whether other hosts have it mounted at the same time.
    pub is_shared: bool,
    /// Whether it waits for a target that cannot be reached yet.
    pub waits_for_target: bool,
    /// The settings of the login.
    pub settings: Settings,
}

/// A mounted file system that is not served yet.
pub struct Mount {
    parts: Rc<MountParts>,
    control: ControlServer,
}

/// The device below the file system.
struct Source {
    device: SharedDevice,
    remotes: Option<Remotes>,
    lock: Option<UnitLock>,
}

impl Mount {
    /// Connects, repairs what a crash left, and mounts. `None` when `signal` came before that was
    /// done.
    ///
    /// # Errors
    /// Whatever prevents the mount; only the repair has changed anything then.
    pub async fn start(config: MountConfig, paths: &Paths, signal: impl Future<Output = ()>) -> Result<Option<Self>> {
        let mut signal = pin!(signal);
        let name = match &config.name {
            Some(name) => name.clone(),
            None => name_of(&config.directory)?,
        };
        check_name(&name)?;
        let control = ControlServer::bind_as(paths, &name)?;
        // Before other hosts are kept waiting.
        make_mountable(&config.directory).map_err(|error| cannot_mount_over(&config.directory, &error))?;
        let opened = open_source(&config, &name, paths, &control, signal.as_mut()).await?;
        let Some(source) = opened else { return Ok(None) };
        let opened = tokio::select! {
            biased;
            // A repair that is left in the middle leaves the file system no worse.
            () = signal => None,
            opened = Opened::open(&config, &name, &source, paths) => Some(opened),
        };
        match opened {
            Some(Ok(opened)) => {
                let parts = Rc::new(MountParts::new(config, name, source, opened, control.events()));
                Ok(Some(Self { parts, control }))
            }
            refused => {
                if let Some(remotes) = &source.remotes {
                    leave(remotes).await;
                }
                refused.transpose().map(|_| None)
            }
        }
    }

    /// The directory of the mount.
    pub fn directory(&self) -> &Path {
        &self.parts.directory
    }

    /// Serves until it is unmounted or detached, or until `signal`; then all changes are made
    /// durable. After a signal that takes [`STOP_TIME_MAX`](crate::limits::STOP_TIME_MAX) at most;
    /// after another one, which `again` waits for, nothing is waited for.
    ///
    /// # Errors
    /// When that fails: the next mount repairs the file system then, without the changes that were
    /// not durable.
    pub async fn run(self, signal: impl Future<Output = ()>, again: impl AsyncFnOnce()) -> Result<()> {
        let Self { parts, control } = self;
        let serve = async {
            let time = &parts.ending_time;
            let ended = time.watching_target(parts.serve(), parts.remotes.as_ref(), || parts.dirty_bytes()).await;
            parts.ended.send_replace(Some(ended.clone()));
            ended
        };
        let obey = async {
            signal.await;
            parts.ending_time.cut_short();
            parts.ending_time.begin();
            again().await;
            parts.ending_time.take_away();
            pending::<()>().await;
        };
        let obey = async {
            tokio::select! {
                () = obey => unreachable!("it is pending for ever"),
                () = parts.has_ended() => {}
            }
        };
        systemd::ready();
        parts.events.note(EventKind::Started, format!("in {}", parts.directory.display()));
        let noting = async {
            tokio::select! {
                () = note_occurrences(&parts.events, || parts.look()) => {}
                () = parts.has_ended() => {}
            }
        };
        let control = control.serve(Rc::clone(&parts), parts.has_ended());
        let (ended, ..) = tokio::join!(serve, control, obey, noting);
        ended
    }
}

/// What is opened over a source.
struct Opened {
    file_system: Arc<Mounted>,
    volume: Volume<SharedBlocks<Redo>>,
    mark: Option<MountMark>,
}

impl Opened {
    async fn open(config: &MountConfig, name: &str, source: &Source, paths: &Paths) -> Result<Self> {
        let MountConfig { source: source_name, directory, is_read_only, is_shared, .. } = config;
        let (is_read_only, is_shared) = (*is_read_only, *is_shared);
        let Source { device, remotes, .. } = source;
        let caches = Caches::open(paths)?;
        // First of all: a LUN that is not there now is not mounted without. Where hosts share it, the lock tells what
        // others may have changed.
        let mark = match remotes {
            Some(remotes) if !is_read_only && !is_shared => Some(MountMark::take(name, remotes, caches).await?),
            Some(_) | None => None,
        };
        let hosts = match is_shared {
            true => Some(sharing::hosts_of(remotes.as_ref(), system_clock()?)?),
            false => None,
        };
        let options = VolumeOptions { is_read_only, is_shared, source: source_name.clone() };
        let mounted = mounted(device, directory, hosts, &options).await;
        if let (Err(_), Some(mark), Some(remotes)) = (&mounted, &mark, remotes) {
            mark.give_up(remotes).await;
        }
        let (file_system, volume) = mounted?;
        Ok(Self { file_system, volume, mark })
    }
}

/// Logs out, and as a client of a shared LUN leaves: what it holds is others' at once, and nobody waits until it counts
/// as dead.
async fn leave(remotes: &Remotes) {
    match tokio::time::timeout(CLOSE_TIME_MAX, remotes.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the session was not closed in order"),
        Err(_) => tracing::warn!("the target does not answer: the session is not closed in order"),
    }
}

fn cannot_mount_over(directory: &Path, error: &std::io::Error) -> Error {
    Error::io(format!("cannot mount over {}", directory.display()), error)
}

impl MountParts {
    fn new(config: MountConfig, name: String, source: Source, opened: Opened, events: Rc<EventLog>) -> Self {
        let Source { device, remotes, lock } = source;
        let Opened { file_system, volume, mark } = opened;
        Self {
            ending_time: EndingTime::new(&name),
            is_committed: Cell::new(false),
            name,
            source: config.source,
            directory: config.directory,
            file_system,
            volume,
            device,
            remotes,
            mark,
            is_read_only: config.is_read_only,
            events,
            ended: Sender::new(None),
            _lock: lock,
        }
    }

    /// From the first request to the end.
    async fn serve(&self) -> Result<()> {
        let stop = async {
            wait_until(self.ending_time.stopping()).await;
            systemd::stopping();
        };
        let served = self.volume.serve(stop, self.ending_time.until_step_is_over()).await;
        let served = served.map_err(|error| Error::io(format!("cannot serve {}", self.source), &error));
        // Somebody else may have unmounted it.
        self.ending_time.begin();
        self.end().await.and(served)
    }

    /// What is looked at for events.
    fn look(&self) -> Look {
        Look {
            remote: self.remotes.as_ref().and_then(Remotes::status),
            losses: 0,
            troubles: self.trouble().into_iter().collect(),
            size_bytes: self.device.geometry().size_bytes,
            is_ending: self.ending_time.has_begun(),
        }
    }

    fn status(&self) -> MountStatus {
        let counters = self.file_system.blocks().counters();
        MountStatus {
            name: self.name.clone(),
            pid: std::process::id(),
            address: self.directory.clone(),
            source: self.source.clone(),
            size_bytes: Some(self.device.geometry().size_bytes),
            is_read_only: self.is_read_only,
            troubles: self.trouble().into_iter().collect(),
            remote: self.remotes.as_ref().and_then(Remotes::status),
            mount: MountCounts {
                requests: self.volume.requests(),
                known_inodes: self.volume.known_inodes(),
                commits: counters.commits,
                changed_blocks: counters.changed_blocks,
                cached_blocks: counters.cached_blocks,
                block_hits: counters.hits,
                block_misses: counters.misses,
            },
        }
    }
}

impl Handler for MountParts {
    async fn handle(&self, request: ControlRequest, progress: Progress) -> Result<Answer> {
        match request {
            ControlRequest::Status => Ok(Answer::Status(Box::new(ProcessStatus::Mount(Box::new(self.status()))))),
            ControlRequest::Events { after } => Ok(self.events.answer(after)),
            ControlRequest::Flush => self.flush(&progress).await.map(Answer::Flushed),
            ControlRequest::Clean => {
                self.flush(&progress).await?;
                Ok(Answer::Left(Left { dirty_bytes: Some(0), ..Left::default() }))
            }
            ControlRequest::Detach { keep_dirty, .. } => self.detach(keep_dirty, &progress).await.map(Answer::Left),
            ControlRequest::Start { .. } | ControlRequest::Hold { .. } => Err(is_no_daemon(&self.name)),
            ControlRequest::Set { .. } | ControlRequest::Reload => Err(Error::new(
                Failure::Usage,
                format!("\"{}\" is a mount: nothing of it changes while it runs", self.name),
            )),
        }
    }
}

/// The last part of a directory's path.
fn name_of(directory: &Path) -> Result<String> {
    let name = directory.file_name().and_then(|name| name.to_str());
    let no_name = || Error::new(Failure::Usage, format!("give {} a --name", directory.display()));
    name.map(str::to_owned).ok_or_else(no_name)
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: since.as_secs().cast_signed(), nanoseconds: since.subsec_nanos() }
}

/// `None` when `signal` came before the target was found, or it was detached.
async fn open_source(
    config: &MountConfig,
    name: &str,
    paths: &Paths,
    control: &ControlServer,
    signal: Pin<&mut impl Future<Output = ()>>,
) -> Result<Option<Source>> {
    if config.is_shared && config.is_read_only {
        let message = "--shared and --read-only exclude each other: a mount that only reads takes no locks";
        return Err(Error::new(Failure::Usage, message));
    }
    if !config.source.contains("://") {
        if config.is_shared {
            let message = "--shared takes the URL of a logical unit: locks between hosts are at its target";
            return Err(Error::new(Failure::Usage, message));
        }
        return open_file(config, paths).map(Some);
    }
    let unit = unit_of(config, name, paths)?;
    let Some(remotes) = connect(config, &unit, name, control, signal).await? else { return Ok(None) };
    open_unit(config, remotes, name, paths).await.map(Some)
}

/// Opens a file or block device of this host, and locks it.
fn open_file(config: &MountConfig, paths: &Paths) -> Result<Source> {
    check_there(&config.source, paths)?;
    let options = FileOptions { exclusive: true, read_only: config.is_read_only, ..FileOptions::default() };
    let device: SharedDevice = FileDevice::open(&config.source, options)?;
    Ok(Source { device, remotes: None, lock: None })
}

/// Refuses a source that is no file, with what a mount takes.
fn check_there(source: &str, paths: &Paths) -> Result<()> {
    if Path::new(source).try_exists().unwrap_or(true) {
        return Ok(());
    }
    let takes = "a mount takes the URL of a logical unit (iscsi://...), or the path of a file or block device";
    let is_running = check_name(source).is_ok() && paths.control_socket(source).exists();
    let message = match is_running {
        true => format!(
            "\"{source}\" is the name of what runs here: {takes}; of an attachment that is {MOUNTABLE}, as \
             `forebay status {source}` names it"
        ),
        false => format!("{source} does not exist: {takes}"),
    };
    Err(Error::new(Failure::NotFound, message))
}

/// The address of the logical unit, and the session for it.
fn unit_of(config: &MountConfig, name: &str, paths: &Paths) -> Result<RemotesConfig> {
    if config.source.contains(',') {
        let message = "a mount has one logical unit: attach a stripe, and mount what is offered then";
        return Err(Error::new(Failure::Usage, message));
    }
    let mut unit = RemotesConfig::of(&config.source, &config.settings)?;
    // The session of a killed process ends when this one begins (RFC 7143 6.3.5): none of its
    // writes lands afterwards.
    let isid = unit.remotes.first().and_then(|remote| remote.isid);
    let isid = isid.unwrap_or_else(|| attachment_isid(&paths.control_socket(name)));
    number_sessions(&mut unit.remotes, Some(isid));
    for remote in &mut unit.remotes {
        (remote.is_shared, remote.holds_whole) = (config.is_shared, config.is_shared);
    }
    Ok(unit)
}

/// Opens the file system on `device`, shared with `hosts` if there are any, and mounts it over `directory`.
async fn mounted(
    device: &SharedDevice,
    directory: &Path,
    hosts: Option<Hosts>,
    volume: &VolumeOptions,
) -> Result<(Arc<Mounted>, Volume<SharedBlocks<Redo>>)> {
    let is_read_only = volume.is_read_only;
    let options = OpenOptions { is_read_only, may_use_reserved: true, wall_clock: Arc::new(now) };
    let opened = sharedfs::open(Arc::clone(device), options, MOUNT_CACHE_BYTES, hosts).await;
    let file_system = Arc::new(opened.map_err(|error| Error::from(error).context(&volume.source))?);
    let copies = device.copies().filter(|_| volume.is_shared);
    match Volume::mount(Arc::clone(&file_system), directory, volume, copies) {
        Ok(volume) => Ok((file_system, volume)),
        Err(error) => {
            sharedfs::close(&file_system).await?;
            Err(cannot_mount_over(directory, &error))
        }
    }
}

/// Opens a logical unit that no other process of this host uses, unless each of them shares it.
async fn open_unit(config: &MountConfig, remotes: Remotes, name: &str, paths: &Paths) -> Result<Source> {
    match check_unit(config, &remotes, name, paths).await {
        Ok(lock) => Ok(Source { device: remotes.device(), remotes: Some(remotes), lock: Some(lock) }),
        Err(error) => {
            leave(&remotes).await;
            Err(error)
        }
    }
}

/// Checks that it may be mounted, and locks it.
async fn check_unit(config: &MountConfig, remotes: &Remotes, name: &str, paths: &Paths) -> Result<UnitLock> {
    let identity = remotes.identity();
    if !config.is_shared {
        sharing::check_alone(remotes)?;
    }
    let lock = match config.is_read_only || config.is_shared {
        true => UnitLock::share(paths, std::slice::from_ref(&identity), name)?,
        false => UnitLock::acquire(paths, std::slice::from_ref(&identity), name)?,
    };
    let (registry, caches) = (Registry::open(paths)?, Caches::open(paths)?);
    newest_data::check(remotes, (&registry, &caches), &[], system_clock()?.as_ref()).await?;
    if !config.is_read_only {
        // Before the first write: unattached caches of this host have old data from then on.
        note_writable_opening(&caches, &remotes.identities(), &[])?;
    }
    Ok(lock)
}

/// Logs in, repeatedly where waiting for the target is wanted.
async fn connect(
    config: &MountConfig,
    unit: &RemotesConfig,
    name: &str,
    control: &ControlServer,
    signal: Pin<&mut impl Future<Output = ()>>,
) -> Result<Option<Remotes>> {
    let clock: Arc<dyn Clock> = system_clock()?;
    if config.waits_for_target {
        let search = Search::new(Sought::Mount(config.directory.clone()), name, unit, control.events());
        return search.until_found(unit, &clock, control, signal).await;
    }
    tokio::select! {
        biased;
        () = signal => Ok(None),
        remotes = unit.connect(&clock) => remotes.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use scsi::sharing::report::ReportRecord;

    use super::*;
    use crate::test_target;

    /// Other hosts would wait until it counts as dead.
    #[tokio::test]
    async fn a_shared_mount_that_is_refused_or_interrupted_has_left_and_nobody_is_fenced() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let identity = block::Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
        let lun = Arc::new(block::memory::MemoryDevice::new(16 << 20, identity));
        let marks = Arc::new(logical_unit::MemoryChanges);
        let address = test_target::serve_shared(lun, marks, system_clock().unwrap());
        let other = test_target::connect(address, "other", None, true).await;
        let known = || async {
            let records = other.member_luns()[0].luns[0].sharing_report().await.unwrap();
            let is_client =
                |record: &&ReportRecord| matches!(record, ReportRecord::Client { .. } | ReportRecord::Fenced { .. });
            records.iter().filter(is_client).count()
        };
        let config = |directory: PathBuf| MountConfig {
            source: format!("iscsi://{address}/{}/0", test_target::IQN),
            directory,
            name: Some("files".to_owned()),
            is_read_only: false,
            is_shared: true,
            waits_for_target: false,
            settings: Settings::default(),
        };
        let there = directory.path().join("there");
        std::fs::create_dir(&there).unwrap();
        let refused = Mount::start(config(directory.path().join("none")), &paths, pending()).await.err().unwrap();
        assert!(refused.to_string().contains("cannot mount over"), "{refused}");
        // It takes the lock first, and finds no file system.
        Mount::start(config(there.clone()), &paths, pending()).await.err().unwrap();
        assert_eq!(known().await, 1, "the other host alone");
        // Another one has the lock.
        let settings = Settings::default();
        let mut holder = RemotesConfig::of(&config(there.clone()).source, &settings).unwrap();
        holder.remotes.iter_mut().for_each(|remote| (remote.is_shared, remote.holds_whole) = (true, true));
        let clock: Arc<dyn Clock> = system_clock().unwrap();
        let holder = holder.connect(&clock).await.unwrap();
        let grants = holder.device().copies().unwrap().grants().unwrap().clone();
        let all = block::ByteRange { offset: 0, length: 1 };
        grants.acquire(all, block::grants::Right::Change).await;
        let _used = grants.use_to_write(all).unwrap();
        let interrupted = async {
            while known().await < 3 {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        let started = Mount::start(config(there), &paths, interrupted).await.unwrap();
        assert!(started.is_none());
        assert_eq!(known().await, 2, "the other host and the holder");
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_a_mount_takes() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        std::fs::create_dir_all(paths.control_socket("disk").parent().unwrap()).unwrap();
        std::fs::write(paths.control_socket("disk"), "").unwrap();
        for (source, words) in
            [("disk", "the file of --as fuse:PATH"), ("other", "other does not exist: a mount takes")]
        {
            let refused = check_there(source, &paths).unwrap_err();
            assert_eq!(refused.failure(), Failure::NotFound);
            assert!(refused.to_string().contains(words) && !refused.to_string().contains("size"), "{refused}");
        }
        assert!(check_there(directory.path().to_str().unwrap(), &paths).is_ok());
    }
}
