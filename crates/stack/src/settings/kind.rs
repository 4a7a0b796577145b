//! The types of values that a setting takes, and their parsing.

use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use base::units::ByteSize;
use cache::Percent;

use crate::lun_spec::parse_duration;

/// The type of values that a setting takes.
#[derive(Clone, Debug)]
pub enum Kind {
    /// On or off; `yes` and `no`, `true` and `false` are taken as well.
    Switch,
    /// Any text; the word stands for it in the help.
    Text(&'static str),
    /// A file, a device or a directory.
    Path,
    /// A number, or a word that means none.
    Number(RangeInclusive<u64>, Option<&'static str>),
    /// A number of bytes, or a word that means none.
    Size(RangeInclusive<u64>, Step, Option<&'static str>),
    /// A share in percent.
    Share,
    /// A time, at least this long.
    Time(Duration),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A text with a grammar of its own: the word that stands for it in the help, and a check that
    /// returns the error.
    Checked(&'static str, fn(&str) -> Result<(), String>),
}

/// The sizes of a range that are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All of them.
    Any,
    /// Multiples of this many bytes.
    Multiple(u64),
    /// Powers of two.
    PowerOfTwo,
}

/// A parsed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of a switch.
    Switch(bool),
    /// Of a text.
    Text(String),
    /// Of a path.
    Path(PathBuf),
    /// Of a number.
    Number(u64),
    /// Of a size.
    Bytes(u64),
    /// Of a share.
    Share(Percent),
    /// Of a time.
    Time(Duration),
    /// A word of a choice, or the one that means none.
    Word(&'static str),
}

impl Kind {
    /// Any size.
    pub const SIZE: Self = Self::Size(0..=u64::MAX, Step::Any, None);
    /// Any size, or none.
    pub const SIZE_OR_OFF: Self = Self::Size(0..=u64::MAX, Step::Any, Some("off"));
    /// Any time.
    pub const TIME: Self = Self::Time(Duration::ZERO);

    /// The placeholder of a value in the help.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Switch => "on|off",
            Self::Text(word) | Self::Checked(word, _) => word,
            Self::Path => "PATH",
            Self::Number(..) => "NUMBER",
            Self::Size(..) => "SIZE",
            Self::Share => "PERCENT",
            Self::Time(_) => "DURATION",
            Self::Choice(_) => "WORD",
        }
    }

    /// The values in words; empty where [`Kind::word`] is enough.
    pub fn values(&self) -> String {
        let or = |words: String, none: &Option<&str>| match none {
            Some(none) => format!("{words}, or {none}"),
            None => words,
        };
        match self {
            Self::Switch => "on or off".to_owned(),
            Self::Text(_) | Self::Path | Self::Checked(..) => String::new(),
            Self::Number(range, none) if *range.end() == u64::MAX => {
                or(format!("a number from {} on", range.start()), none)
            }
            Self::Number(range, none) => or(format!("{} to {}", range.start(), range.end()), none),
            Self::Size(range, step, none) => or(sizes(range, *step), none),
            Self::Share => "0% to 100%".to_owned(),
            Self::Time(Duration::ZERO) => "a time, like 100us, 8.5ms or 2s".to_owned(),
            Self::Time(least) => format!("{least:?} or more"),
            Self::Choice(words) => match words.split_last() {
                Some((last, [])) => (*last).to_owned(),
                Some((last, others)) => format!("{} or {last}", others.join(", ")),
                None => String::new(),
            },
        }
    }

    /// Parses `text`.
    ///
    /// # Errors
    /// Why it is no value, as the end of a sentence after the name and the text.
    pub fn parse(&self, text: &OsStr) -> Result<Value, String> {
        if let Self::Path = self {
            return if text.is_empty() { Err("it is a path".into()) } else { Ok(Value::Path(text.into())) };
        }
        let text = text.to_str().ok_or("it is no text in UTF-8")?;
        match self {
            Self::Text(_) => return Ok(Value::Text(text.to_owned())),
            Self::Checked(_, check) => return check(text).map(|()| Value::Text(text.to_owned())),
            _ => {}
        }
        self.value_of(text).ok_or_else(|| format!("it is {}", self.values()))
    }

    fn value_of(&self, text: &str) -> Option<Value> {
        match self {
            Self::Switch => switch(text).ok().map(Value::Switch),
            Self::Number(_, Some(none)) | Self::Size(_, _, Some(none)) if text == *none => Some(Value::Word(none)),
            Self::Number(range, _) => text.parse().ok().filter(|number| range.contains(number)).map(Value::Number),
            Self::Size(range, step, _) => {
                let size = text.parse::<ByteSize>().ok().map(|size| size.0);
                size.filter(|bytes| range.contains(bytes) && step.has(*bytes)).map(Value::Bytes)
            }
            Self::Share => text.parse().ok().map(Value::Share),
            Self::Time(least) => parse_duration(text).ok().filter(|time| time >= least).map(Value::Time),
            Self::Choice(words) => words.iter().find(|word| **word == text).map(|word| Value::Word(word)),
            Self::Text(_) | Self::Path | Self::Checked(..) => None,
        }
    }
}

/// Whether `text` means on.
///
/// # Errors
/// When it means neither on nor off.
pub fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" | "yes" | "true" => Ok(true),
        "off" | "no" | "false" => Ok(false),
        _ => Err(format!("it is {}", Kind::Switch.values())),
    }
}

