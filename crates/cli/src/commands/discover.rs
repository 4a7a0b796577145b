//! `discover`: the targets that a portal offers.

use initiator::DiscoveredTarget;
use serde_json::{Value, json};
use stack::remote::discover;
use stack::{Error, Failure, Result};

use crate::arguments::Discover;
use crate::output::{plain, print_json, print_line};
use crate::settings_arguments::{Given, settings};

/// `forebay discover`.
pub async fn run(arguments: Discover) -> Result<()> {
    let portal = arguments.portal.parse().map_err(|error: iscsi::url::UrlError| {
        Error::new(Failure::Usage, format!("\"{}\": {error}", arguments.portal))
    })?;
    let targets = discover(&portal, &settings(&arguments.login, &Given::default())?).await?;
    if arguments.json.json {
        let targets: Vec<Value> =
            targets.iter().map(|target| json!({ "name": target.name, "addresses": addresses(target) })).collect();
        print_json(&json!({ "targets": targets }));
        return Ok(());
    }
    for target in &targets {
        print_line(&plain(&target.name));
        for address in addresses(target) {
            print_line(&format!("    {}", plain(&address)));
        }
    }
    Ok(())
}

/// ADDRESS:PORT,GROUP as RFC 7143 13.8 writes them.
fn addresses(target: &DiscoveredTarget) -> Vec<String> {
    let group = |tag: Option<u16>| tag.map_or_else(String::new, |tag| format!(",{tag}"));
    target.addresses.iter().map(|address| format!("{}{}", address.portal, group(address.portal_group_tag))).collect()
}
