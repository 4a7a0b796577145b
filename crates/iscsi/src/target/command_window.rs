//! Command numbering (RFC 7143 4.2.2.1).
//!
//! ```text
//!            delivered │ held until the gap before them closes │ not allowed yet
//!   ... ───────────────┼───────────────────────────────────────┼──────────────── CmdSN
//!                   ExpCmdSN                                MaxCmdSN
//! ```
//!
//! MaxCmdSN never goes back: what an initiator was once allowed stays allowed. It stops while as
//! many commands are under way as the window holds, and goes on as they end.

use std::collections::VecDeque;

use base::serial::Serial32;

/// A window over commands held as `T`.
pub(super) struct CommandWindow<T> {
    exp_cmd_sn: Serial32,
    max_cmd_sn: Serial32,
    size: u32,
    /// `held[i]` has CmdSN `exp_cmd_sn + i`.
    held: VecDeque<Option<T>>,
}

impl<T> CommandWindow<T> {
    /// A window that expects `first` and lets `size` commands be under way.
    pub(super) fn new(first: Serial32, size: u32) -> Self {
        let size = size.max(1);
        Self { exp_cmd_sn: first, max_cmd_sn: first.plus(size - 1), size, held: VecDeque::new() }
    }

    pub(super) fn exp_cmd_sn(&self) -> Serial32 {
        self.exp_cmd_sn
    }

    /// The number behind all that have come.
    pub(super) fn end(&self) -> Serial32 {
        self.exp_cmd_sn.plus(self.held.len() as u32)
    }

    pub(super) fn max_cmd_sn(&self) -> Serial32 {
        self.max_cmd_sn
    }

    /// Whether a command with this number would be accepted: it is inside the window and no
    /// duplicate.
    pub(super) fn admits(&self, cmd_sn: Serial32) -> bool {
        if cmd_sn.is_before(self.exp_cmd_sn) || cmd_sn.is_after(self.max_cmd_sn) {
            return false;
        }
        let index = cmd_sn.distance_from(self.exp_cmd_sn);
        // Two numbers 2^31 apart have no order; neither is inside.
        index < self.size && !self.held.get(index as usize).is_some_and(Option::is_some)
    }

    /// Accepts a command; the caller checked [`CommandWindow::admits`].
    pub(super) fn take(&mut self, cmd_sn: Serial32, command: T) {
        assert!(self.admits(cmd_sn), "only admitted commands are taken");
        let index = cmd_sn.distance_from(self.exp_cmd_sn) as usize;
        if self.held.len() <= index {
            self.held.resize_with(index + 1, || None);
        }
        self.held[index] = Some(command);
    }

    /// The next command whose turn it is.
    pub(super) fn next_in_order(&mut self) -> Option<T> {
        let command = self.held.front_mut()?.take()?;
        self.held.pop_front();
        self.exp_cmd_sn = self.exp_cmd_sn.next();
        Some(command)
    }

    /// The commands that wait for an earlier one, in order.
    pub(super) fn held(&self) -> impl Iterator<Item = &T> {
        self.held.iter().flatten()
    }

    /// Drops held commands that are `is_given_up`: their numbers count as not received, and the
    /// initiator may send them again.
    pub(super) fn give_up(&mut self, is_given_up: impl Fn(&T) -> bool) {
        for slot in &mut self.held {
            if slot.as_ref().is_some_and(&is_given_up) {
                *slot = None;
            }
        }
    }

    /// Whether everything before `cmd_sn` was delivered.
    pub(super) fn has_delivered_up_to(&self, cmd_sn: Serial32) -> bool {
        !self.exp_cmd_sn.is_before(cmd_sn)
    }

    /// Moves MaxCmdSN as far as `under_way` delivered and unfinished commands allow.
    pub(super) fn open(&mut self, under_way: usize) {
        let free = self.size.saturating_sub(u32::try_from(under_way).unwrap_or(u32::MAX));
        let max_cmd_sn = self.exp_cmd_sn.plus(free).minus(1);
        if max_cmd_sn.is_after(self.max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(window: &mut CommandWindow<u32>) -> Vec<u32> {
        std::iter::from_fn(|| window.next_in_order()).collect()
    }

    #[test]
    fn commands_are_delivered_in_order_across_the_wrap() {
        let first = Serial32(u32::MAX - 1);
        let mut window = CommandWindow::new(first, 4);
        for step in [1, 3, 2] {
            window.take(first.plus(step), step);
            assert!(window.next_in_order().is_none());
        }
        assert!(!window.admits(first.plus(1)), "a duplicate");
        assert!(!window.admits(first.plus(4)) && !window.admits(first.minus(1)), "outside");
        window.take(first, 0);
        assert_eq!(drain(&mut window), [0, 1, 2, 3]);
        assert_eq!(window.exp_cmd_sn(), first.plus(4));
    }

    #[test]
    fn the_window_closes_when_full_and_opens_as_commands_end() {
        let mut window = CommandWindow::new(Serial32(1), 2);
        for cmd_sn in 1..=2 {
            window.take(Serial32(cmd_sn), cmd_sn);
            window.next_in_order();
            window.open(cmd_sn as usize);
        }
        assert_eq!((window.exp_cmd_sn(), window.max_cmd_sn()), (Serial32(3), Serial32(2)), "closed");
        assert!(!window.admits(Serial32(3)));
        window.open(1);
        assert!(window.admits(Serial32(3)) && !window.admits(Serial32(4)));
        window.open(2);
        assert_eq!(window.max_cmd_sn(), Serial32(3), "what was allowed stays allowed");
    }

    #[test]
    fn what_is_given_up_may_come_again() {
        let mut window = CommandWindow::new(Serial32(1), 4);
        window.take(Serial32(2), 2);
        window.take(Serial32(3), 3);
        window.give_up(|&held| held == 2);
        assert!(window.admits(Serial32(2)) && !window.admits(Serial32(3)));
        window.take(Serial32(1), 1);
        assert_eq!(drain(&mut window), [1]);
        assert!(window.has_delivered_up_to(Serial32(2)) && !window.has_delivered_up_to(Serial32(3)));
    }

    #[test]
    fn a_number_half_the_space_away_is_outside() {
        let window = CommandWindow::<u32>::new(Serial32(0), 128);
        assert!(!window.admits(Serial32(0x8000_0000)));
    }
}
