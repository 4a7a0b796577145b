//! Change marks (`docs/protocol/change-marks.md`): the ranges of a LUN that other hosts changed
//! since a store of this host last used it, where the target records them.
//!
//! A mark that this process holds is taken again in every new session, before any other command
//! there changes the LUN, and its changes are read: what other hosts changed meanwhile is published
//! as [`Event::Invalidated`](block::Event::Invalidated). If the target does not know the mark any
//! more, with another token only, or only since it was made anew, everything may have changed.
//!
//! | the answer in a new session | others changed |
//! |---|---|
//! | a report | what it says |
//! | that the target knows no such mark, or has no marks any more | nobody knows what |
//! | a refusal (ILLEGAL REQUEST, but for 25h) | everything |
//! | 25h: there is no such LUN; NOT READY; ABORTED COMMAND | not known yet: that says nothing, and the next session asks; requests wait for it as for any |
//! | another error, as of the target's medium, or data that make no sense | likewise, for half of the replacement timeout; then everything |
//!
//! Of a shared LUN no changes are read: its registrations report changes, and outlive the session.

use block::{ByteRange, Error, ErrorKind};
use scsi::change_mark::{Changes, Parameters, Run, Support, action_in, action_out, parse_marks};
use scsi::{Cdb, Sense, SenseKey, Status};

pub use scsi::change_mark::{Mark, Support as ChangeMarkSupport};

use crate::change_guard::ReportedChanges;
use crate::error::{LinkError, malformed, sense_error};
use crate::limits::{CHANGE_REPORT_BYTES, CHANGE_REPORTS_MAX, MARKS_BYTES};
use crate::raw_command::{RawCommand, RawOutcome, Repeat};
use crate::remote_lun::RemoteLun;
use crate::taken_marks::{TakenMarks, Tokens};
use crate::unit::{Probe, is_unsupported};

/// The changes that a mark has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeReport {
    /// The sequence number of this content; `clear_mark` names it.
    pub sequence: u64,
    /// Others have changed these bytes at most; ascending, not touching. The last one may reach past the end.
    pub ranges: Vec<ByteRange>,
}

/// A report that is read in several parts. Parts with different id, token or sequence are not
/// combined.
struct Report {
    slot: u16,
    support: Support,
    so_far: Option<Changes>,
    asked: u32,
}

impl Report {
    fn new(slot: u16, support: Support) -> Self {
        Self { slot, support, so_far: None, asked: 0 }
    }

    /// The command that reads the next part.
    fn cdb(&mut self) -> Cdb {
        self.asked += 1;
        let last = self.so_far.as_ref().and_then(|changes| changes.runs.last());
        Cdb::ChangeMarkIn {
            service_action: action_in::REPORT_CHANGES,
            slot: self.slot,
            first_range: last.map_or(0, |run| run.first.saturating_add(run.count)),
            allocation_length: CHANGE_REPORT_BYTES as u32,
        }
    }

    /// Adds a part. Returns the whole report if it was the last part.
    fn handle(&mut self, part: Changes) -> Option<ChangeReport> {
        let key = |changes: &Changes| (changes.id, changes.token, changes.sequence);
        let is_same = self.so_far.as_ref().is_none_or(|so_far| key(so_far) == key(&part));
        if !is_same {
            self.so_far = None;
            if self.asked < CHANGE_REPORTS_MAX {
                return None;
            }
            // The report changes faster than it can be read: everything counts as changed.
            return Some(self.report(part.sequence, &[Run { first: 0, count: u32::MAX }]));
        }
        let has_more = part.has_more && !part.runs.is_empty();
        let mut whole = self.so_far.take().unwrap_or_else(|| Changes { runs: Vec::new(), ..part.clone() });
        whole.runs.extend(part.runs);
        if has_more && self.asked < CHANGE_REPORTS_MAX {
            self.so_far = Some(whole);
            return None;
        }
        if has_more {
            whole.runs = vec![Run { first: 0, count: u32::MAX }];
        }
        Some(self.report(whole.sequence, &whole.runs))
    }

