//! The caches of this host and user: where they are, and of which LUN, whether they are in use or not.
//!
//! One record a cache, made when it is attached, and removed when it is discarded or removed at its end. Whether a cache may hold what its LUN lacks says
//! the registry; this is for people and programs who want to know what there is.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use block::Identity;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::paths::{Paths, make_private};

/// One cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Record {
    /// Where it is.
    pub path: PathBuf,
    /// Version of this record; this is 1.
    pub version: u32,
    /// The LUN's target name.
    pub target: String,
    /// The LUN's designator.
    pub unit: String,
    /// The LUN's serial number.
    pub serial: String,
    /// The attachment's name, last.
    pub name: String,
}

impl Record {
    /// A record of the cache at `path` of the LUN `identity`, attached as `name`.
    pub fn new(path: &Path, identity: &Identity, name: &str) -> Self {
        Self {
            path: path.to_owned(),
            version: 1,
            target: identity.target.clone(),
            unit: identity.unit.clone(),
            serial: identity.serial.clone(),
            name: name.to_owned(),
        }
    }
}

/// All of them.
#[derive(Clone)]
pub struct Caches {
    directory: PathBuf,
}

impl Caches {
    /// The caches of this host and user.
    ///
    /// # Errors
    /// When their folder cannot be made.
    pub fn open(paths: &Paths) -> Result<Self> {
        let directory = paths.caches();
        make_private(&directory)?;
        Ok(Self { directory })
    }

    /// Notes a cache.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn note(&self, record: &Record) -> Result<()> {
        let path = self.file(&record.path);
        let temporary = path.with_extension("new");
        let text = serde_json::to_vec_pretty(record).map_err(|error| Error::io(path.display(), &error.into()))?;
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(|error| Error::io(format!("cannot record the cache in {}", path.display()), &error))
    }

    /// Forgets the cache at `path`, if it is known.
    ///
    /// # Errors
    /// When the record cannot be removed.
    pub fn forget(&self, path: &Path) -> Result<()> {
        let file = self.file(path);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(file.display(), &error)),
            _ => Ok(()),
        }
    }

    /// All that are known, by path. A record that cannot be read is passed over, with a word in the log.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn list(&self) -> Result<Vec<Record>> {
        let context = |error: &std::io::Error| Error::io(self.directory.display(), error);
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(|error| context(&error))? {
            let path = entry.map_err(|error| context(&error))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match fs::read(&path)
                .map_err(|error| error.to_string())
                .and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()))
            {
                Ok(record) => records.push(record),
                Err(error) => tracing::warn!(%error, "{} is no record of a cache", path.display()),
            }
        }
        records.sort();
        Ok(records)
    }

    fn file(&self, path: &Path) -> PathBuf {
        let name = Uuid::new_v5(&Uuid::NAMESPACE_OID, path.as_os_str().as_encoded_bytes()).simple();
        self.directory.join(format!("{name}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_listed_until_they_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let caches = Caches::open(&paths).unwrap();
        let identity = |serial: &str| Identity { target: "t".into(), unit: "u".into(), serial: serial.into() };
        let records = ["a", "b"].map(|name| Record::new(Path::new(name), &identity(name), "disk"));
        records.iter().rev().for_each(|record| caches.note(record).unwrap());
        caches.note(&records[0]).unwrap();
        assert_eq!(caches.list().unwrap(), records);
        fs::write(directory.path().join("state/caches/other.json"), "{").unwrap();
        caches.forget(Path::new("a")).unwrap();
        caches.forget(Path::new("a")).unwrap();
        assert_eq!(caches.list().unwrap(), records[1..]);
    }
}
