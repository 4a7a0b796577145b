//! The served logical units, and their changes with the configuration.
//!
//! A unit goes on while its entry in the configuration stays the same; only its size may change. A
//! new configuration is checked, and its new units are opened, before anything else is changed, so
//! that an impossible one changes nothing. A removed unit is closed when no session sees it any
//! more and its last command is answered; its file can be used again then.

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::disk::DiskLayer;
use block::memory::MemoryDevice;
use block::{Geometry, Identity, SharedDevice};
use file::{FileDevice, FileOptions};
use logical_unit::change_marks::range_bytes_for;
use logical_unit::{
    ChangeStore, LogicalUnit, LogicalUnitOptions, LunMap, MemoryChanges, ReservationStore, SavedMarks,
    SavedReservations, SavedSharing, SharingOptions,
};
use target::Target;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::error::{Error, Failure, Result};
use crate::lun_check;
use crate::lun_spec::{Backend, FileIdentity, LunSpec};
use crate::marks_file::{FoundFile, MarksFile};
use crate::own_stores::OwnStores;
use crate::paths::Paths;
use crate::sharing_file::SharingFile;
use crate::sidecar::Sidecar;
use crate::target_config::TargetConfig;

/// Interval at which a removed unit is checked until no command is under way.
const RETIRING_INTERVAL: Duration = Duration::from_millis(50);

/// A target's name in lower case, and a LUN.
type Place = (String, u16);

/// A logical unit that is served.
struct Served {
    spec: LunSpec,
    unit: Arc<LogicalUnit>,
    /// The file device, which can grow.
    file: Option<Arc<FileDevice>>,
    /// Which file or block device was opened; `None` in RAM.
    opened: Option<FileIdentity>,
    disk: Option<Arc<DiskLayer>>,
    /// The file of its change marks, when they outlive the process.
    marks: Option<Arc<MarksFile>>,
    running: JoinHandle<()>,
}

/// The change marks of a unit that is about to be served.
struct Marks {
    file: Option<Arc<MarksFile>>,
    store: Arc<dyn ChangeStore>,
    saved: SavedMarks,
}

/// All units.
pub(crate) struct Units {
    clock: Arc<dyn Clock>,
    workers: Workers,
    /// The directories of sidecars and of this host's list of stores.
    paths: Paths,
    served: BTreeMap<Place, Served>,
    /// Removed units that are not closed yet, with their specification.
    retiring: Vec<(LunSpec, JoinHandle<()>)>,
    /// Whether the keys of settings leave out the target's name.
    is_single_target: bool,
}

/// Counts of the changes made by a new configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) added: usize,
    pub(crate) removed: usize,
    pub(crate) resized: usize,
}

impl Units {
    pub(crate) fn new(clock: Arc<dyn Clock>, paths: Paths) -> Self {
        let workers = Workers::new();
        Self { clock, workers, paths, served: BTreeMap::new(), retiring: Vec::new(), is_single_target: true }
    }

    /// Background tasks that belong to no unit.
    pub(crate) fn workers(&self) -> Workers {
        self.workers.clone()
    }

    /// Applies the configuration `targets`, and returns its targets.
    ///
    /// # Errors
    /// Whatever prevents one of them; nothing has changed then. Only a file system that cannot let
    /// a file grow shows that later, when some files may have grown.
    pub(crate) fn apply(&mut self, targets: &[TargetConfig]) -> Result<(Vec<Target>, Changes)> {
        let own_stores = OwnStores::find(&self.paths)?;
        let mut opened: BTreeMap<Place, Served> = BTreeMap::new();
        let mut changes = Changes::default();
        for (config, spec) in targets.iter().flat_map(|target| target.luns.iter().map(move |spec| (target, spec))) {
            let place = (config.iqn.to_lowercase(), spec.lun);
            match self.served.get(&place) {
                None => {
                    self.check_free(spec)?;
                    lun_check::check(spec)?;
                    own_stores.check(spec)?;
                    opened.insert(place, self.open(&config.iqn, spec)?);
                    changes.added += 1;
                }
                Some(served) => served.check(spec)?,
            }
        }
        for (config, spec) in targets.iter().flat_map(|target| target.luns.iter().map(move |spec| (target, spec))) {
            if let Some(served) = self.served.get(&(config.iqn.to_lowercase(), spec.lun)) {
                changes.resized += usize::from(served.resize(spec)?);
            }
        }
        let is_wanted = |(iqn, lun): &Place| {
            let target = targets.iter().find(|target| target.iqn.eq_ignore_ascii_case(iqn));
            target.is_some_and(|target| target.luns.iter().any(|spec| spec.lun == *lun))
        };
        let gone: Vec<Place> = self.served.keys().filter(|place| !is_wanted(place)).cloned().collect();
        changes.removed = gone.len();
        for place in gone {
            if let Some(served) = self.served.remove(&place) {
                self.retiring
                    .push((served.spec.clone(), tokio::spawn(base::background::named("retiring", served.retire()))));
            }
        }
        self.served.append(&mut opened);
        self.is_single_target = targets.len() == 1;
        for spec in targets.iter().flat_map(|target| target.luns.iter().map(move |spec| (&target.iqn, spec))) {
            if let Some(served) = self.served.get_mut(&(spec.0.to_lowercase(), spec.1.lun)) {
                served.spec = spec.1.clone();
            }
        }
        Ok((targets.iter().map(|config| self.target(config)).collect(), changes))
    }