    fn report(&self, sequence: u64, runs: &[Run]) -> ChangeReport {
        let range_bytes = u64::from(self.support.range_bytes);
        let of = |run: &Run| ByteRange {
            offset: u64::from(run.first).saturating_mul(range_bytes),
            length: u64::from(run.count).saturating_mul(range_bytes),
        };
        let within = |range: ByteRange| ByteRange { length: range.length.min(u64::MAX - range.offset), ..range };
        ChangeReport { sequence, ranges: runs.iter().map(of).map(within).collect() }
    }
}

fn report_marks_cdb() -> Cdb {
    Cdb::ChangeMarkIn {
        service_action: action_in::REPORT_MARKS,
        slot: 0,
        first_range: 0,
        allocation_length: MARKS_BYTES as u32,
    }
}

fn out_cdb(service_action: u8) -> Cdb {
    Cdb::ChangeMarkOut { service_action, parameter_list_length: Parameters::BYTES as u32 }
}

/// All methods fail with `Unsupported` where the LUN has no change marks.
impl RemoteLun {
    /// How many marks the target keeps, and of which granularity; `None` where it has no change
    /// marks.
    pub fn change_mark_support(&self) -> Option<Support> {
        self.shared().view().change_marks
    }

    pub(crate) fn support(&self) -> Result<Support, Error> {
        let none = || Error::new(ErrorKind::Unsupported, format!("{} has no change marks", self.place()));
        self.change_mark_support().ok_or_else(none)
    }

    /// The marks of this initiator's name.
    ///
    /// # Errors
    /// `Corrupt` when the answer is malformed, else the errors of commands.
    pub async fn marks(&self) -> Result<Vec<Mark>, Error> {
        self.support()?;
        let data = self.change_mark_in(report_marks_cdb()).await?;
        parse_marks(&data).map_err(malformed)
    }

    /// The ranges that other hosts have changed, as the mark in `slot` records.
    ///
    /// # Errors
    /// As [`marks`](Self::marks).
    pub async fn changes(&self, slot: u16) -> Result<ChangeReport, Error> {
        let mut report = Report::new(slot, self.support()?);
        loop {
            let cdb = report.cdb();
            let data = self.change_mark_in(cdb).await?;
            if let Some(report) = report.handle(Changes::parse(&data).map_err(malformed)?) {
                return Ok(report);
            }
        }
    }

    /// Takes the mark `id` with `token`, and takes it again in every later session. A mark that
    /// does not exist is created, with everything changed.
    ///
    /// # Errors
    /// Those of commands; the mark is not held then.
    pub async fn take_mark(&self, id: [u8; 16], token: u64) -> Result<(), Error> {
        self.support()?;
        // Inserted before the command is sent: a session that begins before the answer takes the
        // mark as well.
        self.shared().taken.lock().insert(id, Tokens(vec![token]));
        let taken = self.send_take(id, token).await.and_then(|outcome| check(&outcome, "taking a change mark"));
        if taken.is_err() {
            self.shared().taken.lock().remove(&id);
        }
        taken
    }

    async fn send_take(&self, id: [u8; 16], token: u64) -> Result<RawOutcome, Error> {
        self.change_mark_out(action_out::TAKE, Parameters { id, token, sequence: 0 }, Repeat::Always).await
    }

    /// Notes that a held mark is about to get another token, by this path or another: until
    /// [`settle_token`](Self::settle_token), a session that begins meanwhile accepts either, also
    /// where [`renew_mark`](Self::renew_mark) fails.
    pub fn expect_token(&self, id: [u8; 16], token: u64) {
        if let Some(tokens) = self.shared().taken.lock().get_mut(&id) {
            tokens.0.retain(|known| *known != token);
            tokens.0.push(token);
        }
    }

