//! Points in time as inodes store them.

/// Seconds since 1970, and nanoseconds after that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds. Inodes of 128 bytes hold 1901 to 2038, larger ones 1901 to 2446; other times
    /// are stored as the nearest that fits.
    pub seconds: i64,
    /// Below 1,000,000,000. Inodes of 128 bytes do not hold them.
    pub nanoseconds: u32,
}

const NANOSECONDS_MAX: u32 = 999_999_999;

/// Range of the two extra bits: four times 2^32 seconds, from the smallest number of 32 bits on.
const SECONDS_MIN: i64 = i32::MIN as i64;
const SECONDS_MAX: i64 = SECONDS_MIN + (4 << 32) - 1;

impl Timestamp {
    /// From the 32 bits of every inode, and the extra ones of larger inodes.
    pub(crate) fn from_raw(low: u32, extra: Option<u32>) -> Self {
        let seconds = i64::from(low as i32);
        match extra {
            None => Self { seconds, nanoseconds: 0 },
            Some(extra) => {
                Self { seconds: seconds + (i64::from(extra & 3) << 32), nanoseconds: (extra >> 2).min(NANOSECONDS_MAX) }
            }
        }
    }

    /// The 32 bits of every inode, where there are no extra ones.
    pub(crate) fn to_low(self) -> u32 {
        self.seconds.clamp(SECONDS_MIN, i64::from(i32::MAX)) as i32 as u32
    }

    /// The 32 bits of every inode, and the extra ones.
    pub(crate) fn to_raw(self) -> (u32, u32) {
        let seconds = self.seconds.clamp(SECONDS_MIN, SECONDS_MAX);
        let low = seconds as u32;
        let epoch = (seconds - i64::from(low as i32)) >> 32;
        (low, (self.nanoseconds.min(NANOSECONDS_MAX) << 2) | (epoch as u32 & 3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_stored_as_the_format_says() {
        let time = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
        for (time, low, extra) in [
            (time(0, 0), 0, 0),
            (time(-1, 5), u32::MAX, 20),
            (time(0x7fff_ffff, 0), 0x7fff_ffff, 0),
            (time(0x8000_0000, 0), 0x8000_0000, 1),
            (time(0x1_8000_0000, 1), 0x8000_0000, 2 | 4),
            (time(i64::MAX, 0), 0x7fff_ffff, 3),
        ] {
            assert_eq!(time.to_raw(), (low, extra), "{time:?}");
        }
        assert_eq!(time(0x8000_0000, 7).to_low(), 0x7fff_ffff);
        assert_eq!(time(-9, 7).to_low() as i32, -9);
    }

    proptest! {
        #[test]
        fn what_fits_is_read_back(seconds in SECONDS_MIN..=SECONDS_MAX, nanoseconds in 0..=NANOSECONDS_MAX) {
            let time = Timestamp { seconds, nanoseconds };
            let (low, extra) = time.to_raw();
            prop_assert_eq!(Timestamp::from_raw(low, Some(extra)), time);
        }
    }
}
