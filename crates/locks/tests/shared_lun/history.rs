//! The operations and their answers, and whether one disk could have given these.
//!
//! Each block is a register: a read returns the value of the last write before it, in an order of
//! all operations in which each takes effect at one moment between its beginning and its end. Every
//! write has a value of its own, so that *zones* (Gibbons and Korach, 1997) decide whether there is
//! such an order. The zone of a value spans its write and the reads that returned it: from the
//! first end to the last beginning. There is no order if and only if
//! - a read ends before the write of its value begins, or
//! - two values must both be current at one time: their zones go forward (first end before last
//!   beginning) and overlap, or
//! - a value comes and goes while another must be current: a zone that goes backward lies within
//!   one that goes forward.
//!
//! A write with an unknown outcome has taken effect or not. If it has, then before its bound, after
//! which it takes no effect any more.

use std::collections::BTreeMap;

/// The content of a block. Zero is the initial content.
pub type Value = u64;

/// The end of an operation that has none.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationId(usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is under way.
    Open,
    Answered(u64),
    /// Its outcome is unknown, and it takes no effect after this bound.
    Bounded(u64),
    /// It never took effect, or its result is not used.
    Void,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operation {
    block: u64,
    is_write: bool,
    value: Option<Value>,
    began: u64,
    end: End,
    /// Commands that carry it and may still take effect.
    commands: u32,
    /// Whether no host waits for its answer any more.
    is_given_up: bool,
}

/// All operations, in the order in which they began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    operations: Vec<Operation>,
    moment: u64,
    value_last: Value,
}

/// The zone of a value: its write, and the reads that returned it.
#[derive(Clone, Copy, Debug)]
struct Zone {
    value: Value,
    first_end: u64,
    last_beginning: u64,
}

impl Zone {
    fn is_forward(&self) -> bool {
        self.first_end < self.last_beginning
    }
}

impl History {
    fn next_moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn begin(&mut self, block: u64, is_write: bool, value: Option<Value>) -> OperationId {
        let began = self.next_moment();
        self.operations.push(Operation {
            block,
            is_write,
            value,
            began,
            end: End::Open,
            commands: 0,
            is_given_up: false,
        });
        OperationId(self.operations.len() - 1)
    }

    pub fn begin_read(&mut self, block: u64) -> OperationId {
        self.begin(block, false, None)
    }

    /// Begins a write. Returns also the value to write, which no other write has.
    pub fn begin_write(&mut self, block: u64) -> (OperationId, Value) {
        self.value_last += 1;
        (self.begin(block, true, Some(self.value_last)), self.value_last)
    }

    /// Notes the value that a read returned.
    pub fn read(&mut self, id: OperationId, value: Value) {
        let now = self.next_moment();
        let operation = &mut self.operations[id.0];
        if operation.end == End::Open {
            *operation = Operation { value: Some(value), end: End::Answered(now), ..*operation };
        }
    }

    /// Notes that a write was answered.
    pub fn written(&mut self, id: OperationId) {
        let now = self.next_moment();
        self.end(id, End::Answered(now));
    }

    /// Notes that a command was sent that carries a write.
    pub fn send(&mut self, id: OperationId) {
        self.operations[id.0].commands += 1;
    }

    /// Notes that a command that carried a write takes no effect any more.
    pub fn end_command(&mut self, id: OperationId) {
        self.operations[id.0].commands -= 1;
        self.bound(id);
    }

    /// Notes that no host will send a write again, or learn its outcome.
    pub fn give_up(&mut self, id: OperationId) {
        self.operations[id.0].is_given_up = true;
        self.bound(id);
    }

    /// Bounds a write that was given up: from now on it takes no effect.
    fn bound(&mut self, id: OperationId) {
        if self.operations[id.0].is_given_up && self.operations[id.0].commands == 0 {
            let now = self.next_moment();
            self.end(id, End::Bounded(now));
        }
    }

    /// Excludes an operation: a write that was never sent, a read whose reader lost the result.
    pub fn void(&mut self, id: OperationId) {
        self.operations[id.0].end = End::Void;
    }

    fn end(&mut self, id: OperationId, end: End) {
        let operation = &mut self.operations[id.0];
        if operation.end == End::Open {
            operation.end = end;
        }
    }

    pub fn answered_count(&self) -> usize {
        self.operations.iter().filter(|operation| matches!(operation.end, End::Answered(_))).count()
    }

    /// # Errors
    /// A description of what no disk would do.
    pub fn check(&self) -> Result<(), String> {
        let mut by_block = BTreeMap::<u64, Vec<Operation>>::new();
        for operation in &self.operations {
            by_block.entry(operation.block).or_default().push(*operation);
        }
        by_block.into_iter().try_for_each(|(block, operations)| {
            check_block(&operations).map_err(|wrong| format!("history of block {block}: {wrong}"))
        })
    }
}