    /// Gives a held mark the token that is expected.
    ///
    /// # Errors
    /// Those of commands; the mark has either token then.
    pub async fn renew_mark(&self, id: [u8; 16], token: u64) -> Result<(), Error> {
        self.support()?;
        check(&self.send_take(id, token).await?, "renewing a change mark")
    }

    /// Notes that a held mark has this token; older tokens are not accepted any more.
    pub fn settle_token(&self, id: [u8; 16], token: u64) {
        if let Some(tokens) = self.shared().taken.lock().get_mut(&id) {
            tokens.0.retain(|known| *known == token);
        }
    }

    /// Clears the recorded changes, if they are still those of `sequence`. Returns whether they
    /// were cleared; `false` also when the session was lost meanwhile.
    ///
    /// # Errors
    /// Those of commands.
    pub async fn clear_mark(&self, id: [u8; 16], token: u64, sequence: u64) -> Result<bool, Error> {
        self.support()?;
        let parameters = Parameters { id, token, sequence };
        let outcome = match self.change_mark_out(action_out::CLEAR, parameters, Repeat::IfRefused).await {
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => return Ok(false),
            outcome => outcome?,
        };
        let sense = Sense::parse(&outcome.sense).ok();
        let is_another = |sense: &Sense| {
            sense.is_same_condition(&Sense::INVALID_FIELD_IN_PARAMETER_LIST)
                || sense.is_same_condition(&Sense::COMMAND_SEQUENCE_ERROR)
        };
        if sense.as_ref().is_some_and(is_another) {
            return Ok(false);
        }
        check(&outcome, "clearing a change mark").map(|()| true)
    }

    /// Removes a held mark at the target. Later sessions do not take it, also after an error: it is
    /// known to nobody, and what it would tell of is no change by others.
    ///
    /// # Errors
    /// Those of commands; the target may have the mark then.
    pub async fn forget_mark(&self, id: [u8; 16]) -> Result<(), Error> {
        self.support()?;
        let parameters = Parameters { id, token: 0, sequence: 0 };
        let outcome = self.change_mark_out(action_out::FORGET, parameters, Repeat::Always).await;
        self.shared().taken.lock().remove(&id);
        check(&outcome?, "forgetting a change mark")
    }

    pub(crate) async fn change_mark_in(&self, cdb: Cdb) -> Result<Vec<u8>, Error> {
        let outcome = self.carry_out(RawCommand::reading(cdb)).await?;
        check(&outcome, "asking for change marks")?;
        Ok(outcome.data_in)
    }

    pub(crate) async fn change_mark_out(
        &self,
        action: u8,
        list: Parameters,
        repeat: Repeat,
    ) -> Result<RawOutcome, Error> {
        self.carry_out(RawCommand::sending(repeat, out_cdb(action), list.emit().to_vec())).await
    }
}

/// The number of the first content of a mark, which is made with everything changed.
const SEQUENCE_OF_NEW: u64 = 0;

fn everything() -> ByteRange {
    ByteRange { offset: 0, length: u64::MAX }
}

/// Takes the held marks again, first of all in a new session. Returns what others changed
/// meanwhile; nothing for a unit that `is_shared`.
///
/// # Errors
/// Those of the link, and answers that say nothing of changes: there is no unit now (25h), or an error that may pass.
/// Another session asks again. Where such errors go on, for half of the replacement timeout, everything counts as
/// changed.
pub(crate) async fn take_again(
    probe: &mut Probe<'_>,
    support: Option<Support>,
    taken: &TakenMarks,
    is_shared: bool,
) -> Result<ReportedChanges, LinkError> {
    let mut changed = ReportedChanges::default();
    for id in taken.ids() {
        if is_shared {
            take_newest(probe, id, taken).await?;
            continue;
        }
        match take_one(probe, support, id, taken).await? {
            Reported::Recorded(ranges) => changed.recorded.extend(ranges),
            Reported::Unknown => changed.unknown = Some(everything()),
            Reported::Nothing(why) => {
                changed.recorded.push(everything());
                changed.unreported = Some(why);
            }
        }
    }
    if changed.unreported.is_none() {
        taken.end_silence();
    }
    Ok(changed)
}

