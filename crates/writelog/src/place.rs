//! Where the bytes of an extent are, in 32 bits, in RAM and in checkpoints alike:
//!
//! | number | means |
//! |---|---|
//! | below 2^31 | that unit of 512 bytes of the segments |
//! | 2^31 and more | that unit of the RAM or NVRAM slots |
//! | the last 2^25 | none: the bytes are zero. The number holds their record, and how they are sent ([`Zeroed`]) |
//!
//! No other file knows these numbers: [`Place::view`] tells the three apart.
use store::Sequence;

use crate::unit::{LogUnit, SlotUnit};

/// Places from here on are slots.
const SLOTS: u32 = 1 << 31;
/// Places from here on are zeroes.
const ZEROES: u32 = u32::MAX << 25;

/// The bits of a record's sequence that a place of zeroes holds: they repeat after 2^23 records,
/// more than a log holds of a sector at a time.
const SEQUENCE_MASK: u32 = 0x7f_ffff;
const MAY_DISCARD: u32 = 1;
const DISCARDED: u32 = 1 << 24;

/// Units of slots that places can name.
pub(crate) const SLOT_UNITS_MAX: u64 = (ZEROES - SLOTS) as u64;

/// Where the first byte of an extent is; the others follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);
const _: () = assert!(size_of::<Place>() == 4, "the map has one for each extent");

/// The three kinds of [`Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceView {
    Segment(LogUnit),
    Slot(SlotUnit),
    Zeroes(Zeroed),
}

/// How the origin is told that bytes are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zeroed {
    /// They read as zero, and stay allocated.
    Kept,
    /// They read as zero, and the origin may give the space back.
    MayDiscard,
    /// The client does not need the bytes: the origin is told so and writes nothing, whatever it
    /// reads as then.
    Discarded,
}

impl Place {
    pub(crate) fn segment(unit: LogUnit) -> Self {
        debug_assert!(unit.0 < u64::from(SLOTS), "no log is so long");
        Self(unit.0 as u32)
    }

    pub(crate) fn slot(unit: SlotUnit) -> Self {
        debug_assert!(unit.0 < SLOT_UNITS_MAX, "there are no more slots than places");
        Self(SLOTS + unit.0 as u32)
    }

    /// The place of bytes that record `sequence` made zero.
    pub(crate) fn zeroes(sequence: Sequence, zeroed: Zeroed) -> Self {
        let how = match zeroed {
            Zeroed::Kept => 0,
            Zeroed::MayDiscard => MAY_DISCARD,
            Zeroed::Discarded => MAY_DISCARD | DISCARDED,
        };
        Self(ZEROES | (sequence.0 as u32 & SEQUENCE_MASK) << 1 | how)
    }

    /// Decodes a place from a checkpoint. In a checkpoint without discards their bit belongs to the
    /// sequence.
    pub(crate) fn decode(number: u32, has_discards: bool) -> Self {
        let is_older = number >= ZEROES && !has_discards;
        Self(if is_older { number & !DISCARDED } else { number })
    }

    /// Encodes a place for a checkpoint.
    pub(crate) fn encode(self) -> u32 {
        self.0
    }

    pub(crate) fn view(self) -> PlaceView {
        match self.0 {
            ZEROES.. => PlaceView::Zeroes(self.zeroed()),
            SLOTS.. => PlaceView::Slot(SlotUnit(u64::from(self.0 - SLOTS))),
            unit => PlaceView::Segment(LogUnit(u64::from(unit))),
        }
    }

    /// How the origin is told, for a place of zeroes.
    fn zeroed(self) -> Zeroed {
        match (self.0 & MAY_DISCARD != 0, self.0 & DISCARDED != 0) {
            (true, true) => Zeroed::Discarded,
            (true, false) => Zeroed::MayDiscard,
            (false, _) => Zeroed::Kept,
        }
    }

    /// The record that made the zeroes of this place; `newest` is the log's last one.
    pub(crate) fn record(self, newest: Sequence) -> Sequence {
        let mask = u64::from(SEQUENCE_MASK);
        let behind = newest.0.wrapping_sub(u64::from(self.0 >> 1)) & mask;
        newest.0.checked_sub(behind).map_or(newest, Sequence)
    }

    /// The place `sectors` further; that of zeroes is the same.
    pub(crate) fn advance(self, sectors: u64) -> Self {
        if self.is_zero() { self } else { Self(self.0 + sectors as u32) }
    }

    /// Whether `next` continues `sectors` sectors that begin here.
    pub(crate) fn is_continued_by(self, sectors: u64, next: Self) -> bool {
        if self.is_zero() {
            return self == next;
        }
        u64::from(self.0) + sectors == u64::from(next.0) && !next.is_zero()
    }

    pub(crate) fn is_in_segment(self) -> bool {
        self.0 < SLOTS
    }

    pub(crate) fn is_in_stage(self) -> bool {
        (SLOTS..ZEROES).contains(&self.0)
    }

    pub(crate) fn is_zero(self) -> bool {
        self.0 >= ZEROES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_say_where_bytes_are_as_they_always_did() {
        assert_eq!(Place::segment(LogUnit(3)).encode(), 3);
        assert_eq!(Place::slot(SlotUnit(3)).encode(), 0x8000_0003);
        assert_eq!(
            Place::zeroes(Sequence(0x80_0005), Zeroed::Kept).encode(),
            0xfe00_000a,
            "the 23 lower bits of the sequence"
        );
        assert_eq!(Place::zeroes(Sequence(5), Zeroed::MayDiscard).encode(), 0xfe00_000b);
        assert_eq!(Place::zeroes(Sequence(5), Zeroed::Discarded).encode(), 0xff00_000b);
        assert_eq!(
            Place::decode(0xff00_000b, false),
            Place::zeroes(Sequence(5), Zeroed::MayDiscard),
            "it knew no discards"
        );
        assert_eq!(Place::decode(0xff00_000b, true), Place::zeroes(Sequence(5), Zeroed::Discarded));
    }

    #[test]
    fn a_place_is_seen_as_what_it_was_made_from() {
        for unit in [0, 7, SLOT_UNITS_MAX - 1] {
            assert_eq!(Place::segment(LogUnit(unit)).view(), PlaceView::Segment(LogUnit(unit)));
            assert_eq!(Place::slot(SlotUnit(unit)).view(), PlaceView::Slot(SlotUnit(unit)));
        }
        assert_eq!(Place::segment(LogUnit(u64::from(SLOTS) - 1)).view(), PlaceView::Segment(LogUnit((1 << 31) - 1)));
        for zeroed in [Zeroed::Kept, Zeroed::MayDiscard, Zeroed::Discarded] {
            assert_eq!(Place::zeroes(Sequence(u64::MAX), zeroed).view(), PlaceView::Zeroes(zeroed));
        }
    }

    #[test]
    fn the_record_that_made_zeroes_is_found_among_the_newest() {
        let newest = (3 << 23) + 5;
        for sequence in [newest, newest - 1, newest - 0x7f_ffff].map(Sequence) {
            assert_eq!(Place::zeroes(sequence, Zeroed::Discarded).record(Sequence(newest)), sequence);
        }
    }
}