    /// Refuses a file that is served already: under another number or in another target it is
    /// another unit, with another identity, and the old unit must end first.
    fn check_free(&self, spec: &LunSpec) -> Result<()> {
        let file = spec.file();
        let is_same = |(_, served): &(&Place, &Served)| file.is_some() && served.spec.file() == file;
        let Some(((iqn, _), served)) = self.served.iter().find(is_same) else { return Ok(()) };
        let message = format!(
            "LUN {spec} is served as LUN {} of {iqn}: remove it there, reload, then add it here and reload again",
            served.spec.lun
        );
        Err(Error::new(Failure::Usage, message))
    }

    /// Takes the removed units that may not be closed yet, to wait for them before their files are
    /// opened again.
    pub(crate) fn take_retiring(&mut self) -> Vec<(LunSpec, JoinHandle<()>)> {
        std::mem::take(&mut self.retiring)
    }

    /// Puts back those that have not ended.
    pub(crate) fn put_retiring(&mut self, unfinished: Vec<(LunSpec, JoinHandle<()>)>) {
        self.retiring.extend(unfinished);
    }

    fn target(&self, config: &TargetConfig) -> Target {
        let luns = LunMap::new();
        for spec in &config.luns {
            if let Some(served) = self.served.get(&(config.iqn.to_lowercase(), spec.lun)) {
                luns.insert(u64::from(spec.lun), Arc::clone(&served.unit));
            }
        }
        Target {
            alias: config.alias.clone(),
            portal_groups: config.portal_groups.clone(),
            access: config.access.clone(),
            masks: config.masks.clone(),
            own: config.own.clone(),
            ..Target::new(config.iqn.clone(), luns)
        }
    }

    /// The simulated disks, by the keys of their settings.
    pub(crate) fn disks(&self) -> Vec<(String, Arc<DiskLayer>)> {
        let setting = |(iqn, lun): &Place| {
            if self.is_single_target { format!("lun.{lun}.disk") } else { format!("{iqn}.lun.{lun}.disk") }
        };
        let disks = self.served.iter().filter_map(|(place, served)| Some((setting(place), served.disk.clone()?)));
        disks.collect()
    }