/// What the unit tells of one mark.
enum Reported {
    /// It recorded these.
    Recorded(Vec<ByteRange>),
    /// It does not know the mark.
    Unknown,
    /// It has the mark, perhaps, and does not tell, for this reason: no other path vouches for anything.
    Nothing(String),
}

/// Why a question about marks brings no answer.
struct Silence {
    why: Error,
    /// Whether the unit refuses it, and will do so again.
    is_refused: bool,
}

impl Silence {
    fn malformed(error: scsi::Malformed) -> Self {
        Self { why: malformed(error), is_refused: false }
    }

    /// The words for a silence that lasts.
    ///
    /// # Errors
    /// Its own, where it may end: the session is made anew, and asks again.
    fn lasting(self, probe: &Probe<'_>, taken: &TakenMarks) -> Result<String, LinkError> {
        let options = probe.options();
        // Requests that wait for the session have time left then.
        if self.is_refused || taken.is_silent_for(options.clock.now(), options.replacement_timeout / 2) {
            return Ok(self.why.to_string());
        }
        Err(LinkError::Unit(self.why))
    }
}

/// The data of an answer to a question about marks.
///
/// # Errors
/// An answer that says nothing: there is no unit now, or what failed may pass.
fn received(answer: Result<Vec<u8>, Sense>, what: &str) -> Result<Result<Vec<u8>, Silence>, LinkError> {
    let sense = match answer {
        Ok(data) => return Ok(Ok(data)),
        Err(sense) => sense,
    };
    let why = sense_error(&sense, what);
    match sense.key {
        SenseKey::NotReady | SenseKey::AbortedCommand => Err(LinkError::Unit(why)),
        SenseKey::IllegalRequest if !is_unsupported(&sense) => Err(LinkError::Unit(why)),
        key => Ok(Err(Silence { why, is_refused: key == SenseKey::IllegalRequest })),
    }
}

/// Takes one mark again. Returns what it recorded.
async fn take_one(
    probe: &mut Probe<'_>,
    support: Option<Support>,
    id: [u8; 16],
    taken: &TakenMarks,
) -> Result<Reported, LinkError> {
    let Some(support) = support else { return Ok(Reported::Unknown) };
    let answer = received(probe.ask(&report_marks_cdb()).await?, "REPORT MARKS")?;
    let marks = match answer.and_then(|data| parse_marks(&data).map_err(Silence::malformed)) {
        Ok(marks) => Ok(marks),
        Err(silence) => Err(silence.lasting(probe, taken)?),
    };
    let tokens = taken.get(&id);
    let counts = |mark: &&Mark| mark.id == id && tokens.as_ref().is_some_and(|tokens| tokens.0.contains(&mark.token));
    let refusal = take_newest(probe, id, taken).await?;
    let marks = match marks {
        Ok(marks) => marks,
        Err(why) => return Ok(Reported::Nothing(why)),
    };
    // Another path made one anew since the session was lost, where the unit knew none.
    let is_made_before = |mark: &&Mark| mark.sequence != SEQUENCE_OF_NEW;
    let Some(known) = marks.iter().find(counts).filter(is_made_before) else { return Ok(Reported::Unknown) };
    if let Some(silence) = refusal {
        return silence.lasting(probe, taken).map(Reported::Nothing);
    }
    let mut report = Report::new(known.slot, support);
    loop {
        let cdb = report.cdb();
        let answer = received(probe.ask(&cdb).await?, "REPORT CHANGES")?;
        let part = match answer.and_then(|data| Changes::parse(&data).map_err(Silence::malformed)) {
            Ok(part) if part.id == id => part,
            Ok(_) => return Ok(Reported::Nothing("another mark has its slot".to_owned())),
            Err(silence) => return silence.lasting(probe, taken).map(Reported::Nothing),
        };
        if let Some(report) = report.handle(part) {
            return Ok(Reported::Recorded(report.ranges));
        }
    }
}

