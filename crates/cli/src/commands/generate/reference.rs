//! Reference pages in Markdown (`docs/reference/`): commands, exit codes, environment.

use clap::Command;

use super::page::Page;
use crate::guidance::{ENVIRONMENT, command, exit_codes};

/// Said at the head of each page.
const NOTE: &str =
    "<!-- Written by `forebay generate reference docs/reference`: change crates/cli/src/, not this page. -->";
/// Width of the help texts: that of a page, whatever terminal this runs in.
const COLUMNS: usize = 100;

/// Every reference page.
pub fn pages() -> Vec<Page> {
    let page = |name: &str, text: String| (name.to_owned(), format!("{NOTE}\n{}\n", text.trim_end()));
    vec![page("commands.md", commands()), page("exit-codes.md", codes()), page("environment.md", environment())]
}

fn commands() -> String {
    let mut root = command().disable_help_subcommand(true).term_width(COLUMNS);
    root.build();
    let mut text = "# Commands\n\nThe help of every command. `forebay --help` also lists the [environment](environment.md) and the [exit codes](exit-codes.md).\n\n".to_owned();
    add_command(&mut text, &mut root, "forebay");
    text
}

fn add_command(text: &mut String, command: &mut Command, name: &str) {
    let help = command.render_help().to_string();
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    text.push_str(&format!("## {name}\n```text\n{}\n```\n\n", lines.join("\n")));
    for sub in command.get_subcommands_mut().filter(|sub| !sub.is_hide_set()) {
        let name = format!("{name} {}", sub.get_name());
        add_command(text, sub, &name);
    }
}

fn codes() -> String {
    let mut text = "# Exit codes\n\nAn error is one line on standard error: what happened, to what, and what to do. \
        The code says which kind it was.\n\n| code | meaning |\n|---:|---|\n"
        .to_owned();
    for (code, meaning) in exit_codes() {
        text.push_str(&format!("| {code} | {meaning} |\n"));
    }
    text
}

fn environment() -> String {
    let mut text = "# Environment\n\n| variable | meaning |\n|---|---|\n".to_owned();
    for (variable, meaning) in ENVIRONMENT {
        text.push_str(&format!("| `{variable}` | {meaning} |\n"));
    }
    text.push_str("\nBoth directories are made on first use, for their owner only; one that belongs to another user is refused.\n");
    text
}
