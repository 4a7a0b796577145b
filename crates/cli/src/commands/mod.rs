//! One file a command.

mod attach;
mod bench;
mod cache;
mod control;
mod demo;
mod discard;
mod discover;
mod generate;
mod inquiry;
mod lab;
mod log;
mod overview;
mod replay;
mod signal;
mod status;
mod subject;
mod superblock;
mod target;

use std::future::Future;
use std::time::Duration;

use stack::{Error, Result};

use crate::arguments::Command;

/// Carries out `command`.
///
/// # Errors
/// One line for a person, and an exit code.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Demo(arguments) => block_on(demo::run(arguments)),
        Command::Target(arguments) => target::run(arguments),
        Command::Discover(arguments) => block_on(discover::run(arguments)),
        Command::Inquiry(arguments) => block_on(inquiry::run(arguments)),
        Command::Attach(arguments) => block_on(attach::run(*arguments)),
        Command::Detach(arguments) => block_on(control::detach(arguments)),
        Command::Status(arguments) => block_on(status::run(arguments)),
        Command::Clean(arguments) => block_on(control::clean(arguments)),
        Command::Set(arguments) => block_on(control::set(arguments)),
        Command::Cache(arguments) => block_on(cache::run(arguments)),
        Command::Log(arguments) => block_on(log::run(arguments)),
        Command::Bench(arguments) => block_on(bench::run(arguments)),
        Command::Replay(arguments) => block_on(replay::run(arguments)),
        Command::Lab(command) => lab::run(command),
        Command::Generate(arguments) => generate::run(arguments),
    }
}

/// Runs a command on a runtime of one thread: connections, rings and timers of one stack stay together.
fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("cannot start the runtime", &error))?;
    let result = runtime.block_on(future);
    // A name that is still being resolved, or the like, is not waited for when everything is over.
    runtime.shutdown_timeout(SHUTDOWN_TIME_MAX);
    result
}

/// How long what runs on other threads may take to its end when a command is over: a write to a disk, not an answer of the network.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(1);