    /// Files and block devices that are not at their paths any more, or not whole, in words.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let trouble =
            |((iqn, lun), served): (&Place, &Served)| Some(format!("LUN {lun} of {iqn}: {}", served.trouble()?));
        self.served.iter().filter_map(trouble).collect()
    }

    /// Has the marks of units whose file was found cut tell that everything has changed: it may be long again, and
    /// whole in other ways, when the next cache is opened.
    pub(crate) fn note_cuts(&self) -> impl Future<Output = ()> + use<> {
        let of = |served: &Served| (Arc::clone(&served.unit), served.file.clone());
        let units: Vec<_> = self.served.values().map(of).collect();
        async move {
            for (unit, file) in units {
                note_cut(&unit, file.as_deref()).await;
            }
        }
    }

    /// Makes everything durable, and ends what runs.
    pub(crate) fn close(&mut self) -> impl Future<Output = Result<()>> + use<> {
        let of = |served: &Served| {
            let Served { unit, file, running, marks, .. } = served;
            (Arc::clone(unit), file.clone(), running.abort_handle(), marks.clone())
        };
        let units: Vec<_> = self.served.values().map(of).collect();
        let retiring = self.take_retiring();
        async move {
            for (_, retired) in retiring {
                // A task that panicked has reported that already.
                let _ = retired.await;
            }
            let mut flushed = Ok(());
            for (unit, file, running, marks) in units {
                flushed = flushed.and(unit.device().flush().await);
                note_cut(&unit, file.as_deref()).await;
                running.abort();
                note_closed(marks.as_deref());
            }
            flushed.map_err(Error::from)
        }
    }

    /// Opens a unit that was checked before.
    fn open(&self, iqn: &str, spec: &LunSpec) -> Result<Served> {
        let context = |error: Error| error.context(format!("LUN {spec}"));
        let found = match &spec.backend {
            Backend::File { path, .. } => Some(FoundFile::at(path)),
            Backend::Ram { .. } => None,
        };
        let (mut device, file) = backend_device(iqn, spec, &self.paths.sidecars()).map_err(context)?;
        // Right behind the opening, which made it where it was not there.
        let opened = spec.file();
        let mut disk = None;
        if let Some(model) = spec.disk {
            let layer = Arc::new(DiskLayer::new(device, Arc::clone(&self.clock), &self.workers, model));
            disk = Some(Arc::clone(&layer));
            device = layer;
        }
        let (reservation_store, saved_reservations) = self.reservations(spec).map_err(context)?;
        let marks = self.marks(spec, &device, found).map_err(context)?;
        let options = LogicalUnitOptions {
            change_store: Some(marks.store),
            saved_marks: marks.saved,
            tells_lost_writes: file.is_some(),
            is_removable: spec.is_removable,
            is_thin: spec.is_thin,
            is_read_only: spec.is_read_only,
            is_rotational: spec.disk.is_some(),
            logical_block_bytes: Some(spec.block_bytes),
            physical_block_bytes: spec.physical_block_bytes.or_else(|| physical_block_bytes(&spec.backend, &device)),
            atomic_bytes_max: atomic_bytes_max(&spec.backend),
            reservation_store,
            saved_reservations,
            sharing: self.sharing(spec).map_err(context)?,
            clock: Some(Arc::clone(&self.clock)),
            ..LogicalUnitOptions::default()
        };
        let unit = LogicalUnit::new(device, options);
        let running = tokio::spawn(base::background::named("unit", unit.run()));
        Ok(Served { spec: spec.clone(), unit, file, opened, disk, marks: marks.file, running })
    }

    /// The change marks of a unit: kept beside the sidecar of a file; those of a RAM LUN end with
    /// it.
    fn marks(&self, spec: &LunSpec, device: &SharedDevice, found: Option<FoundFile>) -> Result<Marks> {
        let (Backend::File { path, .. }, Some(found)) = (&spec.backend, found) else {
            return Ok(Marks { file: None, store: Arc::new(MemoryChanges), saved: SavedMarks::default() });
        };
        let sidecar = Sidecar::of(path, &self.paths.sidecars())?;
        let range_bytes = range_bytes_for(device.geometry().size_bytes);
        let (file, saved) = MarksFile::open(sidecar.marks_path(), &sidecar.serial()?, range_bytes, found)?;
        let store = file.store();
        Ok(Marks { file: Some(Arc::new(file)), store, saved })
    }

    /// The sharing of a unit that hosts may share: its durable state is kept beside the sidecar of
    /// a file. A RAM LUN is another unit at each start, without former clients.
    fn sharing(&self, spec: &LunSpec) -> Result<Option<SharingOptions>> {
        if !spec.is_shared {
            return Ok(None);
        }
        let options = match &spec.backend {
            Backend::Ram { .. } => {
                let boot_epoch = Uuid::new_v4().as_u128() as u32;
                let saved = SavedSharing { boot_epoch: boot_epoch >> 1, ..SavedSharing::default() }.next_start();
                SharingOptions { saved, ..SharingOptions::default() }
            }
            Backend::File { path, .. } => {
                let (file, saved) = SharingFile::open(&Sidecar::of(path, &self.paths.sidecars())?)?;
                SharingOptions { store: Some(Arc::new(file)), saved, ..SharingOptions::default() }
            }
        };
        Ok(Some(options))
    }

    /// The reservations of a unit: kept in the sidecar of a file; those of a RAM LUN end with the
    /// process.
    fn reservations(&self, spec: &LunSpec) -> Result<(Option<Arc<dyn ReservationStore>>, SavedReservations)> {
        match &spec.backend {
            Backend::Ram { .. } => Ok((None, SavedReservations::default())),
            Backend::File { path, .. } => {
                let (store, saved) = Sidecar::of(path, &self.paths.sidecars())?.reservations()?;
                Ok((Some(Arc::new(store)), saved))
            }
        }
    }
}

