//! The directories of files that live as long as a process (sockets) and of files that outlive it
//! (the registry of dirty caches, the sidecars of block devices). The locks on logical units in use
//! lie beside the registry: others remove run-time directories, such as a service manager that
//! stops one of several services, and a lock whose file was removed excludes no other process.
//!
//! | | override | root | any other user |
//! |---|---|---|---|
//! | run-time directory | `FOREBAY_RUNTIME_DIR` | `/run/forebay` | `$XDG_RUNTIME_DIR/forebay`, else `/tmp/forebay-UID` |
//! | state directory | `FOREBAY_STATE_DIR` | `/var/lib/forebay` | `$XDG_STATE_HOME/forebay`, else `~/.local/state/forebay` |
//!
//! Both are made on first use, for their owner only.
//!
//! The files of attachments that the daemon keeps are in `FOREBAY_CONFIG_DIR`, by default `/etc/forebay` for root, else
//! `$XDG_CONFIG_HOME/forebay` or `~/.config/forebay`.

use std::env;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Failure, Result};

/// The two directories.
#[derive(Clone, Debug)]
pub struct Paths {
    runtime: PathBuf,
    state: PathBuf,
}

impl Paths {
    /// The directories that the environment asks for, made if they are missing.
    ///
    /// # Errors
    /// When a directory cannot be made, or belongs to another user.
    pub fn from_environment() -> Result<Self> {
        let user = rustix::process::getuid().as_raw();
        let (runtime, state) = directories(user, |variable| env::var_os(variable).map(PathBuf::from))?;
        Self::new(runtime, state)
    }

    /// The same for who only asks what runs: the run-time directory is not made, since nothing can run in a new one.
    ///
    /// # Errors
    /// Those of [`Paths::from_environment`].
    pub fn to_ask_what_runs() -> Result<Self> {
        let user = rustix::process::getuid().as_raw();
        let (runtime, state) = directories(user, |variable| env::var_os(variable).map(PathBuf::from))?;
        if runtime.exists() {
            return Self::new(runtime, state);
        }
        make_private_as(&state, Some("FOREBAY_STATE_DIR"))?;
        Ok(Self { runtime, state })
    }

    /// Whether it can be seen what runs.
    ///
    /// # Errors
    /// `NotFound` when there is no run-time directory, `AccessDenied` when it cannot be read; the message names it, and
    /// the variable that names another.
    pub fn check_runtime(&self) -> Result<()> {
        let advice = "; FOREBAY_RUNTIME_DIR names another, if something was started with one";
        let context =
            |error| Error::io(format!("the run-time directory {}", self.runtime.display()), &error).advise(advice);
        fs::read_dir(&self.runtime).map(drop).map_err(context)
    }

    /// The directories given, made if they are missing.
    ///
    /// # Errors
    /// When a directory cannot be made, or belongs to another user.
    pub fn new(runtime: PathBuf, state: PathBuf) -> Result<Self> {
        make_private_as(&runtime, Some("FOREBAY_RUNTIME_DIR"))?;
        make_private_as(&state, Some("FOREBAY_STATE_DIR"))?;
        Ok(Self { runtime, state })
    }

    /// The control socket of the process `name`.
    pub fn control_socket(&self, name: &str) -> PathBuf {
        self.runtime.join(format!("{name}.sock"))
    }

    /// The usual socket of a front of this kind, of the attachment `name`.
    pub fn front_socket(&self, name: &str, kind: &str) -> PathBuf {
        self.runtime.join(format!("{name}.{kind}"))
    }

    /// The folder in which the daemon notes what is to be known by the next one, as long as this
    /// system runs.
    pub fn supervision(&self) -> PathBuf {
        self.runtime.join("daemon")
    }

    /// Names of everything with a control socket, running or dead, sorted.
    pub fn control_names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.runtime).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".sock")?.to_owned())).collect();
        names.sort();
        names
    }

    /// The folder of locks on names of processes that run.
    pub(crate) fn name_locks(&self) -> PathBuf {
        self.state.join("names")
    }

    /// The folder of locks on logical units in use on this host.
    pub fn unit_locks(&self) -> PathBuf {
        self.state.join("units")
    }

    /// The folder of the sidecars of block devices.
    pub fn sidecars(&self) -> PathBuf {
        self.state.join("sidecars")
    }

    /// The folder of the sidecars of gateways.
    pub fn gateways(&self) -> PathBuf {
        self.state.join("gateways")
    }

    /// The folder of the list of this host's caches.
    pub fn caches(&self) -> PathBuf {
        self.state.join("caches")
    }

    /// The folder of notes about differences that were lost while they were used.
    pub(crate) fn differences(&self) -> PathBuf {
        self.state.join("differences")
    }

    /// The folder of the registry of dirty caches.
    pub fn registry(&self) -> PathBuf {
        self.state.join("dirty")
    }
}

