//! The option for output as JSON.

use clap::Args;

#[derive(Debug, Args)]
pub struct Json {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}
