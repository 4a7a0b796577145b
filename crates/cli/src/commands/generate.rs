//! `generate`: manual pages and completions, from the definition that also gives the parser.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use stack::{Error, Result};

use crate::arguments::{Arguments, Generate};

/// `forebay generate man|completions`.
pub fn run(arguments: Generate) -> Result<()> {
    match arguments {
        Generate::Man { directory } => write_manual(&directory),
        Generate::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "forebay", &mut std::io::stdout());
            Ok(())
        }
    }
}

fn write_manual(directory: &Path) -> Result<()> {
    let context =
        |error: &std::io::Error| Error::io(format!("cannot write manual pages to {}", directory.display()), error);
    fs::create_dir_all(directory).map_err(|error| context(&error))?;
    clap_mangen::generate_to(Arguments::command(), directory).map_err(|error| context(&error))
}
