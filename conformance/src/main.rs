//! `conformance iscsi://HOST:PORT/IQN/LUN [--allow-data-loss] [NAME...]`; exit code 1 when a behaviour failed, 2 when
//! it could not start.

use std::net::ToSocketAddrs;
use std::process::ExitCode;

use conformance::{BEHAVIOURS, Bench, run};

const USAGE: &str = "conformance iscsi://HOST[:PORT]/IQN/LUN [--allow-data-loss] [NAME...] | --list";

fn parse(arguments: &[String]) -> Option<(Bench, Vec<String>)> {
    let allows_data_loss = arguments.iter().any(|argument| argument == "--allow-data-loss");
    let mut words = arguments.iter().filter(|argument| !argument.starts_with("--"));
    let url = words.next()?.strip_prefix("iscsi://")?;
    let (portal, rest) = url.split_once('/')?;
    let (target, lun) = rest.rsplit_once('/')?;
    let portal = if portal.rsplit(']').next()?.contains(':') { portal.to_owned() } else { format!("{portal}:3260") };
    let address = portal.to_socket_addrs().ok()?.next()?;
    Some((Bench::new(address, target.to_owned(), lun.parse().ok()?, allows_data_loss), words.cloned().collect()))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        BEHAVIOURS.iter().for_each(|it| println!("{} ({})", it.name, it.clause));
        return ExitCode::SUCCESS;
    }
    let Some((bench, names)) = parse(&arguments) else {
        eprintln!("usage: {USAGE}");
        return ExitCode::from(2);
    };
    if let Some(unknown) = names.iter().find(|name| !BEHAVIOURS.iter().any(|it| it.name == **name)) {
        eprintln!("there is no behaviour {unknown}; --list names them");
        return ExitCode::from(2);
    }
    if run(&bench, &names).failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
