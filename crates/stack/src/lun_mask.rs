//! The view that some initiators have of a target: `"1=0"` is LUN 0 under the number 1,
//! `"5,read-only"` is LUN 5 under its own number, read only.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// One logical unit in such a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct MaskSpec {
    /// The number they see.
    pub lun: u16,
    /// The number it has in the target.
    pub of: u16,
    /// Whether they may only read it.
    pub is_read_only: bool,
}

/// A specification that is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no view of a LUN: write NUMBER, or NUMBER_SEEN=NUMBER, then [,read-only]")]
pub struct ParseMaskError(String);

impl FromStr for MaskSpec {
    type Err = ParseMaskError;

    fn from_str(text: &str) -> Result<Self, ParseMaskError> {
        let error = || ParseMaskError(text.to_owned());
        let (numbers, is_read_only) = match text.split_once(',') {
            None => (text, false),
            Some((numbers, "read-only")) => (numbers, true),
            Some(_) => return Err(error()),
        };
        let (seen, of) = numbers.split_once('=').unwrap_or((numbers, numbers));
        let number = |text: &str| text.trim().parse::<u16>().ok().filter(|lun| *lun < 1 << 14);
        let lun = number(seen).ok_or_else(error)?;
        let of = number(of).ok_or_else(error)?;
        Ok(Self { lun, of, is_read_only })
    }
}

impl TryFrom<String> for MaskSpec {
    type Error = ParseMaskError;

    fn try_from(text: String) -> Result<Self, ParseMaskError> {
        text.parse()
    }
}

impl fmt::Display for MaskSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lun, of, is_read_only } = self;
        write!(f, "{lun}={of}{}", if *is_read_only { ",read-only" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_read_as_they_print() {
        for (text, printed) in
            [("0", "0=0"), ("1=0", "1=0"), ("2=5,read-only", "2=5,read-only"), ("7,read-only", "7=7,read-only")]
        {
            let mask: MaskSpec = text.parse().unwrap();
            assert_eq!(mask.to_string(), printed);
            assert_eq!(printed.parse(), Ok(mask));
        }
        for text in ["", "a", "1=", "=1", "1=2=3", "1,write-only", "16384", "-1"] {
            assert!(text.parse::<MaskSpec>().is_err(), "{text}");
        }
    }
}
