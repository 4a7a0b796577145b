//! The arguments of `forebay cache`.

use std::path::PathBuf;
use std::time::Duration;

use base::units::ByteSize;
use clap::{Args, Subcommand};

use super::json::Json;
use super::seconds::parse_seconds;

#[derive(Debug, Subcommand)]
pub enum Cache {
    /// List the caches of this host
    List(CacheList),
    /// Give part of the size of one attachment's cache to another's, while both are used
    Move(CacheMove),
    /// Show what a cache holds, for which logical unit
    Inspect(CachePath),
    /// Read the whole metadata and report damage
    Check(CachePath),
    /// Give up what a cache holds, dirty data too, also of one that is damaged or gone
    Discard(CacheDiscard),
}

#[derive(Debug, Args)]
pub struct CacheList {
    /// Measure for so long what those in use have to do: reads and writes a second, hit ratio, requests in flight
    #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
    pub load: Option<Duration>,
    /// Strike clean caches from the list whose file is gone; one that comes back begins cold
    #[arg(long)]
    pub prune: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct CacheMove {
    /// How much
    pub size: ByteSize,
    /// The attachment whose cache shrinks
    #[arg(long, value_name = "NAME")]
    pub from: String,
    /// The attachment whose cache grows
    #[arg(long, value_name = "NAME")]
    pub to: String,
}

#[derive(Debug, Args)]
pub struct CachePlace {
    /// The cache's file or block device
    pub path: PathBuf,
    /// Where in that it begins (default: it takes all of it)
    #[arg(long, value_name = "BYTES")]
    pub cache_offset: Option<ByteSize>,
}

#[derive(Debug, Args)]
pub struct CachePath {
    #[command(flatten)]
    pub place: CachePlace,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct CacheDiscard {
    #[command(flatten)]
    pub place: CachePlace,
    /// Only what lies beyond the end of a logical unit that became smaller, as large as that was when the cache was
    /// attached last; the rest stays
    #[arg(long)]
    pub beyond_end: bool,
    /// Do not ask, even when dirty data is lost
    #[arg(long)]
    pub allow_data_loss: bool,
}
