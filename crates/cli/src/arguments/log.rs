//! The arguments of `forebay log`.

use std::path::PathBuf;

use base::units::ByteSize;
use clap::{Args, Subcommand};

use super::json::Json;
use crate::settings_arguments::{ArrangementOptions, Given, LoginOptions};

#[derive(Debug, Subcommand)]
pub enum Log {
    /// List the write logs of this host that may hold what their logical units do not have
    List(Json),
    /// Show what a write log holds, for which logical unit
    Inspect(LogPath),
    /// Read everything the logical unit does not have, compare it with its checksums, and name what is damaged
    Check(LogCheck),
    /// Bring everything to the logical unit
    Replay(Box<LogReplay>),
    /// Give up what a write log holds, dirty data too, also of one that is damaged or gone
    Discard(LogDiscard),
}

#[derive(Debug, Args)]
pub struct LogPlace {
    /// The log's file or block device
    pub path: PathBuf,
    /// Where in that it begins (default: it takes all of it)
    #[arg(long, value_name = "BYTES")]
    pub log_offset: Option<ByteSize>,
}

#[derive(Debug, Args)]
pub struct LogPath {
    #[command(flatten)]
    pub place: LogPlace,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct LogCheck {
    #[command(flatten)]
    pub place: LogPlace,
    /// The log's persistent memory, if it has any, or a copy of it: it is checked, too
    #[arg(long, value_name = "PATH")]
    pub nvram: Option<PathBuf>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct LogReplay {
    #[command(flatten)]
    pub place: LogPlace,
    /// The logical unit: iscsi://[USER@]HOST[:PORT]/IQN/LUN; several, separated by commas, as one
    #[arg(value_name = "URL[,URL...]")]
    pub urls: String,
    #[command(flatten)]
    pub arrange: Given<ArrangementOptions>,
    /// The log's persistent memory, if it has any
    #[arg(long, value_name = "PATH")]
    pub nvram: Option<PathBuf>,
    /// What the log has replaces what others have written to the same places since. Without it such a replay is refused
    #[arg(long)]
    pub overwrite_changes: bool,
    #[command(flatten)]
    pub login: Given<LoginOptions>,
}

#[derive(Debug, Args)]
pub struct LogDiscard {
    #[command(flatten)]
    pub place: LogPlace,
    /// Do not ask, even when dirty data is lost
    #[arg(long)]
    pub allow_data_loss: bool,
}
