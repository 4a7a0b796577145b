//! Descriptions of the settings, beyond their options: in `attach --help-all`, in the help of
//! `set`, on manual pages and in the reference.

use stack::settings::setting::{Changes, Part, Setting};
use stack::settings::table::rows;

/// Columns of a line of help, indent included.
const COLUMNS: usize = 100;

/// The settings of one part.
fn rows_of(part: Part) -> impl Iterator<Item = &'static Setting> {
    rows().filter(move |setting| setting.part == part)
}

/// Every setting, part by part, for a terminal.
pub fn in_words() -> String {
    let mut text =
        "Settings, for --set KEY=VALUE and for the file of --config; those with * also for `forebay set`:".to_owned();
    for (part, heading) in Part::ALL {
        text += &format!("\n\n{heading}:");
        for setting in rows_of(*part) {
            let star = if setting.is_live() { " *" } else { "" };
            text += &format!("\n  {}={}{star}\n{}", setting.key, setting.kind.word(), folded(&meaning(setting), 6));
        }
    }
    text
}

/// The settings of an attachment that `forebay set` changes, for a terminal.
pub fn live_in_words() -> String {
    let mut text = "Settings of an attachment:".to_owned();
    for setting in rows().filter(|setting| setting.is_live()) {
        text += &format!("\n  {}={}\n{}", setting.key, setting.kind.word(), folded(&meaning(setting), 6));
    }
    text + "\n\nOf a target: lun.NUMBER.disk=on|off, or of several targets IQN.lun.NUMBER.disk=on|off"
}

/// Every setting, part by part, in Markdown.
pub fn in_tables() -> String {
    let mut text = String::new();
    for (part, heading) in Part::ALL {
        text +=
            &format!("\n## {heading}\n| key | option | values | default | changes | |\n|---|---|---|---|---|---|\n");
        for setting in rows_of(*part) {
            let flags: Vec<String> =
                setting.flag.into_iter().chain(setting.old_flag).map(|flag| format!("`--{flag}`")).collect();
            let flag = flags.join(", ");
            let values = match setting.kind.values() {
                values if values.is_empty() => setting.kind.word().to_owned(),
                values => values,
            };
            text += &format!(
                "| `{}` | {flag} | {values} | {} | {} | {} |\n",
                setting.key,
                setting.default_in_words(),
                when(setting),
                help(setting)
            );
        }
    }
    text
}

/// The description of a setting, in sentences.
fn help(setting: &Setting) -> String {
    format!("{}. {}", setting.help, setting.more).trim_end().to_owned()
}

fn meaning(setting: &Setting) -> String {
    let mut words = help(setting);
    let said = setting.kind.values();
    if !said.is_empty() {
        words += &format!(" Values: {said}.");
    }
    if !setting.default_in_words().is_empty() {
        words += &format!(" Default: {}.", setting.default_in_words());
    }
    words
}

/// When the setting may change.
fn when(setting: &Setting) -> &'static str {
    match setting.changes {
        Changes::AtStart => "",
        Changes::AtFormat => "when it is made",
        Changes::Live => "while it runs",
        Changes::ByReplacement => "when it is made; while it runs, by another in its place",
        Changes::LiveOnly => "`set` only",
    }
}

/// `words` in lines that begin with so many spaces. The keys of settings are not broken.
fn folded(words: &str, indent: usize) -> String {
    let indent = " ".repeat(indent);
    let options = textwrap::Options::new(COLUMNS).initial_indent(&indent).subsequent_indent(&indent);
    textwrap::fill(words, options.word_splitter(textwrap::WordSplitter::NoHyphenation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_told_once_and_no_line_is_too_long() {
        let (text, tables) = (in_words(), in_tables());
        for setting in rows() {
            let row = format!("\n| `{}` |", setting.key);
            assert_eq!(tables.matches(&row).count(), 1, "{}", setting.key);
            let line = format!("\n  {}={}", setting.key, setting.kind.word());
            assert!(text.lines().any(|found| found.starts_with(line.trim_start_matches('\n'))), "{}", setting.key);
        }
        for line in text.lines().chain(live_in_words().lines()) {
            assert!(line.len() <= COLUMNS, "{line}");
        }
    }
}
