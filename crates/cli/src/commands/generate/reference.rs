//! Reference pages in Markdown (`docs/reference/`): commands, exit codes, environment.

use clap::Command;

use super::page::Page;
use crate::guidance::{ENVIRONMENT, command, exit_codes};
use crate::settings_help;

/// Said at the head of each page.
const NOTE: &str =
    "<!-- Written by `forebay generate reference docs/reference`: change crates/cli/src/, not this page. -->";
/// Width of the help texts: that of a page, whatever terminal this runs in.
const COLUMNS: usize = 100;

/// Every reference page.
pub fn pages() -> Vec<Page> {
    let page = |name: &str, text: String| (name.to_owned(), format!("{NOTE}\n{}\n", text.trim_end()));
    vec![
        page("commands.md", commands()),
        page("settings.md", settings()),
        page("exit-codes.md", codes()),
        page("environment.md", environment()),
    ]
}

fn settings() -> String {
    let text = "# Settings of an attachment\n\n\
                Each has a key, for `forebay attach --set KEY=VALUE`, for the file of `forebay attach --config FILE` \
                and, where it changes while it runs, for `forebay set NAME KEY=VALUE`. `forebay status NAME --json` \
                shows those in effect as `settings`. Options that `forebay attach --help` does not name are there \
                until the next release, for those who used them: their keys stay.\n\n\
                The command line wins over the environment, that over the file, and that over the default. A setting \
                that the command line says twice, by its option and by `--set`, is an error, as is a key that is none. \
                [Configuration](configuration.md#an-attachment-forebay-attach---config-file) shows a file. Secrets are \
                in files of their own, or in the [environment](environment.md).\n";
    format!("{text}{}", settings_help::in_tables())
}

fn commands() -> String {
    let mut root = command().disable_help_subcommand(true).term_width(COLUMNS);
    root.build();
    let mut text = "# Commands\n\nThe help of every command. `forebay --help` also lists the \
                    [environment](environment.md) and the [exit codes](exit-codes.md).\n\n"
        .to_owned();
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
    text.push_str(
        "\nSIGTERM, SIGINT, and SIGHUP (a closed terminal; not under `nohup`) end `attach` and \
         `mount` within five seconds, also while they start, whatever they wait for: with 1 \
         before they said `ready:`, when nothing was attached and nothing half-made is left, and with 0 after that, \
         whether or not the target answers, and with what is dirty left in the cache or log of an attachment. Four \
         ends are others:\n\
         \n- Where the file of a cache or log was removed or cut while it had dirty data, nothing would be left: all \
         is written back first, which takes as long as it takes. Where the target stays away for the replacement \
         timeout, it ends with an error then, and says what is lost.\n\
         - Where the file of a difference was cut or removed, what it held is lost: it ends in time, with 7, and says \
         so. It does, too, where that file was moved away.\n\
         - Where writes that were acknowledged may be lost, since the target went away before a flush and neither a \
         cache in write-back nor a log has them, it ends in time, and with the code of why the target is away.\n\
         - A mount has what was not durable yet in its memory only: where its target does not take that any more, it \
         ends in time, with the code of why, and says how much may be lost. What was durable is whole at the next \
         mount.\n\
         \nThe same signals but SIGHUP, which reads its configuration again, end `target serve` within five seconds, \
         too: with 0 when all that was written is durable, and with 1 when its last flush, which has 0.7 s, failed or \
         did not end. Then what initiators had written and not flushed may not be durable; what they had flushed is.\n\
         \nA `detach` that fails although it ended the attachment, or the mount, ends both with the same code, the \
         command and `attach` or `mount`.\n",
    );
    text
}

fn environment() -> String {
    let mut text = "# Environment\n\n| variable | meaning |\n|---|---|\n".to_owned();
    for (variable, meaning) in ENVIRONMENT {
        text.push_str(&format!("| `{variable}` | {meaning} |\n"));
    }
    text.push_str(
        "\nThe directories are made on first use, for their owner only; one that belongs to another user is refused.\n",
    );
    text
}
