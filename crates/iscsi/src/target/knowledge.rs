//! What the initiator knows of the news that responses brought it, by the order of its commands.
//!
//! ```text
//!  response with news ──► sent ──ExpStatSN of a request──► acknowledged ──turn of that request──► known from a place on
//! ```
//!
//! A command knows of news if the initiator had them when it sent the command: the request that acknowledges their
//! response (ExpStatSN), and what it numbered after that. What it numbered before (CmdSN) knows nothing of them, on
//! whatever connection and however late it comes: a command that was lost and is sent again, or one that waits for its
//! data. An immediate command has no number of its own: one that is late on another connection counts as sent when it
//! came. News of which a command knows by mistake would be acted upon, so that in doubt it knows nothing: the driver
//! tells them again.

use std::collections::{BTreeMap, VecDeque};

use base::serial::Serial32;

use super::event::LinkId;
use crate::limits::{KNOWN_NEWS_MAX, NEWS_MAX};

/// The place of a command in the order of commands; those before their turn have none yet.
pub(super) const NO_PLACE: u64 = 0;

/// The news of one session. Without any, a command costs a comparison.
#[derive(Debug)]
pub(super) struct Knowledge {
    /// News of responses that are not acknowledged, by connection and StatSN.
    sent: VecDeque<(LinkId, Serial32, u64)>,
    /// News that are known from this CmdSN on, of which no command has had its turn.
    acknowledged: Vec<(Serial32, u64)>,
    /// The place of the first command that knows of news, by these.
    known: BTreeMap<u64, u64>,
    place_next: u64,
}

impl Knowledge {
    pub(super) fn new() -> Self {
        Self { sent: VecDeque::new(), acknowledged: Vec::new(), known: BTreeMap::new(), place_next: NO_PLACE + 1 }
    }

    /// Notes that the response with this number brings news. Those that were told before on this connection are known
    /// with the first response.
    pub(super) fn report(&mut self, at: LinkId, stat_sn: Serial32, news: u64) {
        let is_under_way = self.sent.iter().any(|(link, _, told)| (*link, *told) == (at, news));
        if is_under_way || self.acknowledged.iter().any(|(_, told)| *told == news) {
            return;
        }
        if self.sent.len() == NEWS_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((at, stat_sn, news));
    }

