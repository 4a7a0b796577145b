//! The parameters with which the stores of a stack are made.

use base::random::Random;
use cache::{Alignment, Associativity, CrashMode, LineSize};
use difference::DifferenceOptions;
use uuid::Uuid;

use crate::lun::Lun;

/// The place of a write log's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// No slots: writes are acknowledged from records.
    None,
    /// In persistent memory.
    Nvram,
    /// In RAM, which loses data that was not flushed.
    Volatile,
}

/// The parameters of a stack's stores. They are the same in all lives.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Lines of the cache.
    pub line_size: LineSize,
    /// Sets of the cache.
    pub associativity: Associativity,
    /// Frames of the cache. Few make writes wait for them; many make a table page long enough to
    /// tear.
    pub frames: u64,
    /// Where lines begin, in bytes.
    pub lines_at: u64,
    /// Bytes of the cache's log. A record may take a quarter of it.
    pub cache_log_bytes: u64,
    /// Whether whole lines have checksums.
    pub has_checksums: bool,
    /// Whether the cache is lost in a crash, so that it never has dirty data.
    pub is_forgetful: bool,
    /// The slots of the log.
    pub slots: Slots,
    /// Bytes from the start of the LUN that only other hosts write to.
    pub others_bytes: u64,
}

impl Made {
    /// Draws any parameters, for lines of this size.
    pub fn draw(line_size: LineSize, lun: Lun, random: &mut Random) -> Self {
        let one_of = |random: &mut Random, count: usize| random.below(count as u64) as usize;
        let is_small = line_size == LineSize::default();
        // From a copy, so that everything else drawn from a seed stays as it was.
        let cache_log_bytes = [16 << 10, 48 << 10][one_of(&mut random.clone(), 2)];
        Self {
            line_size,
            cache_log_bytes,
            associativity: [Associativity::Full, Associativity::Ways(4), Associativity::Ways(16)][one_of(random, 3)],
            frames: if random.chance(0.7) { 20 + random.below(20) } else { 160 },
            lines_at: if random.chance(0.5) && lun.block_bytes == 512 { random.below(8) * 512 } else { 0 },
            has_checksums: is_small && random.chance(0.3),
            is_forgetful: random.chance(0.1),
            slots: [Slots::None, Slots::None, Slots::Nvram, Slots::Volatile][one_of(random, 4)],
            // The part ends in the middle of a line.
            others_bytes: if random.chance(0.4) { 4096 + u64::from(lun.block_bytes) * random.below(20) } else { 0 },
        }
    }

    /// Bytes of a line, where larger lines need a larger LUN; see `Lun::geometry`.
    pub(crate) fn line_bytes(&self) -> u64 {
        self.line_size.bytes()
    }

    /// The first cache has number 0; its successors have other lines and sets.
    pub(crate) fn cache_options(&self, number: u8) -> cache::FormatOptions {
        let other_ways = [Associativity::Ways(6), Associativity::Full][usize::from(number) % 2];
        let other_line_bytes = [4 << 10, 4 << 10, 32 << 10][usize::from(number) % 3];
        let other_line_size = LineSize::new(other_line_bytes).expect("lines have this size");
        let line_size = if number == 0 { self.line_size } else { other_line_size };
        cache::FormatOptions {
            line_size,
            associativity: if number == 0 { self.associativity } else { other_ways },
            log_bytes: Some(self.cache_log_bytes),
            frames_max: Some(if number == 0 { self.frames } else { 20 + u64::from(number) * 7 % 30 }),
            uuid: Some(Uuid::from_bytes([number; 16])),
            crash_mode: if self.is_forgetful { CrashMode::DiscardAll } else { CrashMode::default() },
            alignment: Alignment::At(self.lines_at),
            has_checksums: self.has_checksums && line_size == LineSize::default(),
        }
    }

    /// Small segments, so that they are used again often.
    pub(crate) fn log_options(number: u8) -> writelog::FormatOptions {
        writelog::FormatOptions { uuid: Some(Uuid::from_bytes([number; 16])), ..writelog::FormatOptions::paper() }
    }

    pub(crate) fn difference_options() -> DifferenceOptions {
        DifferenceOptions { chunk_bytes: 4096, ..DifferenceOptions::new(Uuid::from_bytes([9; 16])) }
    }
}
