//! `target serve|status`.

use stack::Result;
use stack::config::{accounts, read};
use stack::control::{Request, call};
use stack::paths::{Paths, check_name};
use stack::serve::{ServeConfig, Serving, TargetConfig};

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
    for address in serving.addresses() {
        print_line(&format!("ready: {address}"));
    }
    serving.run(signal).await
}

fn config(arguments: TargetServe) -> Result<ServeConfig> {
    let (portals, targets) = match (&arguments.config, arguments.iqn) {
        (Some(path), _) => {
            let (portals, targets) = read(path)?;
            (portals.unwrap_or(arguments.portals), targets)
        }
        (None, iqn) => {
            let accounts = accounts(arguments.chap_user, arguments.chap_file.as_deref())?;
            let iqn = iqn.expect("the command line asks for --iqn where there is no --config");
            (arguments.portals, vec![TargetConfig { iqn, luns: arguments.luns, accounts }])
        }
    };
    Ok(ServeConfig { name: arguments.name, portals, allow_remote: arguments.allow_remote, targets })
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
        print_line(&format!("session {}: {}", session["tsih"], session["initiator_name"].as_str().unwrap_or_default()));
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
