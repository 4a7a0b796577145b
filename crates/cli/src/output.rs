//! Text or JSON, progress, confirmation.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use stack::time::seconds_since_1970;
use stack::{Error, Failure, Result};

/// Prints one JSON object.
pub fn print_json(value: &Value) {
    print_line(&format!("{value:#}"));
}

/// Prints a line on standard output. A reader that closed the pipe (`forebay status | head -1`) has read enough.
pub fn print_line(line: &str) {
    let _ = prints_line(line);
}

/// The same; whether somebody reads on.
pub fn prints_line(line: &str) -> bool {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_ok()
}

/// The text of a peer, fit to be shown: control characters, which a terminal obeys, and characters
/// that change the direction of writing are written as escapes.
pub fn plain(text: &str) -> Cow<'_, str> {
    let obeys = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(obeys) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().fold(String::new(), |mut shown, c| {
        if obeys(c) {
            shown.extend(c.escape_default())
        } else {
            shown.push(c)
        }
        shown
    }))
}

/// Asks before data is lost.
///
/// # Errors
/// `WouldLoseData` when the answer is no, or when there is no terminal to ask at.
pub fn confirm(what: &str) -> Result<()> {
    let refused = |why: &str| Err(Error::new(Failure::WouldLoseData, format!("{what}: {why}")));
    if !io::stdin().is_terminal() {
        return refused("give --allow-data-loss if that is meant");
    }
    eprint!("{what}. Type `yes` to go on: ");
    let mut answer = String::new();
    match io::stdin().read_line(&mut answer) {
        Ok(_) if answer.trim() == "yes" => Ok(()),
        _ => refused("nothing was changed"),
    }
}

/// A progress bar of `length` steps on standard error; hidden where standard error is no terminal.
pub fn progress_bar(label: &str, length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style = ProgressStyle::with_template("{msg:28} {wide_bar:.cyan/blue} {percent:>3} % {eta:>4}")
        .expect("the template is a constant");
    bar.set_style(style);
    bar.set_message(label.to_owned());
    bar
}

/// A duration as a person reads it, three digits.
pub fn duration_in_words(duration: Option<Duration>) -> String {
    workload::report::time_in_words(duration.map(|duration| duration.as_nanos() as u64))
}

/// How old dirty data may be, when nothing was dirty at `clean_at`.
pub fn age(clean_at: Option<u64>) -> String {
    match clean_at {
        Some(clean_at) => format!("in the last {}", time_since(clean_at)),
        None => "at an unknown time".to_owned(),
    }
}

/// The time since `then`, in seconds since 1970, as a person reads it.
pub fn time_since(then: u64) -> String {
    let seconds = seconds_since_1970().saturating_sub(then);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} days {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_command_a_terminal() {
        assert_eq!(plain("iqn.2026-11.org.example:a"), "iqn.2026-11.org.example:a");
        assert_eq!(plain("a\u{1b}]0;x\u{7}\nready: \u{202e}b\u{9b}"), "a\\u{1b}]0;x\\u{7}\\nready: \\u{202e}b\\u{9b}");
    }
}
