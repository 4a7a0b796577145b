//! The arguments of `forebay target`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use stack::busy_polling::BusyPolling;
use stack::lun_spec::LunSpec;

use super::json::Json;

#[derive(Debug, Subcommand)]
pub enum Target {
    /// Serve in the foreground until SIGTERM; prints `ready: ADDRESS` for each portal
    Serve(Box<TargetServe>),
    /// Read the configuration file again: targets, logical units, accounts and access change while sessions go on
    Reload(TargetReload),
    /// Say whether a configuration file makes sense, without serving it
    Check(TargetCheck),
    /// Show sessions, connections and logical units
    Status(TargetStatus),
}

#[derive(Debug, Args)]
pub struct TargetServe {
    /// Address to listen on, IPv4 or [IPv6]; more than one may be given
    #[arg(long = "portal", value_name = "ADDRESS:PORT", default_value = "127.0.0.1:3260")]
    pub portals: Vec<SocketAddr>,
    /// The target's name
    #[arg(long, value_name = "IQN", required_unless_present = "config")]
    pub iqn: Option<String>,
    /// A logical unit: NUMBER=ram:SIZE or NUMBER=file:PATH[,size=SIZE][,direct], then [,read-only] [,write-cache]
    /// [,block=512|4096] [,disk=7200rpm] [,seek=DURATION] [,rotation=DURATION] [,transfer=SIZE/s] [,shared]
    #[arg(long = "lun", value_name = "SPEC", required_unless_present = "config")]
    pub luns: Vec<LunSpec>,
    /// A configuration file (TOML) instead of --iqn and --lun
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["iqn", "luns", "chap_user", "chap_file", "mutual_chap_user", "mutual_chap_file"],
    )]
    pub config: Option<PathBuf>,
    /// Ask initiators for this CHAP user's secret
    #[arg(long, value_name = "USER")]
    pub chap_user: Option<String>,
    /// File with the CHAP secret (its first line); or set FOREBAY_CHAP_PASSWORD
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    pub chap_file: Option<PathBuf>,
    /// Who the target proves to be, to initiators that ask for it (mutual CHAP)
    #[arg(long, value_name = "USER", requires = "chap_user")]
    pub mutual_chap_user: Option<String>,
    /// File with the target's own CHAP secret (its first line); or set FOREBAY_MUTUAL_CHAP_PASSWORD
    #[arg(long, value_name = "FILE", requires = "mutual_chap_user")]
    pub mutual_chap_file: Option<PathBuf>,
    /// Serve metrics for Prometheus here, at /metrics; prints `metrics: ADDRESS`
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    /// How long sessions look for commands before they sleep, while few are under way and looking pays (default: auto,
    /// what a wake-up takes)
    #[arg(long, value_name = "auto|off|DURATION")]
    pub busy_poll: Option<BusyPolling>,
    /// Listen on addresses other than this machine's loopback
    #[arg(long)]
    pub allow_remote: bool,
    /// Name for `forebay status` and `forebay target status`
    #[arg(long, default_value = "target")]
    pub name: String,
}

#[derive(Debug, Args)]
pub struct TargetName {
    /// The --name it was started with
    #[arg(default_value = "target")]
    pub name: String,
}

#[derive(Debug, Args)]
pub struct TargetReload {
    #[command(flatten)]
    pub name: TargetName,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct TargetCheck {
    /// The configuration file (TOML)
    pub config: PathBuf,
    /// Allow addresses other than this machine's loopback
    #[arg(long)]
    pub allow_remote: bool,
}

#[derive(Debug, Args)]
pub struct TargetStatus {
    #[command(flatten)]
    pub name: TargetName,
    #[command(flatten)]
    pub json: Json,
}
