//! `detach`, `clean`, `set`: what the control socket of a running process does for them.

use serde_json::Value;
use stack::control::{Request, call};
use stack::paths::{Paths, check_name};
use stack::{Error, Failure, Result};

use crate::arguments::{Clean, Detach, Set};
use crate::output::{print_line, progress_bar};

/// `forebay detach`.
pub async fn detach(arguments: Detach) -> Result<()> {
    let request = Request::Detach { keep_dirty: arguments.keep_dirty, remove_cache: arguments.remove_cache };
    let answer = call_with_progress(&arguments.name, &request).await?;
    let name = &arguments.name;
    print_line(&match answer["dirty_bytes"].as_u64() {
        None => format!("{name}: stopped"),
        Some(0) => format!("{name}: detached"),
        Some(bytes) => format!("{name}: detached; {bytes} bytes stay dirty in its cache"),
    });
    Ok(())
}

/// `forebay clean`.
pub async fn clean(arguments: Clean) -> Result<()> {
    let answer = call_with_progress(&arguments.name, &Request::Clean).await?;
    print_line(&format!("{}: {} bytes dirty", arguments.name, answer["dirty_bytes"]));
    Ok(())
}

/// `forebay set`.
pub async fn set(arguments: Set) -> Result<()> {
    for setting in &arguments.settings {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(Error::new(Failure::Usage, format!("\"{setting}\" is no KEY=VALUE")));
        };
        let request = Request::Set { key: key.to_owned(), value: value.to_owned() };
        call_with_progress(&arguments.name, &request).await?;
        print_line(&format!("{}: {key}={value}", arguments.name));
    }
    Ok(())
}

/// Asks the process `name`, showing how far it has come.
///
/// # Errors
/// `NotFound` when nothing runs under that name; the process's own error.
pub async fn call_with_progress(name: &str, request: &Request) -> Result<Value> {
    check_name(name)?;
    let paths = Paths::from_environment()?;
    let bar = progress_bar(&format!("cleaning {name}"), 0);
    let answer = call(&paths.control_socket(name), request, |report| {
        if let (Some(done), Some(total)) = (report["lines_done"].as_u64(), report["lines_total"].as_u64()) {
            bar.set_length(total);
            bar.set_position(done);
        }
    })
    .await;
    bar.finish_and_clear();
    answer
}