    /// Whether acknowledgements matter.
    pub(super) fn is_expecting(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Notes that a request acknowledges the responses before `exp_stat_sn`; the initiator numbered what has `from` or
    /// a later number after it had them.
    pub(super) fn acknowledge(&mut self, at: LinkId, exp_stat_sn: Serial32, from: Serial32) {
        let Self { sent, acknowledged, .. } = self;
        sent.retain(|(link, stat_sn, news)| {
            let is_acknowledged = *link == at && stat_sn.is_before(exp_stat_sn);
            if is_acknowledged && acknowledged.iter().all(|(_, told)| told != news) {
                acknowledged.push((from, *news));
            }
            !is_acknowledged
        });
    }

    /// The place of a command whose turn has come, after all with lower numbers.
    pub(super) fn place_of(&mut self, cmd_sn: Serial32) -> u64 {
        if !self.acknowledged.is_empty() {
            self.settle(cmd_sn);
        }
        self.place_next += 1;
        self.place_next - 1
    }

    /// The place of an immediate command, where the turn of `exp_cmd_sn` is next. One that comes behind commands that
    /// were sent after it knows nothing.
    pub(super) fn place_of_immediate(&mut self, cmd_sn: Serial32, exp_cmd_sn: Serial32) -> u64 {
        if cmd_sn.is_before(exp_cmd_sn) { NO_PLACE } else { self.place_of(exp_cmd_sn) }
    }

    fn settle(&mut self, cmd_sn: Serial32) {
        let Self { acknowledged, known, place_next, .. } = self;
        acknowledged.retain(|(from, news)| {
            let is_known = !from.is_after(cmd_sn);
            if is_known {
                if known.len() == KNOWN_NEWS_MAX {
                    // The oldest: the driver counts up.
                    known.pop_first();
                }
                known.insert(*news, *place_next);
            }
            !is_known
        });
    }

    /// The place of the first command that knows of these news.
    pub(super) fn known_from(&self, news: u64) -> Option<u64> {
        self.known.get(&news).copied()
    }

    /// Whether the initiator has acknowledged these news.
    pub(super) fn is_acknowledged(&self, news: u64) -> bool {
        self.acknowledged.iter().any(|(_, acknowledged)| *acknowledged == news) || self.known_from(news).is_some()
    }

    pub(super) fn forget(&mut self, news: u64) {
        self.known.remove(&news);
        self.sent.retain(|(_, _, sent)| *sent != news);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWS: u64 = 7;
    const AT: LinkId = LinkId(1);

    fn told() -> Knowledge {
        let mut knowledge = Knowledge::new();
        knowledge.report(AT, Serial32(20), NEWS);
        knowledge
    }

    fn knows(knowledge: &Knowledge, place: u64) -> bool {
        knowledge.known_from(NEWS).is_some_and(|from| place >= from)
    }

    #[test]
    fn what_was_numbered_before_the_news_were_acknowledged_does_not_know_of_them() {
        let mut knowledge = told();
        let earlier = knowledge.place_of(Serial32(10));
        knowledge.acknowledge(AT, Serial32(20), Serial32(11));
        knowledge.acknowledge(LinkId(2), Serial32(30), Serial32(11));
        assert!(knowledge.is_expecting(), "the responses before it, or those of another connection, say nothing");
        knowledge.acknowledge(AT, Serial32(21), Serial32(12));
        let between = knowledge.place_of(Serial32(11));
        let late = knowledge.place_of_immediate(Serial32(11), Serial32(12));
        let later = knowledge.place_of(Serial32(12));
        assert!(!knows(&knowledge, earlier) && !knows(&knowledge, between) && !knows(&knowledge, late));
        assert!(knows(&knowledge, later) && !knowledge.is_expecting());
        assert!(!knows(&knowledge, between), "and does not learn of them");
    }

    #[test]
    fn an_immediate_command_knows_what_the_next_one_in_order_would_know() {
        let mut knowledge = told();
        knowledge.acknowledge(AT, Serial32(21), Serial32(12));
        let early = knowledge.place_of_immediate(Serial32(12), Serial32(11));
        let behind = knowledge.place_of(Serial32(11));
        let immediate = knowledge.place_of_immediate(Serial32(12), Serial32(12));
        assert!(!knows(&knowledge, early) && !knows(&knowledge, behind), "a gap is before it");
        assert!(knows(&knowledge, immediate));
    }

    #[test]
    fn news_whose_connection_is_lost_are_told_again_on_another() {
        let mut knowledge = told();
        knowledge.report(LinkId(2), Serial32(5), NEWS);
        knowledge.report(LinkId(2), Serial32(6), NEWS);
        knowledge.acknowledge(LinkId(2), Serial32(6), Serial32(3));
        let place = knowledge.place_of(Serial32(3));
        assert!(knows(&knowledge, place), "the first response on a connection counts");
        knowledge.forget(NEWS);
        assert!(!knows(&knowledge, place) && !knowledge.is_expecting());
    }

    #[test]
    fn news_without_end_take_no_more_than_their_room() {
        let mut knowledge = Knowledge::new();
        let (portion, end) = (2 * NEWS_MAX as u32, KNOWN_NEWS_MAX as u32 + NEWS_MAX as u32);
        for first in (0..2 * end).step_by(portion as usize) {
            (first..first + portion).for_each(|news| knowledge.report(AT, Serial32(news), u64::from(news)));
            assert_eq!(knowledge.sent.len(), NEWS_MAX);
            knowledge.acknowledge(AT, Serial32(first + portion), Serial32(1));
            knowledge.place_of(Serial32(1));
            assert!(knowledge.acknowledged.is_empty() && knowledge.known.len() <= KNOWN_NEWS_MAX);
        }
        assert_eq!(knowledge.known.len(), KNOWN_NEWS_MAX);
        let oldest = knowledge.known.first_key_value().map(|(news, _)| *news);
        assert_eq!(oldest, Some(3 * NEWS_MAX as u64), "of the first portion none is left");
    }
}
