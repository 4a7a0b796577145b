//! Manual pages, one a command: what clap knows, then examples, environment and exit codes as sections of their own.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::page::Page;
use crate::guidance::{ENVIRONMENT, command, examples, exit_codes, wrapped};
use crate::settings_help;

/// Every manual page.
pub fn pages() -> Vec<Page> {
    let mut root = command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    add_pages(&mut pages, &root, "forebay");
    pages
}

fn add_pages(pages: &mut Vec<Page>, command: &Command, name: &str) {
    pages.push((format!("{}.1", page_name(name)), page(command, name)));
    for sub in visible(command) {
        add_pages(pages, sub, &format!("{name} {}", sub.get_name()));
    }
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set())
}

/// `forebay cache check` has its page under `forebay-cache-check`.
fn page_name(name: &str) -> String {
    name.replace(' ', "-")
}

fn page(command: &Command, name: &str) -> String {
    let version = command.get_version().unwrap_or_default();
    let man = Man::new(command.clone()).title(page_name(name).to_uppercase()).source(format!("forebay {version}"));
    let mut bytes = Vec::new();
    let sections = [
        Man::render_title,
        Man::render_name_section,
        Man::render_synopsis_section,
        Man::render_description_section,
        Man::render_options_section,
    ];
    for section in sections {
        section(&man, &mut bytes).expect("a vector takes everything");
    }
    if visible(command).next().is_some() {
        man.render_subcommands_section(&mut bytes).expect("a vector takes everything");
    }
    let mut text = String::from_utf8(bytes).expect("a manual page is text");
    // The name section opens its own copy of the settings that `to_roff` leaves out.
    text.push_str(&own_sections(command, name).to_roff());
    text
}

fn own_sections(command: &Command, name: &str) -> Roff {
    let mut roff = Roff::new();
    if name == "forebay attach" {
        roff.control("SH", ["SETTINGS"]).control("nf", []).text([roman(settings_help::in_words())]).control("fi", []);
    }
    roff.control("SH", ["EXAMPLES"]);
    for (says, line) in examples(name) {
        roff.control("PP", []).text([roman(format!("{says}:"))]);
        roff.control("PP", []).control("RS", ["4"]).control("nf", []);
        wrapped(line).lines().for_each(|part| {
            roff.text([bold(part)]);
        });
        roff.control("fi", []).control("RE", []);
    }
    roff.control("SH", ["ENVIRONMENT"]);
    for (variable, meaning) in ENVIRONMENT {
        roff.control("TP", []).text([bold(*variable)]).text([roman(*meaning)]);
    }
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in exit_codes() {
        roff.control("TP", []).text([bold(code.to_string())]).text([roman(meaning)]);
    }
    let others: Vec<String> = related(command, name).into_iter().map(|other| format!("{other}(1)")).collect();
    roff.control("SH", ["SEE ALSO"]).text([roman(others.join(", "))]);
    roff
}

/// The commands above and right below.
fn related(command: &Command, name: &str) -> Vec<String> {
    let above = name.rsplit_once(' ').map(|(above, _)| page_name(above));
    above.into_iter().chain(visible(command).map(|sub| page_name(&format!("{name} {}", sub.get_name())))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_every_section_once() {
        let pages = pages();
        let (_, text) = pages.iter().find(|(name, _)| name == "forebay-attach.1").expect("attach has a page");
        for section in [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "SETTINGS",
            "EXAMPLES",
            "ENVIRONMENT",
            "EXIT STATUS",
            "SEE ALSO",
        ] {
            let headings = text.lines().filter(|line| line.trim_start_matches(".SH ").trim_matches('"') == section);
            assert_eq!(headings.count(), 1, "{section}: {text}");
        }
        assert!(text.contains("refused, because data would be lost"));
    }
}
