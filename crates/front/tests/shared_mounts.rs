//! The mounts of two hosts that share one file system, by the real kernel, over one device in memory: what the kernel
//! keeps it keeps as long as its host has the lock.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use base::clock::{Clock, Instant, Sleep};
use block::device::DeviceExt;
use block::grants::{Right, Standing, WHOLE_DEVICE};
use block::memory::MemoryDevice;
use block::{Buffer, Completion, Copies, Device, EventReceiver, Geometry, Identity, Request, SharedDevice};
use ext2::{OpenOptions, Timestamp};
use front::{Volume, VolumeOptions};
use futures_util::FutureExt;
use sharedfs::{Hosts, Mounted, Redo, SharedBlocks};
use tokio::sync::oneshot;

struct RealClock(std::time::Instant);

impl Clock for RealClock {
    fn now(&self) -> Instant {
        Instant::from_nanoseconds(self.0.elapsed().as_nanos() as u64)
    }

    fn sleep_until(&self, deadline: Instant) -> Sleep {
        Box::pin(tokio::time::sleep(deadline.since(self.now())))
    }
}

/// The device as one host has it.
struct PathOf {
    disk: SharedDevice,
    copies: Copies,
    asked: AtomicU64,
}

impl Device for PathOf {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn identity(&self) -> Identity {
        self.disk.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        self.disk.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.disk.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        Some(self.copies.clone())
    }
}

/// Gives the lock to who asks for it, one after the other.
async fn arbitrate(paths: Vec<Arc<PathOf>>, clock: Arc<dyn Clock>, lease: Duration) {
    let mut queue = VecDeque::new();
    loop {
        for (host, path) in paths.iter().enumerate() {
            path.copies.allow_until(Some(clock.now() + lease));
            let taken = path.copies.grants().unwrap().take_wanted(1, Waker::noop());
            path.asked.fetch_add(taken.len() as u64, Ordering::Relaxed);
            queue.extend(taken.into_iter().map(|_| host));
        }
        if let Some(host) = queue.pop_front() {
            let grants = paths[host].copies.grants().unwrap();
            let right = grants.asked_right(0);
            for other in (0..paths.len()).filter(|other| *other != host) {
                call_back(&paths[other].copies, right).await;
            }
            match grants.standing(0) {
                Some(Standing::Held) => grants.raise(0),
                _ => grants.set(0, Standing::Held),
            }
        }
        clock.sleep(Duration::from_millis(1)).await;
    }
}

async fn call_back(copies: &Copies, right: Right) {
    let grants = copies.grants().unwrap();
    let is_beside = right == Right::Read && grants.right(0) == Some(Right::Read);
    if grants.standing(0) != Some(Standing::Held) || is_beside {
        return;
    }
    grants.set(0, Standing::Leaving);
    match right {
        Right::Read => {
            copies.clean(grants.range_of(0)).await;
            grants.lower(0);
        }
        Right::Change => {
            copies.release(grants.range_of(0)).await;
            grants.remove(0, false);
        }
    }
}

struct Host {
    path: Arc<PathOf>,
    directory: tempfile::TempDir,
    file_system: Arc<Mounted>,
    volume: Arc<Volume<SharedBlocks<Redo>>>,
    stop: Option<oneshot::Sender<()>>,
    served: tokio::task::JoinHandle<()>,
}

impl Host {
    async fn mount(path: Arc<PathOf>, clock: Arc<dyn Clock>) -> Self {
        let others = || -> std::pin::Pin<Box<dyn Future<Output = _> + Send>> { Box::pin(async { Ok(true) }) };
        let probe = || -> std::pin::Pin<Box<dyn Future<Output = _> + Send>> { Box::pin(async { Ok(()) }) };
        let hosts = Hosts { clock, others: Arc::new(others), probe: Arc::new(probe) };
        let now = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            Timestamp { seconds: since.as_secs().cast_signed(), nanoseconds: since.subsec_nanos() }
        };
        let options = OpenOptions { is_read_only: false, may_use_reserved: true, wall_clock: Arc::new(now) };
        let file_system = Arc::new(sharedfs::open(path.clone(), options, 4 << 20, Some(hosts)).await.unwrap());
        let directory = tempfile::tempdir().unwrap();
        let options = VolumeOptions { is_read_only: false, is_shared: true, source: "memory".to_owned() };
        let volume =
            Volume::mount(Arc::clone(&file_system), directory.path(), &options, Some(path.copies.clone())).unwrap();
        let (volume, (stop, stopped)) = (Arc::new(volume), oneshot::channel());
        let serving = Arc::clone(&volume);
        let served = tokio::spawn(async move {
            serving.serve(async { drop(stopped.await) }, std::future::pending()).await.unwrap();
        });
        Self { path, directory, file_system, volume, stop: Some(stop), served }
    }

    fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn asked(&self) -> u64 {
        self.path.asked.load(Ordering::Relaxed)
    }

    async fn end(mut self) {
        let _ = self.stop.take().unwrap().send(());
        self.served.await.unwrap();
        sharedfs::close(&self.file_system).await.unwrap();
    }
}

