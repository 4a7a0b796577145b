//! One bitmap of sectors for every frame, in as many bytes as the cache's lines need: one for lines of 4 KiB.

use crate::line_size::LineSize;
use crate::numbers::FrameNumber;
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

    pub(crate) fn get(&self, frame: FrameNumber) -> Sectors {
        Sectors::from_bytes(&self.bytes[self.place(frame)])
    }

    pub(crate) fn set(&mut self, frame: FrameNumber, sectors: Sectors) {
        let place = self.place(frame);
        sectors.to_bytes(&mut self.bytes[place]);
    }

    /// Sets the bitmap of a frame to `first` and `rest`, which are as long as one bitmap. Returns
    /// the count of its bits.
    #[inline]
    pub(crate) fn set_bytes(&mut self, frame: FrameNumber, first: u8, rest: &[u8]) -> u32 {
        let place = self.place(frame);
        let bytes = &mut self.bytes[place];
        bytes[0] = first;
        if rest.is_empty() {
            return first.count_ones();
        }
        bytes[1..].copy_from_slice(rest);
        Sectors::from_bytes(bytes).count()
    }

    /// Whether a bit of the frame is set here and not in `other`.
    #[inline]
    pub(crate) fn has_beyond(&self, frame: FrameNumber, other: &Self) -> bool {
        let place = self.place(frame);
        self.bytes[place.clone()].iter().zip(&other.bytes[place]).any(|(byte, other)| byte & !other != 0)
    }

    /// Whether the bitmap of a frame is empty.
    pub(crate) fn is_empty(&self, frame: FrameNumber) -> bool {
        self.bytes[self.place(frame)].iter().all(|&byte| byte == 0)
    }

    /// Frames whose bitmaps are not empty, ascending.
    pub(crate) fn used(&self) -> impl Iterator<Item = FrameNumber> + '_ {
        let frames = (0..).map(FrameNumber).zip(self.bytes.chunks_exact(self.stride));
        frames.filter(|(_, bytes)| bytes.iter().any(|&byte| byte != 0)).map(|(frame, _)| frame)
    }

    fn place(&self, frame: FrameNumber) -> std::ops::Range<usize> {
        let first = frame.index() * self.stride;
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
            bitmaps.set(FrameNumber(1), line_size.all_sectors());
            bitmaps.set(FrameNumber(2), last);
            assert_eq!(
                (bitmaps.get(FrameNumber(0)), bitmaps.get(FrameNumber(1)), bitmaps.get(FrameNumber(2))),
                (Sectors::NONE, line_size.all_sectors(), last)
            );
            assert_eq!(bitmaps.used().collect::<Vec<_>>(), [FrameNumber(1), FrameNumber(2)]);
            let mut others = Bitmaps::new(line_size, 3);
            others.set(FrameNumber(1), last);
            others.set(FrameNumber(2), last);
            assert!(
                bitmaps.has_beyond(FrameNumber(1), &others)
                    && !bitmaps.has_beyond(FrameNumber(2), &others)
                    && !others.has_beyond(FrameNumber(1), &bitmaps)
            );
            let mut bytes = vec![0; line_size.bitmap_bytes()];
            line_size.all_sectors().to_bytes(&mut bytes);
            assert_eq!(others.set_bytes(FrameNumber(0), bytes[0], &bytes[1..]), line_size.sector_count());
            assert_eq!((others.get(FrameNumber(0)), others.get(FrameNumber(1))), (line_size.all_sectors(), last));
            bitmaps.set(FrameNumber(1), Sectors::NONE);
            assert!(bitmaps.is_empty(FrameNumber(1)) && !bitmaps.is_empty(FrameNumber(2)));
        }
    }
}
