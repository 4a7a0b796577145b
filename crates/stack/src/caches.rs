//! The caches of this host and user: where they are, and of which LUN, whether they are in use or not.
//!
//! One record a cache, made when it is attached, and removed when it is discarded or removed at its end. Whether a cache may hold what its LUN lacks says
//! the registry; this is for people and programs who want to know what there is.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use base::range::ByteRange;
use base::units::ByteSize;
use block::Identity;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::cache_place::content_is_there;
use crate::error::{Error, Failure, Result};
use crate::paths::{Paths, make_private};
use crate::place::Place;

/// One cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Record {
    /// The file or block device it is in.
    pub path: PathBuf,
    /// Where in that it begins; `None` when it takes all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// How many bytes it takes; `None` when it is a file of its own, which may get another size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
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
    /// A record of the cache at `place`, on so many bytes, of the LUN `identity`, attached as `name`.
    pub fn new(place: &Place, device_bytes: u64, identity: &Identity, name: &str) -> Self {
        Self {
            path: place.path.clone(),
            offset: place.offset,
            length: place.fixed_bytes(device_bytes),
            version: 1,
            target: identity.target.clone(),
            unit: identity.unit.clone(),
            serial: identity.serial.clone(),
            name: name.to_owned(),
        }
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        Place { path: self.path.clone(), offset: self.offset }
    }

    /// The bytes of its file or block device that it takes.
    fn range(&self) -> ByteRange {
        let part = self.offset.zip(self.length).and_then(|(offset, length)| ByteRange::new(offset, length));
        part.unwrap_or(ByteRange { offset: 0, length: u64::MAX })
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
        let path = self.file(&record.place());
        let temporary = path.with_extension("new");
        let text = serde_json::to_vec_pretty(record).map_err(|error| Error::io(path.display(), &error.into()))?;
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(|error| Error::io(format!("cannot record the cache in {}", path.display()), &error))
    }

    /// Forgets the cache at `place`, if it is known.
    ///
    /// # Errors
    /// When the record cannot be removed.
    pub fn forget(&self, place: &Place) -> Result<()> {
        let file = self.file(place);
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

    /// How many bytes the cache in this part of a file or block device takes, if it is known.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(crate) fn length_of(&self, place: &Place) -> Result<Option<u64>> {
        Ok(self.list()?.into_iter().find(|record| record.place() == *place).and_then(|record| record.length))
    }

    /// Refuses these bytes of the file or block device of `place` when any of them are another cache's, whether that is in use or not.
    ///
    /// # Errors
    /// `InUse`, naming it.
    pub(crate) fn check_apart(&self, place: &Place, range: ByteRange) -> Result<()> {
        for record in self.list()? {
            let other = record.place();
            let is_in_the_way = other != *place && other.shares_file_with(place) && record.range().overlaps(&range);
            // One that cannot be looked at may be there.
            if !is_in_the_way || matches!(content_is_there(&other), Ok(false)) {
                continue;
            }
            let whole = || "all of it".to_owned();
            let taken = record.length.map_or_else(whole, |length| format!("{} of it", ByteSize(length)));
            let message = format!(
                "{place} overlaps the cache {other} of \"{}\" (LUN serial {}), which takes {taken}: choose another place, or give that cache up with \
                 `forebay cache discard {}`",
                record.name,
                record.serial,
                other.argument("cache")
            );
            return Err(Error::new(Failure::InUse, message));
        }
        Ok(())
    }

    fn file(&self, place: &Place) -> PathBuf {
        let mut bytes = place.path.as_os_str().as_encoded_bytes().to_vec();
        if let Some(offset) = place.offset {
            bytes.extend(format!("\0{offset}").bytes());
        }
        self.directory.join(format!("{}.json", Uuid::new_v5(&Uuid::NAMESPACE_OID, &bytes).simple()))
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
        let place = |name: &str| Place { path: name.into(), offset: None };
        let records = ["a", "b"].map(|name| Record::new(&place(name), 4096, &identity(name), "disk"));
        records.iter().rev().for_each(|record| caches.note(record).unwrap());
        caches.note(&records[0]).unwrap();
        assert_eq!(caches.list().unwrap(), records);
        fs::write(directory.path().join("state/caches/other.json"), "{").unwrap();
        caches.forget(&place("a")).unwrap();
        caches.forget(&place("a")).unwrap();
        assert_eq!(caches.list().unwrap(), records[1..]);
    }

    #[test]
    fn caches_of_one_device_are_apart() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let caches = Caches::open(&paths).unwrap();
        let disk = directory.path().join("disk");
        fs::write(&disk, vec![1; 64 << 10]).unwrap();
        let at = |offset| Place { path: disk.clone(), offset };
        let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s7".into() };
        let record = Record::new(&at(Some(8192)), 8192, &identity, "first");
        caches.note(&record).unwrap();
        assert_eq!(caches.length_of(&at(Some(8192))).unwrap(), Some(8192));
        let check = |offset, length| caches.check_apart(&at(Some(offset)), ByteRange { offset, length });
        assert!(check(0, 8192).is_ok() && check(16384, 8192).is_ok() && check(8192, 8192).is_ok());
        let whole = ByteRange { offset: 0, length: u64::MAX };
        for error in [check(0, 12288), check(12288, 4096), caches.check_apart(&at(None), whole)] {
            let error = error.unwrap_err();
            assert_eq!(error.failure(), Failure::InUse);
            for word in ["\"first\"", "serial s7", "takes 8KiB", "--cache-offset 8KiB"] {
                assert!(error.to_string().contains(word), "{error}");
            }
        }
        // What was wiped is nobody's any more.
        fs::write(&disk, vec![0; 64 << 10]).unwrap();
        assert!(check(0, 12288).is_ok());
        fs::remove_file(&disk).unwrap();
        assert!(caches.check_apart(&at(None), whole).is_ok());
    }
}
