//! `target serve|status`.

use stack::Result;
use stack::config::{Configuration, accounts, read};
use stack::control::{Request, call};
use stack::paths::{Paths, check_name};
use stack::serve::{ServeConfig, Serving, TargetConfig};
use stack::systemd::passed_listeners;
use target::Quota;

use super::{block_on, signal};
use crate::arguments::{Target, TargetServe, TargetStatus};
use crate::output::{print_json, print_line};

/// `forebay target serve|status`.
pub fn run(arguments: Target) -> Result<()> {
    match arguments {
        Target::Serve(arguments) => block_on(serve(arguments)),
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
    let Configuration { portals, metrics, quota, targets } = match (&arguments.config, arguments.iqn) {
        (Some(path), _) => read(path)?,
        (None, iqn) => {
            let accounts = accounts(arguments.chap_user, arguments.chap_file.as_deref())?;
            let iqn = iqn.expect("the command line asks for --iqn where there is no --config");
            let targets = vec![TargetConfig { iqn, luns: arguments.luns, accounts }];
            Configuration { portals: None, metrics: None, quota: Quota::default(), targets }
        }
    };
    let listeners = passed_listeners()?;
    Ok(ServeConfig {
        name: arguments.name,
        // What the service manager listens on is what is served.
        portals: if listeners.is_empty() { portals.unwrap_or(arguments.portals) } else { Vec::new() },
        allow_remote: arguments.allow_remote,
        metrics: arguments.metrics.or(metrics),
        quota,
        listeners,
        targets,
    })
}

async fn status(arguments: TargetStatus) -> Result<()> {
    let name = &arguments.name.name;
    check_name(name)?;
    let status = call(&Paths::from_environment()?.control_socket(name), &Request::Status, |_| {}).await?;
    if arguments.json.json {
        print_json(&status);
        return Ok(());
    }
    let text = |key: &str| status[key].as_str().unwrap_or_default();
    print_line(&format!("{}: serving on {}", text("name"), text("address")));
    for session in status["sessions"].as_array().into_iter().flatten() {
        print_line(&format!(
            "session {}: {} at {}, {} commands under way",
            session["tsih"],
            session["initiator_name"].as_str().unwrap_or_default(),
            session["target_name"].as_str().unwrap_or("(discovery)"),
            session["commands_under_way"]
        ));
    }
    for connection in status["connections"].as_array().into_iter().flatten() {
        print_line(&format!(
            "connection {} of session {}: {}, {} bytes in, {} bytes out",
            connection["peer"].as_str().unwrap_or_default(),
            connection["tsih"],
            connection["state"].as_str().unwrap_or_default(),
            connection["bytes_received"],
            connection["bytes_sent"]
        ));
    }
    for lun in status["luns"].as_array().into_iter().flatten() {
        print_line(&format!(
            "{} LUN {}: {} reads ({} bytes), {} writes ({} bytes), {} others, {} failures",
            lun["target_name"].as_str().unwrap_or_default(),
            lun["lun"],
            lun["reads"],
            lun["read_bytes"],
            lun["writes"],
            lun["written_bytes"],
            lun["others"],
            lun["failures"]
        ));
    }
    Ok(())
}