impl Step {
    fn has(self, bytes: u64) -> bool {
        match self {
            Self::Any => true,
            Self::Multiple(unit) => bytes.is_multiple_of(unit),
            Self::PowerOfTwo => bytes.is_power_of_two(),
        }
    }
}

fn sizes(range: &RangeInclusive<u64>, step: Step) -> String {
    let (least, most) = (ByteSize(*range.start()), ByteSize(*range.end()));
    let which = match step {
        Step::Any => String::new(),
        Step::Multiple(unit) => format!("a multiple of {}, ", ByteSize(unit)),
        Step::PowerOfTwo => "a power of two, ".to_owned(),
    };
    match most.0 {
        u64::MAX if step == Step::Any && least.0 == 0 => "a size, like 512, 64KiB or 10GiB".to_owned(),
        u64::MAX => format!("{which}{least} or more"),
        _ => format!("{which}{least} to {most}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: &Kind, text: &str) -> Result<Value, String> {
        kind.parse(OsStr::new(text))
    }

    #[test]
    fn a_text_is_a_value_or_is_told_what_would_be_one() {
        let ram = Kind::Size(64 << 10..=1 << 30, Step::Any, None);
        assert_eq!(parse(&ram, "1MiB"), Ok(Value::Bytes(1 << 20)));
        let slot = Kind::Size(512..=16 << 10, Step::PowerOfTwo, None);
        assert_eq!(parse(&slot, "1k"), Ok(Value::Bytes(1024)));
        let segment = Kind::Size(64 << 10..=4 << 20, Step::Multiple(4096), None);
        let ways = Kind::Number(1..=u64::MAX, Some("full"));
        assert_eq!(parse(&ways, "full"), Ok(Value::Word("full")));
        assert_eq!(parse(&Kind::SIZE_OR_OFF, "off"), Ok(Value::Word("off")));
        let rate = Kind::Size(64 << 10..=u64::MAX, Step::Any, Some("off"));
        let refused: [(&Kind, &str, &str); 11] = [
            (&rate, "0", "it is 64KiB or more, or off"),
            (&ram, "1KiB", "it is 64KiB to 1GiB"),
            (&slot, "1536", "it is a power of two, 512 to 16KiB"),
            (&segment, "66048", "it is a multiple of 4KiB, 64KiB to 4MiB"),
            (&ways, "0", "it is a number from 1 on, or full"),
            (&Kind::SIZE, "off", "it is a size, like 512, 64KiB or 10GiB"),
            (&Kind::Number(1..=256, None), "0", "it is 1 to 256"),
            (&Kind::Time(Duration::from_millis(1)), "9us", "it is 1ms or more"),
            (&Kind::Share, "101%", "it is 0% to 100%"),
            (&Kind::Choice(&["a", "b", "c"]), "d", "it is a, b or c"),
            (&Kind::Switch, "maybe", "it is on or off"),
        ];
        for (kind, text, why) in refused {
            assert_eq!(parse(kind, text), Err(why.to_owned()), "{text}");
        }
    }
}
