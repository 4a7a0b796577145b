//! One bitmap of sectors for every frame, in as many bytes as the cache's lines need: one for lines of 4 KiB.

use crate::line_size::LineSize;
use crate::sectors::Sectors;

/// Bitmaps by frame.
pub(crate) struct Bitmaps {
    /// Bytes of a bitmap.
    stride: usize,
    bytes: Vec<u8>,
}

impl Bitmaps {
    /// Empty bitmaps for lines of this size.
    pub(crate) fn new(line_size: LineSize, frame_count: usize) -> Self {
        let stride = line_size.bitmap_bytes();
        Self { stride, bytes: vec![0; stride * frame_count] }
    }

    pub(crate) fn get(&self, frame: u32) -> Sectors {
        Sectors::from_bytes(&self.bytes[self.place(frame)])
    }

    pub(crate) fn set(&mut self, frame: u32, sectors: Sectors) {
        let place = self.place(frame);
        sectors.to_bytes(&mut self.bytes[place]);
    }

    /// Whether the bitmap of a frame is empty.
    pub(crate) fn is_empty(&self, frame: u32) -> bool {
        self.bytes[self.place(frame)].iter().all(|&byte| byte == 0)
    }

    /// Frames whose bitmaps are not empty, ascending.
    pub(crate) fn used(&self) -> impl Iterator<Item = u32> + '_ {
        let frames = (0u32..).zip(self.bytes.chunks_exact(self.stride));
        frames.filter(|(_, bytes)| bytes.iter().any(|&byte| byte != 0)).map(|(frame, _)| frame)
    }

    fn place(&self, frame: u32) -> std::ops::Range<usize> {
        let first = frame as usize * self.stride;
        first..first + self.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sectors::SectorRun;

    #[test]
    fn a_bitmap_is_that_of_its_frame() {
        for bytes in [4096, 8192, 262_144] {
            let line_size = LineSize::new(bytes).unwrap();
            let mut bitmaps = Bitmaps::new(line_size, 3);
            let last = Sectors::of(SectorRun { first: line_size.sector_count() - 1, count: 1 });
            bitmaps.set(1, line_size.all_sectors());
            bitmaps.set(2, last);
            assert_eq!(
                (bitmaps.get(0), bitmaps.get(1), bitmaps.get(2)),
                (Sectors::NONE, line_size.all_sectors(), last)
            );
            assert_eq!(bitmaps.used().collect::<Vec<_>>(), [1, 2]);
            bitmaps.set(1, Sectors::NONE);
            assert!(bitmaps.is_empty(1) && !bitmaps.is_empty(2));
        }
    }
}