/// The run-time and the state directory of `user`, by the variables in `environment`.
///
/// # Errors
/// `Usage` for a relative path in one of our variables, which would be another directory in each
/// folder. Relative paths in others' variables are ignored (XDG Base Directory Specification).
fn directories(user: u32, environment: impl Fn(&str) -> Option<PathBuf>) -> Result<(PathBuf, PathBuf)> {
    let of_others = |variable: &str| of_others(&environment, variable);
    let runtime =
        ours(&environment, "FOREBAY_RUNTIME_DIR")?.unwrap_or_else(|| match (user, of_others("XDG_RUNTIME_DIR")) {
            (0, _) => PathBuf::from("/run/forebay"),
            (_, Some(directory)) => directory.join("forebay"),
            (_, None) => env::temp_dir().join(format!("forebay-{user}")),
        });
    let homes = || (of_others("XDG_STATE_HOME"), of_others("HOME"));
    let state = ours(&environment, "FOREBAY_STATE_DIR")?.unwrap_or_else(|| match (user, homes()) {
        (0, _) => PathBuf::from("/var/lib/forebay"),
        (_, (Some(directory), _)) => directory.join("forebay"),
        (_, (None, Some(home))) => home.join(".local/state/forebay"),
        (_, (None, None)) => env::temp_dir().join(format!("forebay-state-{user}")),
    });
    Ok((runtime, state))
}

/// The path in one of our variables.
///
/// # Errors
/// `Usage` for a relative one.
fn ours(environment: &impl Fn(&str) -> Option<PathBuf>, variable: &str) -> Result<Option<PathBuf>> {
    match environment(variable).filter(|path| !path.as_os_str().is_empty()) {
        Some(path) if path.is_relative() => {
            let message =
                format!("{variable}={} is another directory in each folder: give it from the root on", path.display());
            Err(Error::new(Failure::Usage, message))
        }
        path => Ok(path),
    }
}

fn of_others(environment: &impl Fn(&str) -> Option<PathBuf>, variable: &str) -> Option<PathBuf> {
    environment(variable).filter(|path| path.is_absolute())
}

/// The directory of the files of this user's attachments, one each, that the environment asks for.
/// It need not be there.
///
/// # Errors
/// `Usage` for a relative path; `NotFound` when nothing names one.
pub fn configuration_directory() -> Result<PathBuf> {
    configuration(rustix::process::getuid().as_raw(), |variable| env::var_os(variable).map(PathBuf::from))
}

fn configuration(user: u32, environment: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    let homes = || (of_others(&environment, "XDG_CONFIG_HOME"), of_others(&environment, "HOME"));
    match (ours(&environment, "FOREBAY_CONFIG_DIR")?, user) {
        (Some(directory), _) => Ok(directory),
        (None, 0) => Ok(PathBuf::from("/etc/forebay")),
        (None, _) => match homes() {
            (Some(directory), _) => Ok(directory.join("forebay")),
            (None, Some(home)) => Ok(home.join(".config/forebay")),
            (None, None) => {
                let message = "nothing says where the files of attachments are: set FOREBAY_CONFIG_DIR";
                Err(Error::new(Failure::NotFound, message))
            }
        },
    }
}

/// Makes `directory` for its owner only. An existing one must belong to this user, and no other
/// user may write to it; another user could answer in our place otherwise.
fn make_private_as(directory: &Path, variable: Option<&str>) -> Result<()> {
    let other = variable.map_or_else(String::new, |variable| format!(", or name another with {variable}"));
    let context =
        |error: &std::io::Error| Error::io(format!("cannot make the directory {}", directory.display()), error);
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| context(&error).advise(&other))?;
    let metadata = fs::metadata(directory).map_err(|error| context(&error).advise(&other))?;
    let refused = |message: String| Err(Error::new(Failure::AccessDenied, message));
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != rustix::process::getuid().as_raw() {
        return refused(format!(
            "{} belongs to another user (uid {owner}): do this as that user{other}",
            directory.display()
        ));
    }
    if mode & 0o022 != 0 {
        return refused(format!(
            "others may write to {} (mode {mode:o}), and could answer in our place: `chmod 700` it{other}",
            directory.display()
        ));
    }
    Ok(())
}

/// [`make_private_as`] for folders within the directories.
pub(crate) fn make_private(directory: &Path) -> Result<()> {
    make_private_as(directory, None)
}

