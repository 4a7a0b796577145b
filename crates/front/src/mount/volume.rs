//! A file system in a directory, from the mount to the unmount.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use base::background;
use block::Copies;
use ext2::{Blocks, FileSystem};
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::process::geteuid;

use super::commits::commit_for_ever;
use super::kept_attributes::KeptAttributes;
use super::requests::Requests;
use super::tree::Tree;
use super::view::View;
use crate::fuse::session::serve;
use crate::fuse::{check_kernel, detach, is_left_behind};
use crate::limits::SHUTDOWN_TIME_MAX;

/// The options of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Whether it is read only.
    pub is_read_only: bool,
    /// Whether other hosts have it mounted, too.
    pub is_shared: bool,
    /// The source that `mount` and `df` show.
    pub source: String,
}

/// A mounted file system. Programs that use the directory wait until it is served.
pub struct Volume<B: Blocks> {
    tree: Arc<Tree<B>>,
    /// `None` once it is served.
    session: Mutex<Option<Session<Requests<B>>>>,
    directory: PathBuf,
}

/// Checks that a file system can be mounted over a directory. A mount that a killed process left
/// there is unmounted.
///
/// # Errors
/// As [`Volume::mount`].
pub fn make_mountable(directory: &Path) -> io::Result<()> {
    check_kernel()?;
    if is_left_behind(directory) {
        detach(directory)?;
    }
    if !std::fs::metadata(directory)?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is no directory"));
    }
    Ok(())
}

impl<B: Blocks> Volume<B> {
    /// Mounts `file_system` over a directory. A mount that a killed process left there is unmounted
    /// first. It is served on the calling runtime. `copies`: those of the device, where hosts share it.
    ///
    /// # Errors
    /// `NotADirectory`, `Unsupported` on a kernel without FUSE; errors of the kernel.
    pub fn mount(
        file_system: Arc<FileSystem<B>>,
        directory: &Path,
        options: &VolumeOptions,
        copies: Option<Copies>,
    ) -> io::Result<Self> {
        make_mountable(directory)?;
        let kept = copies.map(KeptAttributes::of);
        let tree = Arc::new(Tree::new(file_system, View { is_shared: options.is_shared }, kept));
        let mut config = Config::default();
        let names = [MountOption::FSName(options.source.clone()), MountOption::Subtype("forebay".to_owned())];
        config.mount_options = names.into();
        config.mount_options.extend([MountOption::NoDev, MountOption::NoSuid, MountOption::DefaultPermissions]);
        config.mount_options.push(if options.is_read_only { MountOption::RO } else { MountOption::RW });
        // A user other than root lets others in only where the administrator allows that
        // (user_allow_other).
        config.acl = if geteuid().is_root() { SessionACL::All } else { SessionACL::Owner };
        let session = Session::new(Requests { tree: Arc::clone(&tree) }, directory, &config)?;
        if let Some(kept) = &tree.kept {
            kept.begin(session.notifier());
        }
        Ok(Self { tree, session: Mutex::new(Some(session)), directory: directory.to_owned() })
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.tree.requests.load(Ordering::Relaxed)
    }

    /// Inodes that the kernel knows now.
    pub fn known_inodes(&self) -> usize {
        self.tree.references.count()
    }

    /// Serves it until `stop`, or until it is unmounted. No request is under way then; the owner of
    /// the file system commits the changes. Requests under way, and the work of the file system for
    /// files that are no longer open, are waited for until `give_up` at most; the next mount does
    /// the rest. It is served once.
    ///
    /// # Errors
    /// When the FUSE device fails.
    ///
    /// # Panics
    /// When it was served before.
    pub async fn serve(&self, stop: impl Future<Output = ()>, give_up: impl Future<Output = ()>) -> io::Result<()> {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        let session = session.expect("a file system is served once");
        let close = async {
            tokio::select! {
                biased;
                () = self.tree.close(SHUTDOWN_TIME_MAX) => {}
                () = give_up => {}
            }
        };
        let serving = serve(session, &self.directory, stop, close);
        let file_system = &self.tree.file_system;
        let commits = commit_for_ever(|| file_system.commit(), || file_system.blocks().loss(), &self.directory);
        let (mut serving, mut committing) = (pin!(serving), pin!(background::named("mount-commits", commits)));
        tokio::select! {
            ended = serving.as_mut() => ended.map(drop),
            () = committing.as_mut() => unreachable!("it commits for ever"),
        }
    }
}
