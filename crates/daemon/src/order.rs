//! What stands on what: an attachment whose LUN another one's gateway serves, or one of whose stores
//! lies on a disk that another one gives. It is started after that one, and ends before it.
//!
//! Nothing is asked for that: a gateway is known by the name of its target, which is that of no other
//! one (RFC 7143, section 4.2.7.1), so that the name of a host is resolved by nobody, and may be any.

use std::net::{IpAddr, SocketAddr};

use crate::file::AttachmentFile;

/// Settings that name the place of a store.
const STORES: [&str; 3] = ["cache.path", "log.path", "difference.path"];

/// Whether an attachment of the one file needs that of the other one.
pub fn stands_on(above: &AttachmentFile, below: &AttachmentFile) -> bool {
    let Some(fronts) = below.start.settings.get("front") else { return false };
    let is_needed = |front: &str| match front.split_once(':') {
        Some(("iscsi", place)) => above.start.urls.iter().any(|url| is_served_at(url, place, &below.gateway)),
        Some((_, place)) => STORES.iter().filter_map(|key| above.start.settings.get(*key)).any(|path| path == place),
        None => false,
    };
    fronts.split(' ').any(is_needed)
}

/// Whether a gateway that listens at `place`, with a target of this name, serves `url`.
fn is_served_at(url: &str, place: &str, gateway: &str) -> bool {
    let mut parts = url.strip_prefix("iscsi://").into_iter().flat_map(|rest| rest.split('/'));
    let (Some(portal), Some(target)) = (parts.next(), parts.next()) else { return false };
    let Some((host, port)) = portal.rsplit_once(':') else { return false };
    let Ok(listens) = place.parse::<SocketAddr>() else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let may_be_host = match host.parse::<IpAddr>() {
        Ok(address) => address == listens.ip() || listens.ip().is_unspecified(),
        Err(_) => true,
    };
    target == gateway && may_be_host && port.parse() == Ok(listens.port())
}

#[cfg(test)]
mod tests {
    use stack::status::start::StartStatus;

    use super::*;

    fn file(url: &str, settings: &[(&str, &str)]) -> AttachmentFile {
        let settings = settings.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        AttachmentFile {
            path: "a.toml".into(),
            name: "a".into(),
            url: url.into(),
            settings: [].into(),
            gateway: "b".into(),
            start: StartStatus { urls: vec![url.to_owned()], settings },
        }
    }

    #[test]
    fn what_a_gateway_serves_and_what_lies_on_a_disk_of_another_stands_on_that() {
        let fronts = [("front", "nbd:/dev/nbd1 iscsi:127.0.0.1:3261 fuse:/srv/disk")];
        let below = file("iscsi://192.0.2.7:3260/a/0", &fronts);
        let anywhere = file("iscsi://192.0.2.7:3260/a/0", &[("front", "iscsi:0.0.0.0:3261")]);
        for (url, is_above, is_anywhere) in [
            ("iscsi://127.0.0.1:3261/b/0", true, true),
            ("iscsi://localhost:3261/b/0", true, true),
            ("iscsi://192.0.2.9:3261/b/0", false, true),
            ("iscsi://127.0.0.1:3260/b/0", false, false),
            ("iscsi://[::1]:3261/b/0", false, true),
            // A name of /etc/hosts, or of the network; and one of another target.
            ("iscsi://san.example:3261/b/0", true, true),
            ("iscsi://san.example:3260/b/0", false, false),
            ("iscsi://san.example:3261/c/0", false, false),
            ("iscsi://127.0.0.1:3261/c/0", false, false),
        ] {
            let above = file(url, &[]);
            assert_eq!((stands_on(&above, &below), stands_on(&above, &anywhere)), (is_above, is_anywhere), "{url}");
        }
        for (key, path, is_above) in [
            ("cache.path", "/dev/nbd1", true),
            ("log.path", "/srv/disk", true),
            ("cache.path", "/dev/nbd10", false),
            ("front", "/dev/nbd1", false),
        ] {
            let above = file("iscsi://192.0.2.7:3260/a/1", &[(key, path)]);
            assert_eq!(stands_on(&above, &below), is_above, "{key} {path}");
        }
        assert!(!stands_on(&below, &file("iscsi://h:3260/a/0", &[])));
    }
}
