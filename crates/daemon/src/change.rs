//! What another text of a file changes while its attachment runs: what can be set at once, and what
//! counts at the next start.

use std::collections::BTreeSet;

use stack::settings::file::URL;
use stack::settings::setting::{Setting, Unset};
use stack::settings::table::rows;

use crate::file::AttachmentFile;

/// The difference between two texts of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Keys and values to set.
    pub live: Vec<(&'static str, String)>,
    /// Keys that count at the next start.
    pub at_start: Vec<&'static str>,
}

impl Change {
    /// From `old` to `new`. A setting that is gone has its default again.
    pub fn between(old: &AttachmentFile, new: &AttachmentFile) -> Self {
        let mut change = Self::default();
        if old.url != new.url {
            change.at_start.push(URL);
        }
        let is_changed = |setting: &&Setting| old.settings.get(setting.key) != new.settings.get(setting.key);
        let changed: BTreeSet<&str> = rows().filter(is_changed).map(|setting| setting.key).collect();
        for setting in rows().filter(is_changed) {
            // A setting of a cache that the attachment does not have cannot be set.
            let is_of_new_part = setting.needs.iter().any(|needed| changed.contains(needed));
            match value(setting, new).filter(|_| setting.is_live() && !is_of_new_part) {
                Some(value) => change.live.push((setting.key, value)),
                None => change.at_start.push(setting.key),
            }
        }
        change
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.live.iter().map(|(key, _)| *key).chain(self.at_start.iter().copied())
    }
}

/// The value that the file, or else the default, has for a setting with one value.
fn value(setting: &Setting, file: &AttachmentFile) -> Option<String> {
    match (file.settings.get(setting.key).map(Vec::as_slice), setting.unset) {
        (Some([text]), _) => Some(text.clone()),
        (None, Unset::Value(text)) => Some(text.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use stack::status::start::StartStatus;

    use super::*;

    fn file(url: &str, settings: &[(&'static str, &str)]) -> AttachmentFile {
        let settings = settings.iter().map(|(key, text)| (*key, vec![(*text).to_owned()])).collect();
        AttachmentFile {
            path: "disk.toml".into(),
            name: "disk".into(),
            url: url.into(),
            settings,
            gateway: String::new(),
            start: StartStatus::default(),
        }
    }

    #[test]
    fn what_may_change_while_it_runs_is_set_and_the_rest_counts_at_the_next_start() {
        let cache = ("cache.path", "c");
        let old = file("a", &[cache, ("cache.mode", "write-back"), ("cache.clean-above", "20%"), ("wait", "on")]);
        let new = file("b", &[cache, ("cache.mode", "write-through"), ("read-only", "on"), ("wait", "on")]);
        let change = Change::between(&old, &new);
        let default = |key: &str| match rows().find(|setting| setting.key == key).unwrap().unset {
            Unset::Value(text) => text.to_owned(),
            Unset::Words(_) => panic!("{key} has a default"),
        };
        let live = [("cache.mode", "write-through".to_owned()), ("cache.clean-above", default("cache.clean-above"))];
        assert_eq!(change.live.iter().collect::<BTreeSet<_>>(), live.iter().collect());
        assert_eq!(change.at_start, ["url", "read-only"]);
        assert_eq!(Change::between(&new, &new), Change::default());
    }

    #[test]
    fn a_setting_of_a_part_that_is_new_is_not_set_in_the_attachment_without_it() {
        let new = file("a", &[("cache.path", "c"), ("cache.mode", "write-through")]);
        let change = Change::between(&file("a", &[]), &new);
        assert_eq!((change.live, change.at_start), (vec![], vec!["cache.path", "cache.mode"]));
    }
}