async fn hosts<const COUNT: usize>() -> (SharedDevice, [Host; COUNT]) {
    let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
    let disk: SharedDevice = Arc::new(MemoryDevice::new(32 << 20, identity));
    let id = uuid::Uuid::from_u128(7);
    let made = ext2::MakeOptions::new(id, id, Timestamp { seconds: 1_600_000_000, nanoseconds: 0 });
    ext2::make(&disk, &made).await.unwrap();
    let clock: Arc<dyn Clock> = Arc::new(RealClock(std::time::Instant::now()));
    let path = || {
        let copies = Copies::with_grants(Arc::clone(&clock), WHOLE_DEVICE);
        Arc::new(PathOf { disk: Arc::clone(&disk), copies, asked: AtomicU64::new(0) })
    };
    let paths: [Arc<PathOf>; COUNT] = std::array::from_fn(|_| path());
    tokio::spawn(arbitrate(paths.to_vec(), Arc::clone(&clock), Duration::from_secs(10)));
    let mut mounted = Vec::new();
    for path in paths {
        mounted.push(Host::mount(path, Arc::clone(&clock)).await);
    }
    (disk, mounted.try_into().ok().unwrap())
}

fn check(disk: &SharedDevice) {
    const PART: usize = 4 << 20;
    let length = disk.geometry().size_bytes as usize;
    let parts = (0..length).step_by(PART).map(|offset| {
        let read = disk.read(offset as u64, Buffer::zeroed(PART)).now_or_never();
        read.expect("memory lets nobody wait").unwrap().to_vec()
    });
    let bytes: Vec<u8> = parts.flatten().collect();
    let image = tempfile::NamedTempFile::new().unwrap();
    fs::write(image.path(), bytes).unwrap();
    let checked = std::process::Command::new("/usr/sbin/e2fsck").arg("-fn").arg(image.path()).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

#[tokio::test]
async fn the_kernel_keeps_attributes_until_another_host_changes_them() {
    let (disk, hosts) = hosts::<2>().await;
    let directories = hosts.each_ref().map(|host| host.directory().to_owned());
    let volume = Arc::clone(&hosts[0].volume);
    let work = tokio::task::spawn_blocking(move || {
        let [one, two] = directories;
        fs::write(one.join("name"), "").unwrap();
        let (open, writing) =
            (File::open(one.join("name")).unwrap(), File::options().write(true).open(two.join("name")));
        let writing = writing.unwrap();
        let mut kept = 0;
        for round in 1..200 {
            assert_eq!(open.metadata().unwrap().len(), round - 1);
            let requests = volume.requests();
            (0..10).for_each(|_| assert_eq!(open.metadata().unwrap().len(), round - 1));
            kept += u64::from(volume.requests() == requests);
            writing.write_at(b"x", round - 1).unwrap();
            assert_eq!(open.metadata().unwrap().len(), round, "round {round}");
            assert_eq!(fs::metadata(one.join("name")).unwrap().len(), round);
        }
        assert!(kept > 150, "{kept} times the kernel asked nothing");
    });
    work.await.unwrap();
    for host in hosts {
        host.end().await;
    }
    check(&disk);
}

#[tokio::test]
async fn hosts_that_only_read_ask_for_the_lock_once() {
    let (disk, hosts) = hosts::<4>().await;
    let directories = hosts.each_ref().map(|host| host.directory().to_owned());
    let list = |directory: &Path| {
        let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names.iter().filter(|name| name.is_file()).map(|name| fs::read(name).unwrap()).collect::<Vec<_>>()
    };
    let first = directories[0].clone();
    let make =
        move || (0..20).for_each(|number: u8| fs::write(first.join(number.to_string()), [number; 5000]).unwrap());
    tokio::task::spawn_blocking(make).await.unwrap();
    let mut before = [0; 4];
    for round in 0..2 {
        let readers = directories.clone().map(|directory| {
            tokio::task::spawn_blocking(move || (0..20).map(|_| list(&directory)).all(|found| found.len() == 20))
        });
        for reader in readers {
            assert!(reader.await.unwrap());
        }
        let asked = hosts.each_ref().map(Host::asked);
        assert!(round == 0 || asked == before, "{asked:?} {before:?}");
        before = asked;
    }
    for host in hosts {
        host.end().await;
    }
    check(&disk);
}

/// Both look for names, and make and remove some, at the same time.
#[tokio::test]
async fn hosts_that_read_and_change_at_the_same_time_do_not_wait_for_each_other_for_ever() {
    let (disk, hosts) = hosts::<3>().await;
    let directories = hosts.each_ref().map(|host| host.directory().to_owned());
    let workers = [0, 1, 2, 0, 1, 2].into_iter().enumerate().map(|(worker, host)| {
        let directory = directories[host].clone();
        tokio::task::spawn_blocking(move || {
            for round in 0..30 {
                let name = directory.join(format!("{worker}-{round}"));
                assert!(!name.exists());
                fs::write(&name, "content").unwrap();
                assert_eq!(fs::read(&name).unwrap(), b"content");
                if round % 3 == 0 {
                    fs::rename(&name, directory.join(format!("{worker}-{round}-moved"))).unwrap();
                    assert!(!name.exists());
                }
                if round % 3 == 1 {
                    fs::remove_file(&name).unwrap();
                }
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    let count = |directory: &Path| {
        fs::read_dir(directory).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_file()).count()
    };
    for directory in directories {
        assert_eq!(tokio::task::spawn_blocking(move || count(&directory)).await.unwrap(), 6 * 20);
    }
    for host in hosts {
        host.end().await;
    }
    check(&disk);
}