/// Checks a name that becomes part of a path.
///
/// # Errors
/// When it is empty, too long for a socket path, or has other characters than letters, digits, `-`, `_`, `.`,
/// or begins with `.` or `-`.
pub fn check_name(name: &str) -> Result<()> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    // A command would take one that begins with '-' for an option.
    if name.is_empty() || name.len() > 48 || name.starts_with(['.', '-']) || !name.chars().all(is_allowed) {
        let message = format!(
            "\"{name}\" is no name: use up to 48 letters, digits, '-', '_' and '.', not starting with '.' or '-'"
        );
        return Err(Error::new(Failure::Usage, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_directory() {
        for name in ["disk0", "iqn.2026-01.lab-0", "a_b"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a b", ".hidden", "-x", "-", &"x".repeat(49)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    /// Its content may be the only record of dirty data: the message must not advise to remove it.
    #[test]
    fn a_directory_of_another_user_is_refused_and_not_to_be_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = if rustix::process::getuid().is_root() {
            std::os::unix::fs::chown(directory.path(), Some(1), None).unwrap();
            directory.path()
        } else {
            Path::new("/")
        };
        let refused = make_private_as(path, Some("FOREBAY_STATE_DIR")).unwrap_err();
        assert_eq!(refused.failure(), Failure::AccessDenied);
        let words = refused.to_string();
        assert!(words.contains("do this as that user, or name another with FOREBAY_STATE_DIR"), "{words}");
        assert!(!words.contains("remove"), "{words}");
    }

    #[test]
    fn a_relative_directory_of_ours_is_refused_and_one_of_others_does_not_count() {
        let with = |variable: &'static str, value: &'static str| {
            directories(1000, move |asked| (asked == variable).then(|| PathBuf::from(value)))
        };
        for variable in ["FOREBAY_RUNTIME_DIR", "FOREBAY_STATE_DIR"] {
            for relative in ["run", "./run", "../run"] {
                let error = with(variable, relative).unwrap_err();
                assert_eq!(error.failure(), Failure::Usage);
                assert!(error.to_string().contains(&format!("{variable}={relative}")), "{error}");
            }
            let (runtime, state) = with(variable, "/srv/x").unwrap();
            assert!([&runtime, &state].contains(&&PathBuf::from("/srv/x")));
        }
        let nowhere = directories(1000, |_| None).unwrap();
        for (variable, relative) in
            [("XDG_RUNTIME_DIR", "run"), ("XDG_STATE_HOME", "state"), ("HOME", "home"), ("FOREBAY_STATE_DIR", "")]
        {
            assert_eq!(with(variable, relative).unwrap(), nowhere, "{variable}");
        }
        assert_eq!(with("HOME", "/home/me").unwrap().1, PathBuf::from("/home/me/.local/state/forebay"));
    }

    #[test]
    fn files_of_attachments_are_where_the_environment_says() {
        let with = |user: u32, variables: &'static [(&'static str, &'static str)]| {
            let found = |asked: &str| variables.iter().find(|(name, _)| *name == asked).map(|(_, path)| path.into());
            configuration(user, found).map_err(|error| error.failure())
        };
        assert_eq!(with(0, &[("HOME", "/root")]), Ok("/etc/forebay".into()));
        assert_eq!(with(0, &[("FOREBAY_CONFIG_DIR", "/srv/x")]), Ok("/srv/x".into()));
        assert_eq!(with(7, &[("HOME", "/home/me")]), Ok("/home/me/.config/forebay".into()));
        assert_eq!(with(7, &[("HOME", "/home/me"), ("XDG_CONFIG_HOME", "/c")]), Ok("/c/forebay".into()));
        assert_eq!(with(7, &[("FOREBAY_CONFIG_DIR", "x")]), Err(Failure::Usage));
        assert_eq!(with(7, &[]), Err(Failure::NotFound));
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let (run, state) = (directory.path().join("run"), directory.path().join("state"));
        Paths::new(run.clone(), state.clone()).unwrap();
        for (mode, is_fine) in [(0o777, false), (0o720, false), (0o1777, false), (0o755, true), (0o700, true)] {
            fs::set_permissions(&run, fs::Permissions::from_mode(mode)).unwrap();
            let made = Paths::new(run.clone(), state.clone());
            assert_eq!(made.is_ok(), is_fine, "{mode:o}");
            if let Err(error) = made {
                assert_eq!(error.failure(), Failure::AccessDenied);
                assert!(error.to_string().contains("FOREBAY_RUNTIME_DIR"), "{error}");
            }
        }
    }

    #[test]
    fn control_sockets_are_listed_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        for name in ["b", "a"] {
            fs::write(paths.control_socket(name), "").unwrap();
        }
        fs::write(paths.front_socket("c", "nbd"), "").unwrap();
        assert_eq!(paths.control_names(), ["a", "b"]);
    }
}
