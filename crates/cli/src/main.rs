//! The `forebay` command.
//!
//! | module | holds |
//! |---|---|
//! | `arguments` | the one definition of the command line |
//! | `settings_arguments` | its options that are settings: of the table in `stack::settings` |
//! | `settings_help` | descriptions of the settings, for the help and the reference |
//! | `guidance` | further help: examples, environment, exit codes |
//! | `commands` | one file a command |
//! | `output` | text or JSON, progress, confirmation |
//! | `panics` | a panic anywhere ends the process |
//!
//! Results go to standard output, everything else to standard error. An error is one line: what happened, to what, and
//! what to do; the exit code says which kind it was (`stack::Failure`).

#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod guidance;
mod output;
mod panics;
mod settings_arguments;
mod settings_help;

use std::fmt;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::FromArgMatches;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use arguments::{Arguments, LogFormat};

fn main() -> ExitCode {
    panics::end_the_process();
    let matches = guidance::command().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    start_logging(arguments.verbose, arguments.log_format);
    match commands::run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay: {}", output::plain(&error.to_string()));
            ExitCode::from(error.failure().exit_code())
        }
    }
}

/// Logs go to standard error, so that standard output holds results only.
fn start_logging(verbose: u8, format: LogFormat) {
    let default = match verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_env("FOREBAY_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let has_colours = std::io::stderr().is_terminal();
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Text => subscriber.fmt_fields(debug_fn(write_field).delimited(" ")).with_ansi(has_colours).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
}

/// Writes a field as text. A name that a peer chose is escaped, so that it stays on its line and
/// cannot control the terminal.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = format!("{value:?}");
    match field.name() {
        "message" => write!(writer, "{}", output::plain(&value)),
        name => write!(writer, "{name}={}", output::plain(&value)),
    }
}
