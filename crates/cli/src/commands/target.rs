//! `target serve|reload|check|status`.

use std::net::SocketAddr;

use iscsi::target::{AccessList, AccessRule, TargetPortal};
use stack::config::{Configuration, read};
use stack::control::{ControlRequest, call};
use stack::login::{CHAP_VARIABLE, MUTUAL_CHAP_VARIABLE, accounts};
use stack::paths::{Paths, check_name};
use stack::serve::{ServeConfig, Serving};
use stack::status::{self, Reloaded, Shown};
use stack::systemd::passed_listeners;
use stack::target_config::TargetConfig;
use stack::{Error, Failure, Result};
use target::PORTAL_GROUP_DEFAULT;
use target::Quota;

use super::runtime::block_on;
use super::signal;
use crate::arguments::{Target, TargetCheck, TargetReload, TargetServe, TargetStatus};
use crate::output::{plain, print_json, print_line};

/// `forebay target serve|reload|check|status`.
pub fn run(arguments: Target) -> Result<()> {
    match arguments {
        Target::Serve(arguments) => block_on(serve(*arguments)),
        Target::Reload(arguments) => block_on(reload(arguments)),
        Target::Check(arguments) => check(arguments),
        Target::Status(arguments) => block_on(status(arguments)),
    }
}

async fn serve(arguments: TargetServe) -> Result<()> {
    let paths = Paths::from_environment()?;
    let signal = signal::termination()?;
    let serving = Serving::start(config(arguments)?, &paths)?;
    if let Some(address) = serving.metrics_address() {
        print_line(&format!("metrics: {address}"));
    }
    for address in serving.addresses() {
        print_line(&format!("ready: {address}"));
    }
    serving.run(signal).await
}

fn config(arguments: TargetServe) -> Result<ServeConfig> {
    let Configuration { portals, metrics, busy_polling, quota, discovery, targets } =
        match (&arguments.config, arguments.iqn) {
            (Some(path), _) => read(path)?,
            (None, iqn) => {
                let accounts = accounts(arguments.chap_user, arguments.chap_file.as_deref(), CHAP_VARIABLE)?;
                let iqn = iqn.expect("the command line asks for --iqn where there is no --config");
                let iqn = iscsi::name::canonical(&iqn).into_owned();
                let mutual_file = arguments.mutual_chap_file.as_deref();
                let own = self::accounts(arguments.mutual_chap_user, mutual_file, MUTUAL_CHAP_VARIABLE)?.pop();
                let targets = vec![TargetConfig {
                    iqn,
                    alias: None,
                    luns: arguments.luns,
                    portal_groups: None,
                    access: AccessList(vec![AccessRule::any_initiator(accounts)]),
                    masks: Vec::new(),
                    own,
                }];
                Configuration {
                    portals: None,
                    metrics: None,
                    busy_polling: None,
                    quota: Quota::default(),
                    discovery: Vec::new(),
                    targets,
                }
            }
        };
    let listeners = passed_listeners()?;
    Ok(ServeConfig {
        name: arguments.name,
        // Listeners passed by the service manager replace the portals.
        portals: if listeners.is_empty() {
            portals.unwrap_or_else(|| in_default_group(arguments.portals))
        } else {
            Vec::new()
        },
        allow_remote: arguments.allow_remote,
        metrics: arguments.metrics.or(metrics),
        busy_polling: arguments.busy_poll.or(busy_polling).unwrap_or_default(),
        quota,
        listeners,
        discovery,
        targets,
        source: arguments.config,
    })
}

fn in_default_group(portals: Vec<SocketAddr>) -> Vec<TargetPortal> {
    portals.into_iter().map(|address| TargetPortal { address, group: PORTAL_GROUP_DEFAULT }).collect()
}

async fn reload(arguments: TargetReload) -> Result<()> {
    let name = &arguments.name.name;
    check_name(name)?;
    let answer = call(&Paths::from_environment()?.control_socket(name), &ControlRequest::Reload, |_| {}).await?;
    if arguments.json.json {
        print_json(&answer);
        return Ok(());
    }
    let Reloaded { luns_added, luns_removed, luns_resized, portals_added, portals_removed, sessions_ended, .. } =
        status::read(&answer)?;
    print_line(&format!(
        "{name}: {luns_added} LUNs added, {luns_removed} removed, {luns_resized} resized; {portals_added} portals \
         added, {portals_removed} removed; {sessions_ended} sessions asked to end"
    ));
    Ok(())
}

fn check(arguments: TargetCheck) -> Result<()> {
    let Configuration { portals, metrics, busy_polling, quota, discovery, targets } = read(&arguments.config)?;
    let (target_count, lun_count) = (targets.len(), targets.iter().map(|target| target.luns.len()).sum::<usize>());
    let config = ServeConfig {
        name: "target".to_owned(),
        portals: portals.unwrap_or_default(),
        allow_remote: arguments.allow_remote,
        metrics,
        busy_polling: busy_polling.unwrap_or_default(),
        quota,
        listeners: Vec::new(),
        discovery,
        targets,
        source: None,
    };
    config.check()?;
    // Without a state directory there are no stores to check against.
    config.check_backends(Paths::from_environment().ok().as_ref())?;
    print_line(&format!("{}: {target_count} targets, {lun_count} LUNs", arguments.config.display()));
    Ok(())
}

async fn status(arguments: TargetStatus) -> Result<()> {
    let name = &arguments.name.name;
    check_name(name)?;
    let answer = call(&Paths::from_environment()?.control_socket(name), &ControlRequest::Status, |_| {}).await?;
    if arguments.json.json {
        print_json(&answer);
        return Ok(());
    }
    match status::read(&answer)? {
        Shown::Target(status) => print_status(&status),
        Shown::Attachment(_) | Shown::Mount(_) | Shown::Daemon(_) => {
            let message = format!("\"{name}\" is no target: `forebay status {name}` says what it is");
            return Err(Error::new(Failure::Usage, message));
        }
    }
    Ok(())
}

/// The state of a target for a person.
pub(super) fn print_status(status: &status::target::TargetStatus) {
    print_line(&format!("{}: serving on {}", status.name, status.address));
    status.troubles.iter().for_each(|trouble| print_line(&format!("trouble: {}", plain(trouble))));
    for session in &status.server.sessions {
        print_line(&format!(
            "session {}: {} at {}, {} commands under way",
            session.tsih,
            plain(&session.initiator_name),
            plain(session.target_name.as_deref().unwrap_or("(discovery)")),
            session.activity.as_ref().map_or(0, |activity| activity.commands_under_way)
        ));
    }
    for connection in &status.server.connections {
        print_line(&format!(
            "connection {} of session {}: {}, {} bytes in, {} bytes out",
            connection.peer,
            connection.tsih.map_or_else(|| "-".to_owned(), |tsih| tsih.to_string()),
            connection.state.as_str(),
            connection.bytes_received,
            connection.bytes_sent
        ));
    }
    for lun in &status.server.luns {
        print_line(&format!(
            "{} LUN {}: {} reads ({} bytes), {} writes ({} bytes), {} others, {} failures",
            lun.target_name,
            lun.lun,
            lun.reads,
            lun.read_bytes,
            lun.writes,
            lun.written_bytes,
            lun.others,
            lun.failures
        ));
    }
}
