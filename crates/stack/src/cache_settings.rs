//! The settings of a cache that change while it runs: `forebay set NAME cache.KEY=VALUE`.

use std::fmt::Display;
use std::str::FromStr;

use base::units::ByteSize;
use cache::{Cache, CleaningRate, DirtyLimits, Tuning};

use crate::error::{Error, Failure, Result};

/// Every key, as messages name them.
pub const KEYS: &[&str] = &[
    "cache.mode",
    "cache.replacement",
    "cache.admission",
    "cache.cutoff",
    "cache.prefetch",
    "cache.prefetch-lines",
    "cache.clean-above",
    "cache.dirty-max",
    "cache.clean-min",
    "cache.clean-max",
];

/// Changes what needs neither waiting nor the registry. Whether `key` is such a setting.
///
/// # Errors
/// When the value makes no sense.
pub fn set(cache: &Cache, key: &str, value: &str) -> Result<bool> {
    let (tuning, dirty, rate) = (cache.tuning(), cache.dirty_limits(), cache.cleaning_rate());
    match key {
        "cache.replacement" => cache.set_replacement(parse(value)?),
        "cache.admission" => cache.set_tuning(Tuning { admission: parse(value)?, ..tuning }),
        "cache.cutoff" => cache.set_tuning(Tuning { cutoff_bytes: size_or_off(value)?, ..tuning }),
        "cache.prefetch" => {
            cache.set_tuning(Tuning { prefetch_bytes: size_or_off(value)?.unwrap_or(0), ..tuning });
        }
        "cache.prefetch-lines" => cache.set_tuning(Tuning { prefetches_lines: parse_switch(key, value)?, ..tuning }),
        "cache.clean-above" => cache.set_dirty_limits(DirtyLimits { clean_above: parse(value)?, ..dirty }),
        "cache.dirty-max" => cache.set_dirty_limits(DirtyLimits { max: parse(value)?, ..dirty }),
        "cache.clean-min" => {
            cache.set_cleaning_rate(CleaningRate { min_bytes: parse_size(value)?, ..rate });
        }
        "cache.clean-max" => cache.set_cleaning_rate(CleaningRate { max_bytes: size_or_off(value)?, ..rate }),
        _ => return Ok(false),
    }
    Ok(true)
}

/// A value of a setting.
///
/// # Errors
/// When it makes no sense.
pub fn parse<T: FromStr<Err: Display>>(value: &str) -> Result<T> {
    value.parse().map_err(|error: T::Err| Error::new(Failure::Usage, error.to_string()))
}

/// A size in bytes.
///
/// # Errors
/// As [`parse`].
pub fn parse_size(value: &str) -> Result<u64> {
    parse::<ByteSize>(value).map(|size| size.0)
}

/// The value of a switch, the setting `key`.
///
/// # Errors
/// When it is neither `on` nor `off`.
pub fn parse_switch(key: &str, value: &str) -> Result<bool> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Error::new(Failure::Usage, format!("{key} is on or off, not \"{value}\""))),
    }
}

fn size_or_off(value: &str) -> Result<Option<u64>> {
    if value == "off" { Ok(None) } else { parse_size(value).map(Some) }
}
