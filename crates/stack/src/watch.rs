//! What the log of an attachment says without being asked: that its target is away or back, and that the file of a cache or log with the LUN's newest
//! data was removed under it. The last goes with the process, and nobody notices before.

use std::collections::BTreeSet;

use crate::content::{Content, content};
use crate::limits::WATCH_INTERVAL;
use crate::place::Place;

/// What an attachment looks like at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight {
    /// The session's state, in a word.
    pub(crate) state: String,
    pub(crate) portal: String,
    /// Places of what holds data that the LUN lacks.
    pub(crate) dirty_places: BTreeSet<Place>,
}

/// What was said already.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    state: Option<String>,
    gone: BTreeSet<Place>,
}

impl Watch {
    /// Looks from time to time, and says what is new.
    pub(crate) async fn look_for_ever(&mut self, sight: impl Fn() -> Sight) {
        loop {
            for news in self.look(&sight(), |place| !is_gone(place)) {
                match news {
                    News::Back(words) => tracing::info!("{words}"),
                    News::Trouble(words) => tracing::error!("{words}"),
                }
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    }

    fn look(&mut self, sight: &Sight, exists: impl Fn(&Place) -> bool) -> Vec<News> {
        let mut news = Vec::new();
        let before = self.state.replace(sight.state.clone());
        // That it is away, and why, whoever lost it has said.
        if sight.state == "online" && before.is_some_and(|before| before != "online") {
            news.push(News::Back(format!("the session with {} is back", sight.portal)));
        }
        let gone: BTreeSet<Place> = sight.dirty_places.iter().filter(|place| !exists(place)).cloned().collect();
        for place in gone.difference(&self.gone) {
            news.push(News::Trouble(gone_in_use(place)));
        }
        self.gone = gone;
        news
    }
}

/// Something to say.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Back(String),
    Trouble(String),
}

fn gone_in_use(place: &Place) -> String {
    format!(
        "{place} was removed while it is in use, and holds data that the logical unit does not have: clean or detach now, it goes with this process"
    )
}

/// Whether the file of a store that is in use is not at its place any more, or was emptied there. What is in it ends with who has it open.
pub(crate) fn is_gone(place: &Place) -> bool {
    matches!(content(place), Ok(Content::Nothing))
}

/// What `status` says of a store without a name.
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
        let sight = |state: &str, dirty: &[&Place]| Sight {
            state: state.into(),
            portal: "h:1".into(),
            dirty_places: dirty.iter().map(|place| (*place).clone()).collect(),
        };
        let mut watch = Watch::default();
        assert_eq!(watch.look(&sight("online", &[&place]), |_| true), []);
        assert_eq!(watch.look(&sight("online", &[]), |_| false), [], "what is clean is not missed");
        let gone = watch.look(&sight("reconnecting", &[&place]), |_| false);
        assert!(matches!(&gone[..], [News::Trouble(words)] if words.contains("/stores/a")), "{gone:?}");
        assert_eq!(watch.look(&sight("reconnecting", &[&place]), |_| false), []);
        assert_eq!(
            watch.look(&sight("online", &[&place]), |_| true),
            [News::Back("the session with h:1 is back".into())]
        );
        assert_eq!(watch.look(&sight("online", &[&place]), |_| false).len(), 1, "again");
    }
}
