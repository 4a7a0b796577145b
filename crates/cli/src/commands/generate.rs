//! `generate`: manual pages, reference pages and completions, from the definition that also gives the parser.

mod manual;
mod page;
mod reference;

use std::path::Path;

use stack::{Error, Result};

use crate::arguments::Generate;
use crate::guidance::command;

use page::Page;

/// `forebay generate man|reference|completions`.
pub fn run(arguments: Generate) -> Result<()> {
    match arguments {
        Generate::Man { directory } => write_pages(&directory, manual::pages()),
        Generate::Reference { directory } => write_pages(&directory, reference::pages()),
        Generate::Completions { shell } => {
            clap_complete::generate(shell, &mut command(), "forebay", &mut std::io::stdout());
            Ok(())
        }
    }
}

fn write_pages(directory: &Path, pages: Vec<Page>) -> Result<()> {
    let context = |error: &std::io::Error| Error::io(format!("cannot write pages to {}", directory.display()), error);
    std::fs::create_dir_all(directory).map_err(|error| context(&error))?;
    for (name, text) in pages {
        std::fs::write(directory.join(name), text).map_err(|error| context(&error))?;
    }
    Ok(())
}
