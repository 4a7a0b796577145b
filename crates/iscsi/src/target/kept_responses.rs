//! The responses of a connection that are kept until the initiator has acknowledged them (error recovery levels 1 and
//! 2), so that a status SNACK gets them again (RFC 7143 11.16).
//!
//! What they carry (echoes of pings, texts, rejected headers) counts in what the session keeps, beside the data of its
//! answers. When that is too much, or an initiator acknowledges nothing for long, the oldest lose what they carry, and
//! a SNACK for one of these is rejected.

use std::collections::VecDeque;
use std::sync::Arc;

use base::clock::Instant;
use base::serial::Serial32;

use super::retained_share::RetainedShare;
use crate::limits::{
    RESPONSE_BYTES_HIGH, RETAINED_ALWAYS_BYTES, RETENTION_MAX, STALL_CHECK_INTERVAL, UNACKNOWLEDGED_RESPONSES_MAX,
};
use crate::pdu::{BHS_BYTES, InitiatorTaskTag, RawBhs};

/// Looks at a response after which its time is over: it was kept for [`RETENTION_MAX`], or a part of an interval less.
const LOOKS_MAX: u8 = (RETENTION_MAX.as_secs() / STALL_CHECK_INTERVAL.as_secs()) as u8;

/// Places of a queue that are not given back.
const PLACES_MIN: usize = 16;

// Without what they carry, the responses of a session have a place within what it always may keep, also while their
// queues have four times the places that they need.
const _: () = assert!(
    UNACKNOWLEDGED_RESPONSES_MAX * (4 * size_of::<Response>() + BHS_BYTES) <= RETAINED_ALWAYS_BYTES / 2,
    "what cannot be forgotten has room"
);

/// A response that was sent and is kept.
#[derive(Clone)]
pub(super) enum Sent {
    /// The PDU, with its data.
    Pdu(Box<RawBhs>, Vec<u8>),
    /// The response of a task, made again from its answer.
    Task(InitiatorTaskTag),
    /// What it carried was too much to keep.
    Forgotten,
}

impl Sent {
    /// Bytes it keeps in memory beside its place in the queue.
    fn bytes(&self) -> usize {
        match self {
            Self::Pdu(_, data) => BHS_BYTES + data.capacity(),
            Self::Task(_) | Self::Forgotten => 0,
        }
    }

    /// Whether it carries something. A header alone is never forgotten: that would save little.
    fn is_heavy(&self) -> bool {
        matches!(self, Self::Pdu(_, data) if !data.is_empty())
    }
}

struct Response {
    stat_sn: Serial32,
    sent: Sent,
    /// Looks at it so far.
    looks: u8,
}

/// The responses of a connection, in the order of their numbers.
#[derive(Default)]
pub(super) struct KeptResponses {
    /// `None` at error recovery level 0, where none is kept.
    share: Option<Arc<RetainedShare>>,
    queue: VecDeque<Response>,
    /// Bytes of memory of all that is in the queue, without the queue's own.
    sent_bytes: usize,
    /// Bytes and responses that the share has been told of.
    told: (usize, usize),
    /// When to look for those whose time is over; `None` while there can be none.
    look: Option<Instant>,
}

impl KeptResponses {
    /// Those of a connection whose session keeps them.
    pub(super) fn new(share: Arc<RetainedShare>) -> Self {
        Self { share: Some(share), queue: VecDeque::new(), sent_bytes: 0, told: (0, 0), look: None }
    }

    /// Keeps a response, if its session keeps any. `now` may be a little early.
    pub(super) fn push(&mut self, now: Instant, stat_sn: Serial32, raw: &RawBhs, data: &[u8]) {
        if self.share.is_some() {
            self.push_sent(now, stat_sn, Sent::Pdu(Box::new(*raw), data.to_vec()));
        }
    }

    /// Keeps the response of a task.
    pub(super) fn push_task(&mut self, now: Instant, stat_sn: Serial32, tag: InitiatorTaskTag) {
        self.push_sent(now, stat_sn, Sent::Task(tag));
    }

    fn push_sent(&mut self, now: Instant, stat_sn: Serial32, sent: Sent) {
        self.sent_bytes += sent.bytes();
        self.queue.push_back(Response { stat_sn, sent, looks: 0 });
        self.look.get_or_insert(now + STALL_CHECK_INTERVAL);
        self.settle();
    }

