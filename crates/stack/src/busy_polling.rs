//! How long connections poll for data before they sleep, as users write it: `auto`, `off` or a
//! time.

use std::str::FromStr;
use std::time::Duration;

use crate::lun_spec::parse_duration;

/// Longest time that may be set: a wake-up never takes longer, so longer polling gains nothing.
pub const BUSY_POLL_MAX: Duration = Duration::from_millis(1);

/// How long to poll, at most, before sleeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BusyPolling {
    /// About the time of a wake-up on this machine, which is measured.
    #[default]
    Auto,
    /// This long; zero for never.
    UpTo(Duration),
}

impl BusyPolling {
    /// The longest time of one busy poll.
    pub fn longest(self) -> Duration {
        match self {
            Self::Auto => clock::wake_up_time(),
            Self::UpTo(time) => time,
        }
    }
}

impl FromStr for BusyPolling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::UpTo(Duration::ZERO)),
            _ => {
                let time = parse_duration(text).ok().filter(|time| *time <= BUSY_POLL_MAX);
                time.map(Self::UpTo).ok_or_else(|| format!("it is auto, off, or a time of at most {BUSY_POLL_MAX:?}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_people_say() {
        for (text, meant) in [
            ("auto", BusyPolling::Auto),
            ("off", BusyPolling::UpTo(Duration::ZERO)),
            ("80us", BusyPolling::UpTo(Duration::from_micros(80))),
        ] {
            assert_eq!(text.parse(), Ok(meant));
        }
        for text in ["", "on", "2ms", "-1us"] {
            assert!(text.parse::<BusyPolling>().unwrap_err().contains("at most 1ms"), "{text}");
        }
    }
}
