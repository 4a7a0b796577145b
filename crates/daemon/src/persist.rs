//! Writes and removes the file of an attachment: `forebay attach --persist`, `forebay detach --forget`.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use stack::attach::AttachConfig;
use stack::login::{CHAP_VARIABLE, MUTUAL_CHAP_VARIABLE};
use stack::paths::Paths;
use stack::rooted_setting::rooted;
use stack::settings::Settings;
use stack::settings::file::URL;
use stack::{Error, Failure, Result};
use tempfile::NamedTempFile;
use toml::{Table, Value};

use crate::NAME;

/// The first line of a file that is written here.
const HEADING: &str =
    "# Written by `forebay attach --persist`; `forebay daemon reload` takes over what is changed here.\n";

/// Writes the file of the attachment of `urls` with `settings`, for its owner alone, whole or not
/// at all, durably. Paths are absolute in it. Returns the file, and the attachment's name.
///
/// # Errors
/// `Usage` for what no attachment can have, and for a secret that is in the environment only;
/// `InUse` when the file is there already.
pub fn write(directory: &Path, urls: &str, settings: &Settings, paths: &Paths) -> Result<(PathBuf, String)> {
    let config = AttachConfig::of(urls, settings.clone(), paths)?;
    let name = config.stack.name;
    stack::paths::check_name(&name)?;
    if name == NAME {
        let message = format!("the name \"{NAME}\" is that of the daemon: give another --name");
        return Err(Error::new(Failure::Usage, message));
    }
    check_secrets(urls, settings)?;
    let text = text_of(urls, settings)?;
    let path = directory.join(format!("{name}.toml"));
    let written = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    match written.and_then(|()| write_new(directory, &path, text.as_bytes())) {
        Ok(()) => Ok((path, name)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let message = format!(
                "{} is there already: change it and `forebay daemon reload`, or `forebay detach --forget {name}` first",
                path.display()
            );
            Err(Error::new(Failure::InUse, message))
        }
        Err(error) => Err(Error::io(format!("cannot write {}", path.display()), &error)),
    }
}

/// Removes a file, durably. One that is gone is no error.
///
/// # Errors
/// Those of the file system.
pub fn remove(path: &Path) -> Result<()> {
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => sync_directory(path.parent().unwrap_or(Path::new("."))),
    };
    removed.map_err(|error| Error::io(format!("cannot remove {}", path.display()), &error))
}

fn write_new(directory: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Readable by its owner alone, from the beginning.
    let mut file = NamedTempFile::new_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    sync_directory(directory)
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Refuses what the daemon's process would not know.
fn check_secrets(urls: &str, settings: &Settings) -> Result<()> {
    let has_user = settings.is_given("chap.user") || urls.contains('@');
    let is_in_environment = |variable: &str| std::env::var_os(variable).is_some();
    for (is_needed, key, variable) in [
        (has_user, "chap.file", CHAP_VARIABLE),
        (settings.is_given("chap.mutual-user"), "chap.mutual-file", MUTUAL_CHAP_VARIABLE),
    ] {
        if is_needed && !settings.is_given(key) && is_in_environment(variable) {
            let message = format!("{variable} is not kept: give the file that the secret is in, with --set {key}=FILE");
            return Err(Error::new(Failure::Usage, message));
        }
    }
    Ok(())
}

fn text_of(urls: &str, settings: &Settings) -> Result<String> {
    let mut table = Table::from_iter([(URL.to_owned(), Value::from(urls))]);
    // The file's name says it.
    for (setting, texts) in settings.given().filter(|(setting, _)| setting.key != "name") {
        let texts = texts.into_iter().map(|text| rooted(setting, text)).collect::<Result<Vec<_>>>()?;
        let value = match (<[String; 1]>::try_from(texts), setting.is_list) {
            (Ok([text]), false) => Value::from(text),
            (Ok(texts), true) => Value::from(Vec::from(texts)),
            (Err(texts), _) => Value::from(texts),
        };
        match setting.key.split_once('.') {
            None => drop(table.insert(setting.key.to_owned(), value)),
            Some((part, key)) => {
                let part = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
                part.as_table_mut().map(|part| part.insert(key.to_owned(), value));
            }
        }
    }
    let text = toml::to_string(&table).map_err(|error| Error::new(Failure::Other, error.to_string()))?;
    Ok(format!("{HEADING}{text}"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::fs::PermissionsExt;

    use stack::settings::Origin;

    use super::*;
    use crate::file::AttachmentFile;

    fn given(all: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        all.iter().for_each(|(key, text)| settings.give(key, OsStr::new(text), Origin::Set).unwrap());
        settings
    }

    const URL: &str = "iscsi://h/iqn.2026-11.org.example:a/0";

    #[test]
    fn what_was_said_is_in_the_file_with_absolute_paths_and_for_its_owner_alone() {
        let world = tempfile::tempdir().unwrap();
        let paths = Paths::new(world.path().join("run"), world.path().join("state")).unwrap();
        let directory = world.path().join("etc/forebay");
        let said = given(&[
            ("name", "disk"),
            ("cache.path", "disk.cache"),
            ("cache.size", "8MiB"),
            ("front", "nbd:unix:disk.nbd"),
            ("front", "auto"),
            ("wait", "on"),
        ]);
        let (path, name) = write(&directory, URL, &said, &paths).unwrap();
        assert_eq!((path.clone(), name.as_str()), (directory.join("disk.toml"), "disk"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        let file = AttachmentFile::parse(&text, &path, &paths).unwrap();
        let here = |name: &str| std::path::absolute(name).unwrap().display().to_string();
        assert_eq!((file.name.as_str(), file.url.as_str()), ("disk", URL));
        assert_eq!(file.settings["cache.path"], [here("disk.cache")]);
        assert_eq!(file.settings["front"], [format!("nbd:unix:{}", here("disk.nbd")), "auto".to_owned()]);
        assert_eq!(
            (&file.settings["cache.size"][..], &file.settings["wait"][..]),
            (&["8MiB".into()][..], &["on".into()][..])
        );
        // Nothing is overwritten, and nothing half-made is left.
        let refused = write(&directory, URL, &given(&[("name", "disk")]), &paths).unwrap_err();
        assert_eq!(refused.failure(), Failure::InUse);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        remove(&path).and_then(|()| remove(&path)).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_cannot_be_attached_is_not_written() {
        let world = tempfile::tempdir().unwrap();
        let paths = Paths::new(world.path().join("run"), world.path().join("state")).unwrap();
        for (url, settings) in [
            (URL, given(&[("cache.size", "8MiB")])),
            (URL, given(&[("name", "a/b")])),
            (URL, given(&[("name", "daemon")])),
            ("http://h", given(&[])),
        ] {
            let error = write(&world.path().join("etc"), url, &settings, &paths).map(drop).unwrap_err();
            assert_eq!(error.failure(), Failure::Usage, "{error}");
        }
        assert!(!world.path().join("etc").exists());
    }
}
