//! A file, mounted by FUSE: for `losetup`, and for most programs that take a disk image.

use std::cell::{Cell, OnceCell};
use std::io;
use std::path::{Path, PathBuf};

use front::{FuseCounters, FuseFile, FuseOptions, Mountpoint, check_fuse};
use futures_util::future::LocalBoxFuture;

use super::kind::{Clients, Front, FrontConfig, FrontKind, Served};
use crate::error::{Error, Failure, Result};
use crate::metrics::plain::{Plain, Value, counter, gauge};
use crate::status::fronts::FrontCounters;

pub(super) static KIND: FrontKind =
    FrontKind { name: "fuse", places: "fuse:PATH", place, usual, listen, users, metrics: METRICS };

const METRICS: &[Plain<Value<FrontCounters>>] = &[
    gauge("forebay_fuse_open", |all| Some(counted(all)?.open), "How many times FUSE files are open."),
    counter("forebay_fuse_read_requests", |all| Some(counted(all)?.read.requests), "Reads of FUSE files."),
    counter("forebay_fuse_read_bytes", |all| Some(counted(all)?.read.bytes), "Bytes of reads of FUSE files."),
    counter("forebay_fuse_write_requests", |all| Some(counted(all)?.write.requests), "Writes to FUSE files."),
    counter("forebay_fuse_write_bytes", |all| Some(counted(all)?.write.bytes), "Bytes of writes to FUSE files."),
];

fn counted(all: &FrontCounters) -> Option<FuseCounters> {
    all.of(KIND.name)
}

fn users(place: &str, count: u64) -> String {
    match count {
        1 => format!("{place} was open"),
        _ => format!("{place} was open {count} times"),
    }
}

struct FuseFront {
    options: FuseOptions,
    path: String,
    /// `None` before it is opened.
    mountpoint: Cell<Option<Mountpoint>>,
    file: OnceCell<FuseFile>,
}

/// The place as an absolute path.
fn place(text: &str) -> std::result::Result<String, String> {
    if text.is_empty() {
        return Err("a file has a path: fuse:PATH".to_owned());
    }
    let path = std::path::absolute(text).map_err(|error| format!("{text}: {error}"))?;
    path.into_os_string().into_string().map_err(|path| format!("{} is not UTF-8", path.display()))
}

pub(super) fn usual(place: &dyn Fn(&str) -> PathBuf) -> std::result::Result<String, String> {
    check_fuse().map_err(|error| error.to_string())?;
    Ok(place("fuse").display().to_string())
}

fn listen(config: &FrontConfig) -> Result<Box<dyn Front>> {
    let mountpoint = Mountpoint::claim(Path::new(&config.place)).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::Unsupported => {
            Error::new(Failure::Usage, format!("cannot offer a file at {}: {error}", config.place))
        }
        _ => Error::io(format!("cannot offer a file at {}", config.place), &error),
    })?;
    let options = FuseOptions { is_read_only: config.options.is_read_only, access: config.options.access };
    let (path, mountpoint) = (config.place.clone(), Cell::new(Some(mountpoint)));
    Ok(Box::new(FuseFront { options, path, mountpoint, file: OnceCell::new() }))
}

impl FuseFront {
    fn counted(&self) -> FuseCounters {
        self.file.get().map(FuseFile::counters).unwrap_or_default()
    }
}

impl Front for FuseFront {
    fn kind(&self) -> &'static FrontKind {
        &KIND
    }

    fn place(&self) -> String {
        self.path.clone()
    }

    fn open(&self, served: &Served) -> io::Result<()> {
        let mountpoint = self.mountpoint.take().expect("a front is opened once");
        let file = FuseFile::mount(mountpoint, served.exported.clone(), self.options)?;
        self.file.set(file).map_err(|_| io::Error::other("it is open"))
    }

    fn serve<'a>(&'a self, _: Served, stop: LocalBoxFuture<'a, ()>) -> LocalBoxFuture<'a, io::Result<()>> {
        Box::pin(async move { self.file.get().expect("a front is opened before it is served").serve(stop).await })
    }

    fn clients(&self) -> Clients {
        // Clients read a file's size each time, so none has an outdated one.
        Clients { open: self.counted().open, outdated: 0 }
    }

    fn count(&self, sum: &mut FrontCounters) {
        sum.add(KIND.name, self.counted());
    }
}
