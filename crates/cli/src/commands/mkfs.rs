//! `mkfs`: an empty ext2 on a logical unit or an attachment.

use std::time::SystemTime;

use base::units::ByteSize;
use ext2::{MakeOptions, Timestamp, make};
use serde_json::json;
use stack::{Error, Failure, Result};
use uuid::Uuid;

use super::subject::Subject;
use crate::arguments::Mkfs;
use crate::output::{print_json, print_line};
use crate::settings_arguments::settings;

/// `forebay mkfs`.
pub async fn run(arguments: Mkfs) -> Result<()> {
    let settings = settings(&arguments.login, &arguments.arrange)?;
    let options = options(&arguments)?;
    let subject = Subject::open(&arguments.subject, &settings).await?;
    subject.confirm_overwrite(arguments.allow_data_loss).await?;
    let made = make(&subject.device, &options).await?;
    let size_bytes = u64::from(made.block_count) * made.block_bytes as u64;
    if arguments.json.json {
        print_json(&json!({
            "uuid": options.uuid.to_string(),
            "label": arguments.label,
            "block_bytes": made.block_bytes,
            "blocks": made.block_count,
            "inodes": made.inode_count,
            "groups": made.group_count,
        }));
        return Ok(());
    }
    print_line(&format!(
        "ext2 of {}: {} blocks of {} bytes, {} inodes, UUID {}",
        ByteSize(size_bytes),
        made.block_count,
        made.block_bytes,
        made.inode_count,
        options.uuid
    ));
    Ok(())
}

fn options(arguments: &Mkfs) -> Result<MakeOptions> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = since.map_err(|_| Error::new(Failure::Other, "the clock of this host is before 1970"))?;
    let now = Timestamp { seconds: since.as_secs().cast_signed(), nanoseconds: since.subsec_nanos() };
    let mut options = MakeOptions::new(arguments.uuid.unwrap_or_else(Uuid::new_v4), Uuid::new_v4(), now);
    options.block_bytes = arguments.block_size.map(|size| usize::try_from(size.0).unwrap_or(usize::MAX));
    options.bytes_per_inode = arguments.bytes_per_inode.map(|size| size.0);
    options.label = arguments.label.clone().unwrap_or_default().into_bytes();
    options.reserved_percent = u32::from(arguments.reserved);
    Ok(options)
}