/// Gives the mark its newest token. Returns why the unit did not accept it, if so.
async fn take_newest(probe: &mut Probe<'_>, id: [u8; 16], taken: &TakenMarks) -> Result<Option<Silence>, LinkError> {
    // Another path may renew the token meanwhile; an older one must not replace it.
    let (mut token, mut refusal) = (None, None);
    while let Some(newest) = taken.get(&id).and_then(|tokens| tokens.newest()).filter(|newest| token != Some(*newest)) {
        let list = Parameters { id, token: newest, sequence: 0 }.emit();
        refusal = received(probe.tell(&out_cdb(action_out::TAKE), &list).await?, "TAKE of a change mark")?.err();
        token = Some(newest);
    }
    Ok(refusal)
}

pub(crate) fn check(outcome: &RawOutcome, what: &str) -> Result<(), Error> {
    match (Status::from_code(outcome.status), Sense::parse(&outcome.sense)) {
        (Some(Status::Good), _) => Ok(()),
        (Some(Status::CheckCondition), Ok(sense)) => Err(sense_error(&sense, what)),
        _ => Err(Error::new(ErrorKind::OutcomeUnknown, format!("{what} ended with status {:02x}h", outcome.status))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(sequence: u64, has_more: bool, runs: &[(u32, u32)]) -> Changes {
        let runs = runs.iter().map(|&(first, count)| Run { first, count }).collect();
        Changes { id: [1; 16], token: 1, sequence, range_count: 100, has_more, runs }
    }

    #[test]
    fn parts_of_one_content_make_a_report_and_others_begin_again() {
        let mut report = Report::new(0, Support { marks_max: 1, range_bytes: 1 << 20 });
        let first = |report: &mut Report| match report.cdb() {
            Cdb::ChangeMarkIn { first_range, .. } => first_range,
            other => panic!("{other:?}"),
        };
        assert_eq!(first(&mut report), 0);
        assert_eq!(report.handle(part(1, true, &[(3, 2)])), None);
        assert_eq!(first(&mut report), 5);
        assert_eq!(report.handle(part(2, false, &[])), None, "it has changed since");
        assert_eq!(first(&mut report), 0);
        assert_eq!(report.handle(part(2, true, &[(3, 2)])), None);
        assert_eq!(first(&mut report), 5);
        let ranges =
            vec![ByteRange { offset: 3 << 20, length: 2 << 20 }, ByteRange { offset: 9 << 20, length: 1 << 20 }];
        assert_eq!(report.handle(part(2, false, &[(9, 1)])), Some(ChangeReport { sequence: 2, ranges }));
    }

    /// A LUN that changes faster than its report can be read, and a report that never ends.
    #[test]
    fn a_report_that_does_not_come_to_an_end_says_that_everything_has_changed() {
        let all = vec![ByteRange { offset: 0, length: u64::from(u32::MAX) << 20 }];
        let last_of = |part_of: &dyn Fn(u64) -> Changes| {
            let mut report = Report::new(0, Support { marks_max: 1, range_bytes: 1 << 20 });
            let part = |asked: u64| {
                report.cdb();
                report.handle(part_of(asked))
            };
            (1..=u64::from(CHANGE_REPORTS_MAX)).map(part).collect::<Vec<_>>()
        };
        let changing = last_of(&|asked| part(asked, true, &[(3, 2)]));
        let endless = last_of(&|asked| part(1, true, &[(2 * asked as u32, 1)]));
        for (reports, sequence) in [(changing, u64::from(CHANGE_REPORTS_MAX)), (endless, 1)] {
            let (last, before) = reports.split_last().unwrap();
            assert!(before.iter().all(Option::is_none));
            assert_eq!(*last, Some(ChangeReport { sequence, ranges: all.clone() }));
        }
    }
}
