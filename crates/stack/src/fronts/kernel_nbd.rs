//! A disk of the kernel's own NBD client, `nbd:/dev/nbdN`. A disk that a killed process left is
//! taken over by the next process of the same attachment.

use std::cell::{Cell, OnceCell};
use std::io;
use std::path::{Path, PathBuf};

use front::{KernelDisk, NbdCounters, NbdOptions, NbdServer, check_kernel_nbd, free_disk};
use futures_util::future::LocalBoxFuture;

use super::kind::{Clients, Front, FrontConfig, FrontKind, Served};
use crate::error::{Error, Failure, Result};
use crate::registry::file_stem;
use crate::status::fronts::FrontCounters;

struct KernelNbdFront {
    kind: &'static FrontKind,
    name: String,
    path: String,
    is_read_only: bool,
    server: OnceCell<NbdServer>,
    /// Set from when it is opened until it is served.
    disk: Cell<Option<KernelDisk>>,
}

/// A free disk; or why there is none.
pub(super) fn usual(_: &dyn Fn(&str) -> PathBuf) -> std::result::Result<String, String> {
    check_kernel_nbd().map_err(|error| error.to_string())?;
    let disk = free_disk().ok_or("all of the kernel's NBD disks are in use")?;
    Ok(disk.display().to_string())
}

/// Whether a place is an NBD disk of the kernel.
pub(super) fn is_place(text: &str) -> bool {
    text.starts_with("/dev/")
}

/// Who used the disk, in words.
pub(super) fn users(place: &str) -> String {
    format!("the disk {place} was mounted, or part of another")
}

/// The place in the form that is kept.
///
/// # Errors
/// When it is another device.
pub(super) fn place(text: &str) -> std::result::Result<String, String> {
    front::kernel::index_of(Path::new(text)).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

/// Makes the front. There is nothing to listen on: the kernel gets the device when it is open.
///
/// # Errors
/// A kernel without an NBD client.
pub(super) fn listen(config: &FrontConfig) -> Result<Box<dyn Front>> {
    check_kernel_nbd().map_err(|error| match error.kind() {
        io::ErrorKind::Unsupported => Error::new(Failure::Usage, format!("no {} here: {error}", config.place)),
        _ => Error::io(format!("no {} here", config.place), &error),
    })?;
    Ok(Box::new(KernelNbdFront {
        kind: config.kind,
        name: config.options.name.clone(),
        path: config.place.clone(),
        is_read_only: config.options.is_read_only,
        server: OnceCell::new(),
        disk: Cell::new(None),
    }))
}

impl KernelNbdFront {
    fn counted(&self) -> NbdCounters {
        self.server.get().map(NbdServer::counters).unwrap_or_default()
    }
}

impl Front for KernelNbdFront {
    fn kind(&self) -> &'static FrontKind {
        self.kind
    }

    fn place(&self) -> String {
        self.path.clone()
    }

    fn open(&self, served: &Served) -> io::Result<()> {
        let backend = format!("forebay:{}:{}", self.name, file_stem(&served.exported.device.identity()));
        let options = NbdOptions { is_read_only: self.is_read_only, ..NbdOptions::default() };
        let server = NbdServer::beside(served.exported.clone(), options);
        self.disk.set(Some(KernelDisk::connect(Path::new(&self.path), &server, &backend)?));
        self.server.set(server).map_err(|_| io::Error::other("it is open"))
    }

    fn serve<'a>(&'a self, _: Served, stop: LocalBoxFuture<'a, ()>) -> LocalBoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let disk = self.disk.take().expect("a front is opened before it is served, once");
            disk.serve(self.server.get().expect("it was set with the disk"), stop).await
        })
    }

    fn clients(&self) -> Clients {
        let counted = self.counted();
        Clients { open: counted.connections_open, outdated: counted.connections_outdated }
    }

    fn users(&self) -> u64 {
        // The kernel is a client as long as there is the disk, whether anybody uses it or not.
        u64::from(self.server.get().is_some() && front::kernel::is_in_use(Path::new(&self.path)))
    }

    fn count(&self, sum: &mut FrontCounters) {
        sum.add(self.kind.name, self.counted());
    }
}
