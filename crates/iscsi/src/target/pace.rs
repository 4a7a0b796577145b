//! The pace at which PDUs that are neither command nor data are handled on one connection.
//!
//! A host pings every few seconds, sends a text after its login and a task management request in
//! trouble, and no PDU that is rejected. A peer that sends many of these gains nothing, and takes
//! the time of other sessions. So each interval has a budget for such work; when it is spent, the
//! connection is not handled until the interval is over.

use base::clock::Instant;

use crate::framing::ReceivedPdu;
use crate::limits::{PACE_DATA_BYTES, PACE_INTERVAL, PACE_WORK_MAX, WORK_TEXT_BYTES};
use crate::pdu::Bhs;

#[derive(Default)]
pub(super) struct Pace {
    /// When the present interval began.
    since: Instant,
    /// Work in it so far.
    work: usize,
}

impl Pace {
    /// Counts such work.
    pub(super) fn note(&mut self, now: Instant, work: usize) {
        if now >= self.since + PACE_INTERVAL {
            *self = Self { since: now, work: 0 };
        }
        self.work += work;
    }

    /// The time until which the connection is not handled.
    pub(super) fn rests_until(&self) -> Option<Instant> {
        (self.work >= PACE_WORK_MAX).then_some(self.since + PACE_INTERVAL)
    }

    /// Whether it is not handled now.
    pub(super) fn is_resting(&self, now: Instant) -> bool {
        self.rests_until().is_some_and(|until| now < until)
    }

    /// Ends the rest if its time has come. Returns whether it has.
    pub(super) fn end_rest(&mut self, now: Instant) -> bool {
        let is_over = self.rests_until().is_some_and(|until| now >= until);
        if is_over {
            self.work = 0;
        }
        is_over
    }
}

/// The work that a PDU counts.
pub(super) fn work_of(pdu: &ReceivedPdu) -> usize {
    match pdu.header.bhs {
        Ok(Bhs::ScsiCommand(_) | Bhs::DataOut(_)) => 0,
        Ok(Bhs::TextRequest(_)) => 1 + pdu.data.length / WORK_TEXT_BYTES,
        _ => 1 + pdu.data.length / PACE_DATA_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::{ReceivedData, ReceivedHeader};
    use crate::pdu::{AdditionalHeaders, BHS_BYTES};

    /// The work of a PDU whose header begins with `opcode`, with `length` bytes of data.
    fn work(opcode: u8, length: usize) -> usize {
        let mut raw = [0; BHS_BYTES];
        raw[..2].copy_from_slice(&[opcode, 0x80]);
        let ahs = AdditionalHeaders::default();
        let header = ReceivedHeader { raw, bhs: Bhs::parse(&raw), ahs, data_segment_bytes: length };
        work_of(&ReceivedPdu { header, data: ReceivedData { length, ..ReceivedData::default() } })
    }

    #[test]
    fn texts_and_echoes_count_by_their_length_and_commands_not_at_all() {
        let (command, data_out, ping, text, unknown) = (0x01, 0x05, 0x00, 0x04, 0x1d);
        assert_eq!([work(command, 0), work(command, 8192), work(data_out, 8192)], [0; 3]);
        assert_eq!([work(ping, 0), work(ping, 8192)], [1, 1 + 8192 / PACE_DATA_BYTES]);
        assert_eq!([work(text, 0), work(text, 8192)], [1, 1 + 8192 / WORK_TEXT_BYTES]);
        assert_eq!(work(unknown, 0), 1);
    }

    #[test]
    fn a_connection_rests_until_its_interval_is_over() {
        let mut pace = Pace::default();
        let begin = Instant::START + PACE_INTERVAL * 7;
        pace.note(begin, PACE_WORK_MAX - 1);
        assert!(!pace.is_resting(begin) && pace.rests_until().is_none());
        let later = begin + PACE_INTERVAL / 2;
        pace.note(later, 1);
        assert!(pace.is_resting(later));
        assert_eq!(pace.rests_until(), Some(begin + PACE_INTERVAL));
        assert!(!pace.end_rest(later) && pace.is_resting(later));
        assert!(pace.end_rest(begin + PACE_INTERVAL) && pace.rests_until().is_none());
    }

    #[test]
    fn what_is_spread_over_time_never_rests() {
        let mut pace = Pace::default();
        for interval in 1..1000 {
            let now = Instant::START + PACE_INTERVAL * interval;
            pace.note(now, PACE_WORK_MAX - 1);
            assert!(!pace.is_resting(now));
        }
    }
}
