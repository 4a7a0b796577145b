//! Numbered messages to one client, kept until the client acknowledges them: what was lost with a
//! connection is sent again on another.

use std::collections::VecDeque;

/// Messages that a client has not acknowledged. The first has the number 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outbox<T> {
    /// The number of the first message in `untaken`.
    first: u64,
    /// Each with its bytes.
    untaken: VecDeque<(T, usize)>,
    bytes: usize,
    /// How many of `untaken` were sent.
    sent: usize,
    /// The largest number that was ever sent.
    sent_last: u64,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self { first: 1, untaken: VecDeque::new(), bytes: 0, sent: 0, sent_last: 0 }
    }
}

impl<T: Clone> Outbox<T> {
    /// Adds a message that takes so many bytes. Returns `false`, without adding it, when there are `max` already.
    pub fn push(&mut self, message: T, bytes: usize, max: usize) -> bool {
        let has_room = self.untaken.len() < max;
        if has_room {
            self.untaken.push_back((message, bytes));
            self.bytes += bytes;
        }
        has_room
    }

    /// The next message to be sent, with its number.
    pub fn poll(&mut self) -> Option<(u64, T)> {
        let (message, _) = self.untaken.get(self.sent)?.clone();
        self.sent += 1;
        let number = self.first + self.sent as u64 - 1;
        self.sent_last = self.sent_last.max(number);
        Some((number, message))
    }

    /// Notes that the client has acknowledged messages up to `number`, at most those that were
    /// sent.
    pub fn taken(&mut self, number: u64) {
        let count = number.saturating_add(1).saturating_sub(self.first);
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.sent);
        self.bytes -= self.untaken.drain(..count).map(|(_, bytes)| bytes).sum::<usize>();
        self.first += count as u64;
        self.sent -= count;
    }

    /// Drops all messages: the client gets none any more.
    pub fn clear(&mut self) {
        self.first += self.untaken.len() as u64;
        (self.bytes, self.sent) = (0, 0);
        self.untaken.clear();
    }

    /// Bytes of the unacknowledged messages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sends all unacknowledged messages again, because a connection is lost.
    pub fn rewind(&mut self) {
        self.sent = 0;
    }

    /// The messages that were never sent: what the client gets after anything that happens now.
    pub fn unsent(&self) -> impl Iterator<Item = &T> {
        let seen = (self.sent_last + 1).saturating_sub(self.first);
        self.untaken.iter().skip(usize::try_from(seen).unwrap_or(usize::MAX)).map(|(message, _)| message)
    }

    /// Count of unacknowledged messages.
    pub fn untaken_count(&self) -> usize {
        self.untaken.len()
    }

    /// Whether there is a message to send.
    pub fn has_more(&self) -> bool {
        self.sent < self.untaken.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_taken_is_sent_again_with_its_number() {
        let mut outbox = Outbox::default();
        assert!(["a", "b", "c"].into_iter().all(|message| outbox.push(message, 10, 3)));
        assert_eq!(outbox.bytes(), 30);
        assert!(!outbox.push("d", 10, 3), "it is full");
        assert_eq!((outbox.poll(), outbox.poll()), (Some((1, "a")), Some((2, "b"))));
        outbox.taken(1);
        outbox.rewind();
        assert!(outbox.push("d", 10, 3), "one was taken");
        assert_eq!((outbox.poll(), outbox.poll()), (Some((2, "b")), Some((3, "c"))));
        outbox.taken(u64::MAX);
        assert_eq!((outbox.untaken_count(), outbox.poll(), outbox.poll()), (1, Some((4, "d")), None));
        outbox.taken(3);
        assert_eq!((outbox.untaken_count(), outbox.has_more()), (1, false), "of what was taken before");
        assert_eq!(outbox.bytes(), 10);
    }

    #[test]
    fn what_was_sent_once_stays_so_whatever_is_lost() {
        let mut outbox = Outbox::default();
        assert!(["a", "b", "c"].into_iter().all(|message| outbox.push(message, 10, 9)));
        assert_eq!(outbox.unsent().count(), 3);
        let _ = (outbox.poll(), outbox.poll());
        outbox.taken(1);
        outbox.rewind();
        assert_eq!(outbox.unsent().collect::<Vec<_>>(), [&"c"]);
        let _ = (outbox.poll(), outbox.poll());
        outbox.rewind();
        outbox.poll();
        assert!(outbox.push("d", 10, 9));
        assert_eq!(outbox.unsent().collect::<Vec<_>>(), [&"d"]);
        outbox.taken(3);
        assert_eq!(outbox.unsent().collect::<Vec<_>>(), [&"d"]);
    }
}
