//! Numbered messages to one client, kept until the client acknowledges them: what was lost with a
//! connection is sent again on another. A client that comes by several paths gets every message on
//! each of them, in order, and takes it from the first that brings it.

use std::collections::VecDeque;

/// Messages that a client has not acknowledged. The first has the number 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outbox<T> {
    /// The number of the first message in `untaken`.
    first: u64,
    /// Each with its bytes.
    untaken: VecDeque<(T, usize)>,
    bytes: usize,
    /// The largest number that was ever sent.
    sent_last: u64,
}

/// How far one path has got: the number of the message that it gets next. A new one begins with the
/// first message that is not acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reader(u64);

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self { first: 1, untaken: VecDeque::new(), bytes: 0, sent_last: 0 }
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

    /// The next message to be sent on the path of `reader`, with its number.
    pub fn poll(&mut self, reader: &mut Reader) -> Option<(u64, T)> {
        let number = reader.0.max(self.first);
        let (message, _) = self.untaken.get(usize::try_from(number - self.first).ok()?)?.clone();
        reader.0 = number + 1;
        self.sent_last = self.sent_last.max(number);
        Some((number, message))
    }

    /// Notes that the client has acknowledged messages up to `number`, at most those that were
    /// sent.
    pub fn taken(&mut self, number: u64) {
        let count = (number.min(self.sent_last) + 1).saturating_sub(self.first);
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.untaken.len());
        self.bytes -= self.untaken.drain(..count).map(|(_, bytes)| bytes).sum::<usize>();
        self.first += count as u64;
    }

    /// Drops all messages: the client gets none any more.
    pub fn clear(&mut self) {
        self.first += self.untaken.len() as u64;
        self.bytes = 0;
        self.untaken.clear();
    }

    /// Bytes of the unacknowledged messages.
    pub fn bytes(&self) -> usize {
        self.bytes
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_taken_is_sent_again_with_its_number() {
        let (mut outbox, mut reader) = (Outbox::default(), Reader::default());
        assert!(["a", "b", "c"].into_iter().all(|message| outbox.push(message, 10, 3)));
        assert_eq!(outbox.bytes(), 30);
        assert!(!outbox.push("d", 10, 3), "it is full");
        assert_eq!((outbox.poll(&mut reader), outbox.poll(&mut reader)), (Some((1, "a")), Some((2, "b"))));
        outbox.taken(1);
        reader = Reader::default();
        assert!(outbox.push("d", 10, 3), "one was taken");
        assert_eq!((outbox.poll(&mut reader), outbox.poll(&mut reader)), (Some((2, "b")), Some((3, "c"))));
        outbox.taken(u64::MAX);
        assert_eq!(outbox.untaken_count(), 1, "one was never sent");
        assert_eq!((outbox.poll(&mut reader), outbox.poll(&mut reader)), (Some((4, "d")), None));
        outbox.taken(3);
        assert_eq!(outbox.untaken_count(), 1, "of what was taken before");
        assert_eq!(outbox.bytes(), 10);
    }

    #[test]
    fn each_path_gets_every_message_that_was_not_taken_before_its_turn() {
        let (mut outbox, mut one, mut two) = (Outbox::default(), Reader::default(), Reader::default());
        assert!(["a", "b", "c"].into_iter().all(|message| outbox.push(message, 10, 9)));
        assert_eq!((outbox.poll(&mut one), outbox.poll(&mut one)), (Some((1, "a")), Some((2, "b"))));
        assert_eq!(outbox.poll(&mut two), Some((1, "a")));
        outbox.taken(2);
        assert_eq!((outbox.poll(&mut two), outbox.poll(&mut two)), (Some((3, "c")), None), "two was taken meanwhile");
        assert_eq!((outbox.poll(&mut one), outbox.poll(&mut one)), (Some((3, "c")), None));
    }

    #[test]
    fn what_was_sent_once_stays_so_whatever_is_lost() {
        let (mut outbox, mut reader) = (Outbox::default(), Reader::default());
        assert!(["a", "b", "c"].into_iter().all(|message| outbox.push(message, 10, 9)));
        assert_eq!(outbox.unsent().count(), 3);
        let _ = (outbox.poll(&mut reader), outbox.poll(&mut reader));
        outbox.taken(1);
        assert_eq!(outbox.unsent().collect::<Vec<_>>(), [&"c"]);
        reader = Reader::default();
        let _ = (outbox.poll(&mut reader), outbox.poll(&mut reader));
        reader = Reader::default();
        outbox.poll(&mut reader);
        assert!(outbox.push("d", 10, 9));
        assert_eq!(outbox.unsent().collect::<Vec<_>>(), [&"d"]);
        outbox.taken(3);
        assert_eq!(outbox.unsent().collect::<Vec<_>>(), [&"d"]);
    }
}