fn check_block(operations: &[Operation]) -> Result<(), String> {
    let zones = zones_of(operations)?;
    let mut forward: Vec<Zone> = zones.iter().copied().filter(Zone::is_forward).collect();
    forward.sort_by_key(|zone| zone.first_end);
    for pair in forward.windows(2) {
        if pair[1].first_end < pair[0].last_beginning {
            return Err(format!(
                "{} is read after {}, which was read or written after it",
                pair[0].value, pair[1].value
            ));
        }
    }
    for zone in zones.iter().filter(|zone| !zone.is_forward()) {
        let within = |around: &&Zone| around.first_end < zone.last_beginning && zone.first_end < around.last_beginning;
        if let Some(around) = forward.iter().find(within) {
            return Err(format!("{} is read though {} came after it and before", around.value, zone.value));
        }
    }
    Ok(())
}

fn zones_of(operations: &[Operation]) -> Result<Vec<Zone>, String> {
    let mut zones = BTreeMap::from([(0, Zone { value: 0, first_end: 0, last_beginning: 0 })]);
    let mut began = BTreeMap::from([(0, 0)]);
    let reads =
        || operations.iter().filter(|operation| !operation.is_write && matches!(operation.end, End::Answered(_)));
    for write in operations.iter().filter(|operation| operation.is_write && operation.end != End::Void) {
        let first_end = match write.end {
            End::Answered(end) | End::Bounded(end) => end,
            End::Open | End::Void => NEVER,
        };
        let value = write.value.expect("a write has one");
        // A write that may not have happened, and that no read saw, counts as not happened.
        if matches!(write.end, End::Answered(_)) || reads().any(|read| read.value == Some(value)) {
            zones.insert(value, Zone { value, first_end, last_beginning: write.began });
            began.insert(value, write.began);
        }
    }
    for read in reads() {
        let (Some(value), End::Answered(end)) = (read.value, read.end) else { continue };
        let Some(zone) = zones.get_mut(&value) else { return Err(format!("{value} is read and was never written")) };
        if end < began[&value] {
            return Err(format!("{value} is read before it is written"));
        }
        zone.first_end = zone.first_end.min(end);
        zone.last_beginning = zone.last_beginning.max(read.began);
    }
    Ok(zones.into_values().collect())
}

#[cfg(test)]
mod tests {
    use base::random::Random;

    use super::*;

    /// Tries all orders.
    fn has_order(left: &[Operation], now: Value) -> bool {
        let must = |operation: &&Operation| matches!(operation.end, End::Answered(_));
        let end = |operation: &Operation| match operation.end {
            End::Answered(end) | End::Bounded(end) => end,
            End::Open | End::Void => NEVER,
        };
        if !left.iter().any(|operation| must(&operation)) {
            return true;
        }
        (0..left.len()).any(|index| {
            let operation = left[index];
            // An operation without an answer may never take effect, and no other waits for it.
            let is_first =
                left.iter().filter(must).all(|other| operation.began < end(other)) && operation.began < end(&operation);
            let mut rest = left.to_vec();
            rest.remove(index);
            // Its bound has passed when an operation that began later has taken effect.
            rest.retain(|other| must(&other) || end(other) > operation.began);
            is_first
                && (operation.is_write || operation.value == Some(now))
                && has_order(&rest, if operation.is_write { operation.value.unwrap() } else { now })
        })
    }

    fn draw(random: &mut Random) -> Vec<Operation> {
        let mut history = History::default();
        let mut open = Vec::new();
        for _ in 0..14 {
            if random.chance(0.5) && history.operations.len() < 6 {
                let is_write = random.chance(0.5);
                open.push(if is_write { history.begin_write(0).0 } else { history.begin_read(0) });
            } else if !open.is_empty() {
                let id = open.remove(random.below(open.len() as u64) as usize);
                match history.operations[id.0].is_write {
                    true if random.chance(0.2) => history.give_up(id),
                    true => history.written(id),
                    false => {
                        let value = random.below(history.value_last + 1);
                        history.read(id, value);
                    }
                }
            }
        }
        history.operations
    }

    #[test]
    fn zones_find_what_trying_all_orders_finds() {
        let (mut random, mut good, mut bad) = (Random::new(1), 0, 0);
        for _ in 0..20_000 {
            let operations = draw(&mut random);
            let finished: Vec<Operation> = operations
                .iter()
                .copied()
                .filter(|operation| operation.is_write || operation.end != End::Open)
                .collect();
            let expected = has_order(&finished, 0);
            assert_eq!(check_block(&operations).is_ok(), expected, "{operations:#?}");
            *(if expected { &mut good } else { &mut bad }) += 1;
        }
        assert!(good > 2000 && bad > 2000, "{good} good, {bad} bad");
    }
}