impl Served {
    /// Checks that this unit can change to `spec`.
    ///
    /// # Errors
    /// When anything but the size differs, or the size cannot be changed so.
    fn check(&self, spec: &LunSpec) -> Result<()> {
        if without_size(spec) != without_size(&self.spec) {
            let message = format!(
                "LUN {spec} was {}: only its size can change while it is served; remove it, reload, and add it again",
                self.spec
            );
            return Err(Error::new(Failure::Usage, message));
        }
        match (&spec.backend, &self.spec.backend) {
            (Backend::File { size_bytes: Some(new), .. }, _) if *new < self.unit.device().geometry().size_bytes => {
                let is = self.unit.device().geometry().size_bytes;
                let message = format!("LUN {spec} has {is} bytes and cannot become smaller while it is served");
                Err(Error::new(Failure::Usage, message))
            }
            (Backend::Ram { size_bytes: new }, Backend::Ram { size_bytes: old }) if new != old => {
                let message = format!("LUN {spec} was {}: a LUN in RAM cannot change its size", self.spec);
                Err(Error::new(Failure::Usage, message))
            }
            _ => Ok(()),
        }
    }

    /// Changes the size to that of `spec`, or to that of the file where `spec` has none. Returns
    /// whether it changed.
    ///
    /// # Errors
    /// When the file cannot get that size.
    fn resize(&self, spec: &LunSpec) -> Result<bool> {
        let (Some(file), Backend::File { size_bytes, .. }) = (&self.file, &spec.backend) else { return Ok(false) };
        let before = block::Device::geometry(&**file).size_bytes;
        let after = file.grow(*size_bytes).map_err(|error| Error::from(error).context(format!("LUN {spec}")))?;
        Ok(after != before)
    }

    /// What to say where another file than the one that is served is at its path, or none, or where
    /// it was cut.
    fn trouble(&self) -> Option<String> {
        let (Backend::File { path, .. }, Some(opened)) = (&self.spec.backend, &self.opened) else { return None };
        let path = path.display();
        match self.spec.file()? {
            found if found == *opened => {
                let cut_bytes = self.file.as_ref()?.cut_bytes()?;
                Some(format!(
                    "{path} was cut to {cut_bytes} bytes while it is served: what lay behind is lost, and requests \
                     there fail; end serving it, bring it back whole, and serve it again"
                ))
            }
            FileIdentity::ToBeMade(_) => Some(format!(
                "{path} was removed, or cannot be looked at: initiators go on with what was opened, and what they \
                 write is gone when it is not served any more"
            )),
            FileIdentity::Inode(..) | FileIdentity::Device(_) => Some(format!(
                "{path} is another file now: initiators go on with the one that was opened, and what they write is \
                 not in the new one; it is served after a restart"
            )),
        }
    }

    /// Closes a unit when no session sees it any more and nothing is under way on it.
    async fn retire(self) {
        while Arc::strong_count(&self.unit) > 1 || !self.unit.is_idle() {
            tokio::time::sleep(RETIRING_INTERVAL).await;
        }
        let Self { spec, unit, file, disk, marks, running, .. } = self;
        if let Err(error) = unit.device().flush().await {
            tracing::error!(%error, lun = %spec, "what was written to a LUN that is gone may not be durable");
        }
        note_cut(&unit, file.as_deref()).await;
        running.abort();
        // The only possible error is that the task was aborted.
        let _ = running.await;
        let closed = file.as_ref().map(|file| file.closed());
        drop((unit, file, disk));
        if let Some(closed) = closed {
            closed.await;
        }
        note_closed(marks.as_deref());
    }
}

/// Records that everything has changed, where the unit's file was found cut.
async fn note_cut(unit: &LogicalUnit, file: Option<&FileDevice>) {
    if file.is_none_or(|file| file.cut_bytes().is_none()) {
        return;
    }
    if let Err(error) = unit.note_all_changed().await {
        tracing::error!(%error, "that a file was cut is not recorded: caches may be warm with what it had");
    }
}

/// Notes at the end of a LUN's service the state of its file, beside its marks.
fn note_closed(marks: Option<&MarksFile>) {
    if let Some(Err(error)) = marks.map(MarksFile::note_closed) {
        tracing::warn!(%error, "whether a file is changed while it is not served will not be noticed");
    }
}

