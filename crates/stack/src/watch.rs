//! Warnings in the log of an attachment: its target is away or back; the file of a cache or log
//! with the LUN's newest data was removed or cut. Removed data is lost with the process, and no
//! error shows before; cut data is lost already.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;

use crate::content::{Content, content};
use crate::limits::WATCH_INTERVAL;
use crate::place::Place;

/// The state of an attachment at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observation {
    /// The session's state, in a word.
    pub(crate) state: String,
    pub(crate) portal: String,
    /// Places of stores with data that the LUN lacks.
    pub(crate) dirty_places: BTreeSet<Place>,
}

/// The conditions that were reported already.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    state: Option<String>,
    gone: BTreeSet<Place>,
    /// The file at each place that held dirty data.
    found: BTreeMap<Place, Found>,
}

impl Watch {
    /// Checks periodically, and logs what is new.
    pub(crate) async fn run(&mut self, observation: impl Fn() -> Observation) {
        loop {
            for news in self.look(&observation(), find) {
                match news {
                    News::Back(words) => tracing::info!("{words}"),
                    News::Trouble(words) => tracing::error!("{words}"),
                }
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    }

    fn look(&mut self, observation: &Observation, find: impl Fn(&Place) -> Option<Found>) -> Vec<News> {
        let mut news = Vec::new();
        let before = self.state.replace(observation.state.clone());
        // The session has logged its loss itself.
        if observation.state == "online" && before.is_some_and(|before| before != "online") {
            news.push(News::Back(format!("the session with {} is back", observation.portal)));
        }
        let mut gone = BTreeSet::new();
        for place in &observation.dirty_places {
            let Some(found) = find(place) else {
                gone.insert(place.clone());
                continue;
            };
            let before = self.found.insert(place.clone(), found);
            if before.is_some_and(|before| found.inode == before.inode && found.length < before.length) {
                news.push(News::Trouble(cut_in_use(place)));
            }
        }
        for place in gone.difference(&self.gone) {
            news.push(News::Trouble(gone_in_use(place)));
        }
        self.gone = gone;
        news
    }
}

/// The file at a place: a replaced one has another inode, a cut one is shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    inode: u64,
    length: u64,
}

/// A report for the log.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Back(String),
    Trouble(String),
}

fn gone_in_use(place: &Place) -> String {
    format!(
        "{place} was removed while it is in use, and holds data that the logical unit does not have: clean or detach \
         now, it goes with this process"
    )
}

fn cut_in_use(place: &Place) -> String {
    format!(
        "{place} was cut while it is in use: what it held there of data that the logical unit does not have is lost"
    )
}

/// The file at the place of a store that is in use; `None` where it was removed.
fn find(place: &Place) -> Option<Found> {
    // A file that cannot be examined counts as present; the length of a block device is zero.
    let found = |status: Metadata| Found { inode: status.ino(), length: status.len() };
    (!is_gone(place)).then(|| fs::metadata(&place.path).map_or(Found { inode: 0, length: 0 }, found))
}

/// Whether the file of a store in use is not at its place any more, or was emptied. Its data is
/// lost when the process that has it open ends.
pub(crate) fn is_gone(place: &Place) -> bool {
    matches!(content(place), Ok(Content::Nothing))
}

/// The status message for a store whose file was removed.
pub(crate) fn gone(place: &Place, dirty_bytes: u64) -> String {
    match dirty_bytes {
        0 => format!("{place} was removed while it is in use"),
        _ => gone_in_use(place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_vanishes_and_a_session_that_comes_back_are_said_once() {
        let place = Place { path: "/stores/a".into(), offset: None };
        let observation = |state: &str, dirty: &[&Place]| Observation {
            state: state.into(),
            portal: "h:1".into(),
            dirty_places: dirty.iter().map(|place| (*place).clone()).collect(),
        };
        let whole = Some(Found { inode: 1, length: 8 });
        let mut watch = Watch::default();
        assert_eq!(watch.look(&observation("online", &[&place]), |_| whole), []);
        assert_eq!(watch.look(&observation("online", &[]), |_| None), [], "what is clean is not missed");
        let gone = watch.look(&observation("reconnecting", &[&place]), |_| None);
        assert!(matches!(&gone[..], [News::Trouble(words)] if words.contains("/stores/a")), "{gone:?}");
        assert_eq!(watch.look(&observation("reconnecting", &[&place]), |_| None), []);
        assert_eq!(
            watch.look(&observation("online", &[&place]), |_| whole),
            [News::Back("the session with h:1 is back".into())]
        );
        assert_eq!(watch.look(&observation("online", &[&place]), |_| None).len(), 1, "again");
        assert_eq!(watch.look(&observation("online", &[&place]), |_| whole), []);
        let half = |inode| move |_: &Place| Some(Found { inode, length: 4 });
        let cut = watch.look(&observation("online", &[&place]), half(1));
        assert!(matches!(&cut[..], [News::Trouble(words)] if words.contains("/stores/a was cut")), "{cut:?}");
        assert_eq!(watch.look(&observation("online", &[&place]), half(1)), [], "once");
        watch.look(&observation("online", &[&place]), |_| whole);
        assert_eq!(watch.look(&observation("online", &[&place]), half(2)), [], "another file takes its place");
    }
}
