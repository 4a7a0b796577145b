//! One file a command.

mod attach;
mod bench;
mod cache;
mod control;
mod daemon;
mod demo;
mod discard;
mod discover;
mod events;
mod existing;
mod generate;
mod inquiry;
mod keeping;
mod lab;
mod locks;
mod log;
mod mkfs;
mod mount;
mod overview;
mod replay;
mod runtime;
mod signal;
mod status;
mod subject;
mod superblock;
mod target;
mod top;

use runtime::block_on;
use stack::Result;

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
        Command::Locks(arguments) => block_on(locks::run(arguments)),
        Command::Attach(arguments) => block_on(attach::run(*arguments)),
        Command::Detach(arguments) => block_on(control::detach(arguments)),
        Command::Daemon(arguments) => block_on(daemon::run(arguments)),
        Command::Status(arguments) => block_on(status::run(arguments)),
        Command::Top(arguments) => block_on(top::run(arguments)),
        Command::Events(arguments) => block_on(events::run(arguments)),
        Command::Flush(arguments) => block_on(control::flush(arguments)),
        Command::Clean(arguments) => block_on(control::clean(arguments)),
        Command::Set(arguments) => block_on(control::set(arguments)),
        Command::Cache(arguments) => block_on(cache::run(arguments)),
        Command::Log(arguments) => block_on(log::run(arguments)),
        Command::Mkfs(arguments) => block_on(mkfs::run(arguments)),
        Command::Mount(arguments) => block_on(mount::run(arguments)),
        Command::Bench(arguments) => block_on(bench::run(arguments)),
        Command::Replay(arguments) => block_on(replay::run(arguments)),
        Command::Lab(command) => lab::run(command),
        Command::Generate(arguments) => generate::run(arguments),
    }
}
