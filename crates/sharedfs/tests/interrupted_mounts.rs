//! Mounts that are interrupted one after the other, by a kill or by a loss of power: what was
//! durable before the first is there after the last, and nobody has to run `e2fsck`.

#[path = "../../ext2/tests/tools/mod.rs"]
mod tools;

use std::sync::Arc;

use block::layer::crash::CrashLayer;
use block::{ErrorKind, SharedDevice};
use ext2::{Error, InodeNumber, NewNode, Owner};
use sharedfs::Mounted;
use tools::{Tree, assert_same, now, tree_of};

const SIZE: u64 = 2 << 20;
const CACHE_BYTES: u64 = 256 << 10;

/// How a mount ends before it is one.
#[derive(Clone, Copy, Debug)]
enum Interruption {
    /// The power fails at this write, from 0.
    Power(u64),
    /// The program is killed before this write.
    Write(u64),
    /// The program is killed before this flush.
    Flush(u64),
}

/// More writes and flushes than a mount here has.
const WRITES_MAX: u64 = 24;
const FLUSHES_MAX: u64 = 6;

fn mount(layer: &CrashLayer) -> Result<Mounted, Error> {
    let device: SharedDevice = Arc::new(layer.clone());
    now(sharedfs::open(device, tools::options(false), CACHE_BYTES, None))
}

/// What is left of a mount that is interrupted; `None` when it was done before.
fn interrupted(layer: &CrashLayer, how: Interruption) -> Option<CrashLayer> {
    match how {
        Interruption::Power(nth) => layer.power().fail_write(layer.power().writes_seen() + nth),
        Interruption::Write(nth) => layer.fail_writes_from(layer.writes_seen() + nth, ErrorKind::Gone),
        Interruption::Flush(nth) => layer.fail_flush_once(layer.flushes_seen() + nth, ErrorKind::Gone),
    }
    if mount(layer).is_ok() {
        return None;
    }
    layer.heal();
    match how {
        Interruption::Power(_) => Some(layer.after_power_loss()),
        Interruption::Write(_) | Interruption::Flush(_) => Some(layer.clone()),
    }
}

/// A file system that was committed to and not ended: what it has, and what is left of it.
fn left_by_a_crash(seed: u64) -> (Tree, CrashLayer) {
    let layer = CrashLayer::new(SIZE, seed);
    let device: SharedDevice = Arc::new(layer.clone());
    now(ext2::make(&device, &tools::make_options())).unwrap();
    let first = mount(&layer).unwrap();
    now(first.create(InodeNumber::ROOT, b"acknowledged", NewNode::File, Owner::default())).unwrap();
    now(first.commit()).unwrap();
    let tree = tree_of(&first);
    layer.power().lose();
    (tree, layer.after_power_loss())
}

/// Each interruption that a mount of `layer` can have; those of the last writes and flushes alone
/// when `only_last`.
fn interruptions(layer: impl Fn() -> CrashLayer, only_last: bool) -> Vec<Interruption> {
    let of = |kind: fn(u64) -> Interruption, most: u64| {
        let all: Vec<_> = (0..most).map(kind).take_while(|how| interrupted(&layer(), *how).is_some()).collect();
        assert!(all.len() < most as usize, "a mount has more than {most}");
        let skipped = if only_last { all.len().saturating_sub(3) } else { 0 };
        all.into_iter().skip(skipped)
    };
    let power = of(Interruption::Power, WRITES_MAX);
    power.chain(of(Interruption::Write, WRITES_MAX)).chain(of(Interruption::Flush, FLUSHES_MAX)).collect()
}

/// The layer after a crash and these interruptions; `None` when there is a mount before the last.
fn after(seed: u64, interruptions: &[Interruption]) -> (Tree, Option<CrashLayer>) {
    let (tree, layer) = left_by_a_crash(seed);
    (tree, interruptions.iter().try_fold(layer, |layer, how| interrupted(&layer, *how)))
}

fn check(seed: u64, row: &[Interruption]) {
    let (tree, Some(layer)) = after(seed, row) else { return };
    layer.power().lose();
    let layer = layer.after_power_loss();
    match mount(&layer) {
        Ok(mounted) => assert_same(&tree_of(&mounted), &tree, &format!("seed {seed}, {row:?}")),
        Err(error) => panic!("seed {seed}, {row:?}: {error}"),
    }
}

#[test]
fn two_mounts_that_are_interrupted_one_after_the_other_lose_nothing() {
    let seed = 1;
    for one in interruptions(|| left_by_a_crash(seed).1, false) {
        let after_one = || after(seed, &[one]).1.expect("it is interrupted");
        for two in interruptions(after_one, false) {
            check(seed, &[one, two]);
        }
    }
}

/// Most of a mount is what the one before did as well: only the end of each is new.
#[test]
fn three_mounts_that_are_interrupted_one_after_the_other_lose_nothing() {
    let seed = 2;
    for one in interruptions(|| left_by_a_crash(seed).1, true) {
        for two in interruptions(|| after(seed, &[one]).1.expect("it is interrupted"), true) {
            for three in interruptions(|| after(seed, &[one, two]).1.expect("it is interrupted"), true) {
                check(seed, &[one, two, three]);
            }
        }
    }
}
