//! Sizes as people write them.

use std::fmt;
use std::str::FromStr;

/// A count of bytes that reads and prints like `64KiB`. KiB, MiB, GiB, TiB are powers of two; KB, MB, GB, TB powers of
/// ten; a bare number is bytes, and says so with `{:#}`, in a sentence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// The error for a text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a size: write a number and a unit, like 512, 64KiB or 10GiB")]
pub struct ParseSizeError(String);

const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let error = || ParseSizeError(text.to_owned());
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let unit = unit.trim();
        let factor = if unit.is_empty() {
            1
        } else {
            let is_unit = |name: &str| name.eq_ignore_ascii_case(unit) || short_form(name).eq_ignore_ascii_case(unit);
            UNITS.iter().find(|(name, _)| is_unit(name)).map(|(_, factor)| *factor).ok_or_else(error)?
        };
        parse_scaled(number, factor).map(Self).ok_or_else(error)
    }
}

/// The short form of a unit: `GiB` may be written `G`, as for fio, qemu and truncate.
fn short_form(name: &str) -> &str {
    if name.ends_with("iB") { &name[..1] } else { name }
}

/// `number * factor`, exactly; a fraction must come out as whole bytes.
fn parse_scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 9 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let scale = 10u128.pow(fraction.len() as u32);
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let scaled = (u128::from(whole) * scale + fraction) * u128::from(factor);
    scaled.is_multiple_of(scale).then(|| u64::try_from(scaled / scale).ok()).flatten()
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        let unit = UNITS.iter().take(4).find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor));
        match unit {
            Some((name, factor)) => f.pad(&format!("{}{name}", bytes / factor)),
            None if f.alternate() => f.pad(&format!("{bytes} bytes")),
            None => f.pad(&format!("{bytes}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("4KiB", 4096),
            ("4k", 4096),
            ("1.5GiB", 3 << 29),
            ("10 GiB", 10 << 30),
            ("20MB", 20_000_000),
            ("2T", 2 << 40),
        ] {
            assert_eq!(text.parse::<ByteSize>(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "KiB", "-1", "1.5", "4XB", "1..5K", "99999999999999GiB", "0.0000000001TiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_in_a_sentence_says_what_it_counts() {
        assert_eq!([ByteSize(4097), ByteSize(4096)].map(|size| format!("{size:#}")), ["4097 bytes", "4KiB"]);
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(bytes in any::<u64>()) {
            prop_assert_eq!(ByteSize(bytes).to_string().parse::<ByteSize>(), Ok(ByteSize(bytes)));
        }
    }
}
