//! Whether level 2 has anything to do, and why.

use std::time::Duration;

use base::clock::Instant;
use store::Sequence;

use crate::limits::AGE_SHARES;
use crate::log_state::State;
use crate::map::Piece;
use crate::numbers::Sector;
use crate::settings::Settings;

/// The reason for a batch, which says whether requests may interrupt it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing is dirty.
    Nothing,
    /// Not yet: look again after this time.
    Later(Duration),
    /// An idle moment.
    Idle,
    /// Space or age require it.
    Due,
}

/// `share` of `time`, without overflow.
fn part_of(time: Duration, share: f64) -> Duration {
    Duration::try_from_secs_f64(time.as_secs_f64() * share).unwrap_or(Duration::MAX)
}

/// Whether a batch is due `now`, `idle_for` after the last request.
pub(crate) fn need(state: &State, settings: &Settings, now: Instant, idle_for: Duration) -> Need {
    let level2 = &settings.level2();
    if !is_anything_dirty(state, settings.keeps_order()) {
        return Need::Nothing;
    }
    let [_, share_old, _] = AGE_SHARES;
    let age = state.contents.oldest_in_log_at().map_or(Duration::ZERO, |at| now.since(at));
    let age_due = part_of(level2.age_max, share_old);
    let is_full = state.share_used() >= level2.share_start;
    if is_full || age >= age_due || state.room.was_full() || state.failure.has_come() {
        return Need::Due;
    }
    let idle_left = level2.idle.saturating_sub(idle_for);
    match idle_left.is_zero() {
        true => Need::Idle,
        false => Need::Later(idle_left.min(age_due.saturating_sub(age))),
    }
}

/// Whether level 2 has anything to send: slots are moved by level 1, and lost data is never
/// sent.
fn is_anything_dirty(state: &State, keeps_order: bool) -> bool {
    if state.failure.has_come() {
        return state.contents.map.dirty_from(Sector::FIRST).any(|piece| !piece.tag.is_lost());
    }
    state.contents.segments.oldest_dirty_at().is_some()
        || (keeps_order && state.destaged.sequence().next() < state.contents.applied.position.sequence)
        || state.contents.zeroes_since.is_some()
}

/// Whether anything of the records before `end` is not on the origin, except lost data.
pub(crate) fn is_dirty_before(state: &State, keeps_order: bool, end: Sequence) -> bool {
    if state.failure.has_come() {
        return state.contents.map.dirty_from(Sector::FIRST).any(|piece| !piece.tag.is_lost());
    }
    if keeps_order && state.destaged.sequence().next() < end {
        return true;
    }
    let oldest =
        state.contents.segments.by_age().find(|&segment| state.contents.segments.get(segment).dirty_sectors > 0);
    let is_segment_dirty = oldest.is_some_and(|segment| state.contents.segments.get(segment).first_sequence < end);
    let newest = state.newest();
    let is_zero_before = |piece: Piece| piece.is_zero() && piece.place.record(newest) < end;
    is_segment_dirty && state.contents.owed_from(Sector::FIRST).any(|piece| !piece.tag.is_lost())
        || state.contents.owed_from(Sector::FIRST).any(is_zero_before)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::options::DestageOrder;
    use crate::tests::Parts;

    #[test]
    fn a_batch_waits_for_an_idle_moment_until_data_is_old_or_records_wait() {
        let mut parts = Parts::new(|options| options.order = DestageOrder::Lba);
        let records = Arc::new(parts.assembly.records());
        let (settings, level2) = (Arc::clone(&parts.assembly.settings), parts.assembly.settings.level2());
        let written_at = parts.assembly.clock.now();
        let log = Arc::clone(&parts.assembly.log);
        let at = |age, idle_for| need(&log.state(), &settings, written_at + age, idle_for);
        assert_eq!(at(level2.age_max, level2.idle), Need::Nothing);
        let piece = parts.append(&records, 0, 8, 1);
        assert_eq!(at(Duration::ZERO, Duration::ZERO), Need::Later(level2.idle));
        assert_eq!(at(Duration::ZERO, level2.idle), Need::Idle);
        assert_eq!(at(level2.age_max, Duration::ZERO), Need::Due);
        log.state().room.ask();
        assert_eq!(at(Duration::ZERO, Duration::ZERO), Need::Due);
        log.state().contents.mark_clean(&piece);
        assert_eq!(at(level2.age_max, level2.idle), Need::Nothing, "the origin has all");
    }

    #[test]
    fn what_is_destaged_up_to_a_record_is_no_more_dirty_before_it() {
        let mut parts = Parts::new(|options| options.order = DestageOrder::Lba);
        let records = Arc::new(parts.assembly.records());
        let [first, _] = [0, 8].map(|sector| parts.append(&records, sector, 8, 1));
        let mut state = parts.assembly.log.state();
        let (second, end) = (Sequence::FIRST.next(), state.contents.applied.position.sequence);
        assert!(is_dirty_before(&state, false, second) && is_dirty_before(&state, false, end));
        assert!(is_dirty_before(&state, true, end));
        state.contents.mark_clean(&first);
        assert!(is_dirty_before(&state, false, end), "the second record");
        state.destaged.note_step(end.before());
        assert!(!is_dirty_before(&state, true, Sequence::FIRST));
    }
}