    /// Forgets what is too much to keep, and tells the share the rest.
    fn settle(&mut self) {
        let Some(share) = self.share.as_deref() else { return };
        while !share.has_room_for(bytes_of(&self.queue, self.sent_bytes), self.told.0) {
            let Some(oldest) = self.queue.iter_mut().find(|response| response.sent.is_heavy()) else { break };
            self.sent_bytes -= std::mem::replace(&mut oldest.sent, Sent::Forgotten).bytes();
        }
        let now = (bytes_of(&self.queue, self.sent_bytes), self.queue.len());
        let told = std::mem::replace(&mut self.told, now);
        share.tell(told.0, now.0);
        share.tell_responses(told.1, now.1);
    }

    /// Drops those before `exp_stat_sn`. Returns the tasks among them.
    pub(super) fn acknowledge(&mut self, exp_stat_sn: Serial32) -> Vec<(InitiatorTaskTag, Serial32)> {
        let mut tasks = Vec::new();
        while let Some(response) = self.queue.pop_front_if(|response| response.stat_sn.is_before(exp_stat_sn)) {
            self.sent_bytes -= response.sent.bytes();
            if let Sent::Task(tag) = response.sent {
                tasks.push((tag, response.stat_sn));
            }
        }
        let places = self.queue.len().max(PLACES_MIN);
        if self.queue.capacity() > 4 * places {
            self.queue.shrink_to(2 * places);
        }
        self.settle();
        tasks
    }

    /// Those from `first` to before `end`, to be sent again; `None` when one of them is forgotten, or they are more
    /// than may wait to be sent.
    pub(super) fn again(&self, first: Serial32, end: Serial32) -> Option<Vec<(Serial32, Sent)>> {
        let is_asked = |response: &&Response| !response.stat_sn.is_before(first) && response.stat_sn.is_before(end);
        let asked = || self.queue.iter().filter(is_asked);
        let is_forgotten = asked().any(|response| matches!(response.sent, Sent::Forgotten));
        let bytes: usize = asked().map(|response| response.sent.bytes()).sum();
        let is_too_much = bytes > RESPONSE_BYTES_HIGH && asked().nth(1).is_some();
        (!is_forgotten && !is_too_much)
            .then(|| asked().map(|response| (response.stat_sn, response.sent.clone())).collect())
    }

    /// Drops all of them.
    pub(super) fn clear(&mut self) {
        self.queue = VecDeque::new();
        self.sent_bytes = 0;
        self.look = None;
        self.settle();
    }

    /// Whether the initiator acknowledges so little that it must be cut off.
    pub(super) fn are_too_many(&self) -> bool {
        self.share.as_ref().is_some_and(|share| share.responses() > UNACKNOWLEDGED_RESPONSES_MAX)
    }

    /// When [`forget_overdue`](Self::forget_overdue) is to be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.look
    }

    /// Forgets what those carry whose time is over. Returns the tasks among them, whose answers have the data.
    pub(super) fn forget_overdue(&mut self, now: Instant) -> Vec<(InitiatorTaskTag, Serial32)> {
        if self.look.is_none_or(|look| now < look) {
            return Vec::new();
        }
        self.look = (!self.queue.is_empty()).then(|| now + STALL_CHECK_INTERVAL);
        let mut tasks = Vec::new();
        for response in &mut self.queue {
            response.looks = response.looks.saturating_add(1);
            match response.sent {
                _ if response.looks < LOOKS_MAX => {}
                Sent::Task(tag) if response.looks == LOOKS_MAX => tasks.push((tag, response.stat_sn)),
                Sent::Pdu(..) if response.sent.is_heavy() => {
                    self.sent_bytes -= std::mem::replace(&mut response.sent, Sent::Forgotten).bytes();
                }
                _ => {}
            }
        }
        self.settle();
        tasks
    }
}

impl Drop for KeptResponses {
    /// Leaves its room to others.
    fn drop(&mut self) {
        self.clear();
    }
}

fn bytes_of(queue: &VecDeque<Response>, sent_bytes: usize) -> usize {
    queue.capacity() * size_of::<Response>() + sent_bytes
}
