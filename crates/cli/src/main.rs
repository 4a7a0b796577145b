//! The `forebay` command.
//!
//! | module | holds |
//! |---|---|
//! | `arguments` | the one definition of the command line |
//! | `guidance` | what is told beyond it: examples, environment, exit codes |
//! | `commands` | one file a command |
//! | `output` | text or JSON, progress, confirmation |
//!
//! Results go to standard output, everything else to standard error. An error is one line: what happened, to what, and what to do; the
//! exit code says which kind it was (`stack::Failure::TABLE`).

#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod guidance;
mod output;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::FromArgMatches;
use tracing_subscriber::EnvFilter;

use arguments::{Arguments, LogFormat};

fn main() -> ExitCode {
    let matches = guidance::command().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    start_logging(arguments.verbose, arguments.log_format);
    match commands::run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay: {error}");
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
        LogFormat::Text => subscriber.with_ansi(has_colours).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
}
