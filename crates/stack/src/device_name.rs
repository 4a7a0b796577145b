//! The name of a block device that stays with it, whatever its node is called.
//!
//! `/dev/sdb` may be another disk after the next start. The kernel's properties of the device
//! itself are read in this order, and the first that exists is the name:
//!
//! | device | read | name |
//! |---|---|---|
//! | loop device | `loop/backing_file`, `loop/offset` in sysfs | `loop-FILE`, with `@OFFSET` where it is not zero |
//! | device mapper | `dm/uuid` | `dm-UUID` |
//! | partition | `PARTUUID` in its `uevent`, else in `/dev/disk/by-partuuid` | `partuuid-UUID` |
//! | partition without one | its disk, `partition` | the disk's name with `-part-NUMBER` |
//! | disk | `wwid`, `device/wwid` | `wwid-WWID` |
//! | disk without one | `serial`, `device/serial` | `serial-SERIAL` |
//! | MD array | `md/uuid` | `md-UUID` |
//! | any | the first link in `/dev/disk/by-id` | `id-LINK` |
//! | none of these | its number and the path that the user gave | `path-MAJOR:MINOR-PATH` |
//!
//! The last is no name of the device: only the user can keep such a path stable. A warning is
//! logged.

use std::fs;
use std::path::{Path, PathBuf};

/// The places where the system describes its devices.
#[derive(Clone, Debug)]
struct System {
    /// `/sys/dev/block`.
    sysfs: PathBuf,
    /// `/dev/disk`.
    links: PathBuf,
}

/// The name of the block device at `path` with this number.
pub(crate) fn of(path: &Path, number: u64) -> String {
    let system = System { sysfs: "/sys/dev/block".into(), links: "/dev/disk".into() };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    system.name(&format!("{major}:{minor}"), |link| is_device(link, number)).unwrap_or_else(|| {
        tracing::warn!(
            "{} has no name of its own: its serial number and reservations go by this path and its number \
             {major}:{minor}",
            path.display()
        );
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        format!("path-{major}:{minor}-{}", path.display())
    })
}

fn is_device(link: &Path, number: u64) -> bool {
    rustix::fs::stat(link).is_ok_and(|status| status.st_rdev == number)
}

impl System {
    fn name(&self, number: &str, is_it: impl Fn(&Path) -> bool) -> Option<String> {
        let device = self.sysfs.join(number);
        if let Some(file) = attribute(&device.join("loop/backing_file")) {
            let offset = attribute(&device.join("loop/offset")).filter(|offset| offset != "0");
            return Some(offset.map_or_else(|| format!("loop-{file}"), |offset| format!("loop-{file}@{offset}")));
        }
        if let Some(uuid) = attribute(&device.join("dm/uuid")) {
            return Some(format!("dm-{uuid}"));
        }
        if let Some(partition) = attribute(&device.join("partition")) {
            let uuid = partition_uuid(&device).or_else(|| self.link("by-partuuid", &is_it));
            if let Some(uuid) = uuid {
                return Some(format!("partuuid-{}", uuid.to_ascii_lowercase()));
            }
            // The folder of a partition lies in that of its disk.
            let disk = fs::canonicalize(&device).ok()?.parent()?.to_owned();
            return disk_name(&disk).map(|disk| format!("{disk}-part-{partition}"));
        }
        disk_name(&device).or_else(|| self.link("by-id", is_it).map(|link| format!("id-{link}")))
    }

    /// The first link in a folder of `/dev/disk` that leads to the device.
    fn link(&self, folder: &str, is_it: impl Fn(&Path) -> bool) -> Option<String> {
        let entries = fs::read_dir(self.links.join(folder)).ok()?.flatten();
        entries.filter(|entry| is_it(&entry.path())).filter_map(|entry| entry.file_name().into_string().ok()).min()
    }
}

fn partition_uuid(device: &Path) -> Option<String> {
    let uevent = fs::read_to_string(device.join("uevent")).ok()?;
    uevent.lines().find_map(|line| line.strip_prefix("PARTUUID=").map(str::to_owned))
}

fn disk_name(device: &Path) -> Option<String> {
    let kinds = [
        ("wwid", "wwid"),
        ("device/wwid", "wwid"),
        ("serial", "serial"),
        ("device/serial", "serial"),
        ("md/uuid", "md"),
    ];
    kinds.iter().find_map(|(file, kind)| attribute(&device.join(file)).map(|value| format!("{kind}-{value}")))
}

/// The content of a file in sysfs, if it exists.
fn attribute(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The name as a file name: every character but letters, digits, `-`, `_`, `.`, `:` and `@` becomes
/// `%` and two hexadecimal digits, so that different names are different files.
pub(crate) fn to_file_name(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
    let encode = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") };
    name.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system whose sysfs has these files.
    fn system(folder: &Path, files: &[(&str, &str)]) -> System {
        for (path, text) in files {
            let path = folder.join("sys").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        System { sysfs: folder.join("sys"), links: folder.join("disk") }
    }

    #[test]
    fn each_kind_of_device_has_a_name_of_its_own() {
        for (files, name) in [
            (&[("7:0/loop/backing_file", "/srv/a b.img"), ("7:0/loop/offset", "0")][..], "loop-/srv/a b.img"),
            (&[("7:0/loop/backing_file", "/srv/a.img"), ("7:0/loop/offset", "512")], "loop-/srv/a.img@512"),
            (&[("7:0/dm/uuid", "LVM-abc")], "dm-LVM-abc"),
            (&[("7:0/wwid", "nvme.1"), ("7:0/serial", "S1")], "wwid-nvme.1"),
            (&[("7:0/device/wwid", "naa.5000"), ("7:0/device/serial", "S1")], "wwid-naa.5000"),
            (&[("7:0/serial", " S1 ")], "serial-S1"),
            (&[("7:0/md/uuid", "1-2")], "md-1-2"),
            (&[("7:0/partition", "2"), ("7:0/uevent", "MAJOR=7\nPARTUUID=AB-01")], "partuuid-ab-01"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            assert_eq!(system(folder.path(), files).name("7:0", |_| false).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_partition_without_a_name_goes_by_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let system = system(folder.path(), &[("disk/wwid", "naa.5000"), ("disk/sda3/partition", "3")]);
        std::os::unix::fs::symlink(folder.path().join("sys/disk/sda3"), folder.path().join("sys/8:3")).unwrap();
        assert_eq!(system.name("8:3", |_| false).as_deref(), Some("wwid-naa.5000-part-3"));
    }

    #[test]
    fn links_of_udev_are_asked_last() {
        let folder = tempfile::tempdir().unwrap();
        let system = system(folder.path(), &[("8:0/size", "1")]);
        fs::create_dir_all(system.links.join("by-id")).unwrap();
        for link in ["wwn-0x5000", "ata-disk", "ata-other"] {
            fs::write(system.links.join("by-id").join(link), "").unwrap();
        }
        let is_it = |link: &Path| !link.ends_with("ata-other");
        assert_eq!(system.name("8:0", is_it).as_deref(), Some("id-ata-disk"));
        assert_eq!(system.name("8:0", |_| false), None);
    }

    #[test]
    fn no_two_names_are_one_file() {
        assert_eq!(to_file_name("loop-/srv/a b%.img@512"), "loop-%2fsrv%2fa%20b%25.img@512");
        assert_eq!(to_file_name("wwid-naa.5000"), "wwid-naa.5000");
    }
}
