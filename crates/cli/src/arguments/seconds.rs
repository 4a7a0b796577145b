//! A time that is given in seconds or with a unit.

use std::time::Duration;

use stack::lun_spec::parse_duration;

pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => parse_duration(text),
    }
}
