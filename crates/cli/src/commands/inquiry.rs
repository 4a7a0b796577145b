//! `inquiry`: the identity and the parameters of a logical unit.

use std::sync::Arc;

use base::clock::Clock;
use base::units::ByteSize;
use block::Device;
use serde_json::json;
use stack::Result;
use stack::remote::RemoteConfig;
use stack::time::system_clock;

use crate::arguments::Inquiry;
use crate::output::{plain, print_json, print_line};
use crate::settings_arguments::{Given, settings};

/// `forebay inquiry`.
pub async fn run(arguments: Inquiry) -> Result<()> {
    let clock: Arc<dyn Clock> = system_clock()?;
    let settings = settings(&arguments.login, &Given::default())?;
    let remote = RemoteConfig::of(&arguments.url, &settings)?.connect(&clock).await?;
    let (identity, geometry) = (remote.identity(), remote.geometry());
    if arguments.json.json {
        print_json(&json!({
            "target": identity.target,
            "unit": identity.unit,
            "serial": identity.serial,
            "size_bytes": geometry.size_bytes,
            "logical_block_bytes": geometry.logical_block_bytes,
            "physical_block_bytes": geometry.physical_block_bytes,
            "write_cache": geometry.is_write_cache_volatile,
            "read_only": geometry.is_read_only,
            "discard_granularity_bytes": geometry.discard_granularity_bytes,
            "transfer_bytes_max": geometry.transfer_bytes_max,
        }));
    } else {
        let yes = |flag: bool| if flag { "yes" } else { "no" };
        let discard = geometry.discard_granularity_bytes;
        print_line(&format!("target        {}", plain(&identity.target)));
        print_line(&format!("unit          {}", plain(&identity.unit)));
        print_line(&format!("serial        {}", plain(&identity.serial)));
        print_line(&format!("size          {} ({} bytes)", ByteSize(geometry.size_bytes), geometry.size_bytes));
        print_line(&format!(
            "blocks        {} logical, {} physical",
            geometry.logical_block_bytes, geometry.physical_block_bytes
        ));
        print_line(&format!("write cache   {}", yes(geometry.is_write_cache_volatile)));
        print_line(&format!("read-only     {}", yes(geometry.is_read_only)));
        print_line(&format!("discard       {}", discard.map_or("no".to_owned(), |bytes| format!("by {bytes} bytes"))));
    }
    remote.close().await?;
    Ok(())
}