/// The part of a specification that must not change.
fn without_size(spec: &LunSpec) -> LunSpec {
    let backend = match &spec.backend {
        Backend::Ram { .. } => Backend::Ram { size_bytes: 0 },
        Backend::File { path, is_direct, .. } => {
            Backend::File { path: path.clone(), size_bytes: None, is_direct: *is_direct }
        }
    };
    LunSpec { backend, ..spec.clone() }
}

/// RAM loses everything or nothing, so every write of it is atomic. For a file only its sectors are
/// known to be atomic, and initiators ask WRITE ATOMIC for more.
fn atomic_bytes_max(backend: &Backend) -> u32 {
    match backend {
        Backend::Ram { .. } => u32::MAX,
        Backend::File { .. } => 0,
    }
}

/// The physical block size that a block device reports. For a file it is not known: what the file
/// system writes at once is no property of a medium.
fn physical_block_bytes(backend: &Backend, device: &SharedDevice) -> Option<u32> {
    let Backend::File { path, .. } = backend else { return None };
    let is_block_device = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    is_block_device.then(|| device.geometry().physical_block_bytes)
}

fn backend_device(iqn: &str, spec: &LunSpec, sidecars: &Path) -> Result<(SharedDevice, Option<Arc<FileDevice>>)> {
    match &spec.backend {
        Backend::Ram { size_bytes } => {
            let identity = Identity {
                target: iqn.to_owned(),
                unit: format!("lun {}", spec.lun),
                serial: Uuid::new_v4().simple().to_string(),
            };
            let geometry = Geometry {
                logical_block_bytes: spec.block_bytes,
                is_write_cache_volatile: spec.is_write_cache_volatile,
                ..Geometry::plain(*size_bytes)
            };
            Ok((Arc::new(MemoryDevice::with_geometry(geometry, identity)), None))
        }
        Backend::File { path, size_bytes, is_direct } => {
            let file = file_device(iqn, spec, sidecars, path, *size_bytes, *is_direct)?;
            Ok((Arc::clone(&file) as SharedDevice, Some(file)))
        }
    }
}

fn file_device(
    iqn: &str,
    spec: &LunSpec,
    sidecars: &Path,
    path: &Path,
    size_bytes: Option<u64>,
    is_direct: bool,
) -> Result<Arc<FileDevice>> {
    let sidecar = Sidecar::of(path, sidecars)?;
    let is_made = size_bytes.is_some() && matches!(path.try_exists(), Ok(false));
    // A new file has none of the former content: caches of that must not match it.
    let serial = if is_made { sidecar.serial_of_another()? } else { sidecar.serial()? };
    let identity = Identity { target: iqn.to_owned(), unit: format!("lun {}", spec.lun), serial };
    let options = FileOptions {
        size: size_bytes,
        direct: is_direct,
        exclusive: true,
        // The unit reports the loss to each initiator.
        goes_on_after_loss: true,
        read_only: spec.is_read_only,
        identity,
        is_write_cache_volatile: spec.is_write_cache_volatile,
        ..FileOptions::default()
    };
    Ok(FileDevice::open(path, options)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock::VirtualClock;
    use block::ErrorKind;
    use block::layer::crash::CrashLayer;

    #[tokio::test]
    async fn an_end_flushes_every_unit_and_says_where_that_failed() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        for is_failing in [false, true] {
            let mut units = Units::new(Arc::new(VirtualClock::new()), paths.clone());
            let media = [0, 1].map(|seed| CrashLayer::new(1 << 20, seed));
            if is_failing {
                media[0].fail_flush_once(media[0].flushes_seen(), ErrorKind::Media);
            }
            for (lun, medium) in (0..).zip(&media) {
                let unit = LogicalUnit::new(Arc::new(medium.clone()), LogicalUnitOptions::default());
                let running = tokio::spawn(unit.run());
                let spec = format!("{lun}=ram:1MiB").parse().unwrap();
                let served = Served { spec, unit, file: None, opened: None, disk: None, marks: None, running };
                units.served.insert(("iqn.2026-11.io.forebay:disks".into(), lun), served);
            }
            let before = media.each_ref().map(|medium| medium.flushes_seen());
            assert_eq!(units.close().await.is_err(), is_failing);
            assert_eq!(media.each_ref().map(|medium| medium.flushes_seen()), before.map(|count| count + 1));
        }
    }
}
