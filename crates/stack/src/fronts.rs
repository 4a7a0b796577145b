//! Fronts: how local applications reach a device. One stack may have several, of one kind or of more, each at a place of its own.
//!
//! | module | the front |
//! |---|---|
//! | `nbd` | an NBD server |
//!
//! A front is a file here, and its row in [`KINDS`]. Everything else (what `--as` takes, status, metrics, the beginning and the end) knows it by
//! the row and by [`Front`] only.

use std::path::PathBuf;

use block::SharedDevice;
use front::SocketAccess;
use futures_util::future::LocalBoxFuture;
use serde_json::{Value, json};

use crate::error::{Error, Failure, Result};
use crate::metrics::plain::Plain;

mod nbd;

/// Every kind there is.
pub static KINDS: &[&FrontKind] = &[&nbd::KIND];

/// What is known of a kind of fronts before there is one.
#[derive(Debug)]
pub struct FrontKind {
    /// The word before the colon in `--as`, and the key of its counters in the status.
    pub name: &'static str,
    /// Places it takes, for the help.
    pub places: &'static str,
    /// A place as it is kept, which other commands find from other directories.
    ///
    /// # Errors
    /// Why it is none.
    pub place: fn(&str) -> std::result::Result<String, String>,
    /// Listens there. Who comes waits until it is served.
    ///
    /// # Errors
    /// A place that is taken.
    pub listen: fn(&FrontConfig) -> Result<Box<dyn Front>>,
    /// Families of its counters; each pointer into the status begins with its name.
    pub metrics: &'static [Plain],
}

/// One front as asked for.
#[derive(Clone, Debug)]
pub struct FrontConfig {
    /// Of which kind.
    pub kind: &'static FrontKind,
    /// Where.
    pub place: String,
    /// Who may connect, where it is a socket file.
    pub access: SocketAccess,
    /// Whether it refuses writes.
    pub is_read_only: bool,
}

impl FrontConfig {
    /// What `text` asks for: `KIND:PLACE`, or `auto` for a socket file at `usual`.
    ///
    /// # Errors
    /// Why it asks for nothing.
    pub fn parse(text: &str, usual: PathBuf) -> std::result::Result<Self, String> {
        let kinds = || KINDS.iter().map(|kind| kind.places).collect::<Vec<_>>().join(", ");
        let (kind, place) = match text.split_once(':') {
            None if text == "auto" => (KINDS[0], format!("unix:{}", usual.display())),
            Some((name, place)) => match KINDS.iter().find(|kind| kind.name == name) {
                Some(kind) => (*kind, (kind.place)(place)?),
                None => return Err(format!("use {} or auto", kinds())),
            },
            None => return Err(format!("use {} or auto", kinds())),
        };
        Ok(Self { kind, place, access: SocketAccess::default(), is_read_only: false })
    }
}

/// Applications that a front has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clients {
    /// Now.
    pub open: u64,
    /// Of these, who know another size of the device than it has.
    pub outdated: u64,
}

/// A front that listens, and perhaps serves.
pub trait Front {
    /// Its kind.
    fn kind(&self) -> &'static FrontKind;

    /// Where it listens, in the form of `--as` without the kind.
    fn place(&self) -> String;

    /// Where applications reach it, as they take it.
    fn address(&self) -> String;

    /// Hangs up on the next application that comes.
    fn turn_away(&self) -> LocalBoxFuture<'_, std::io::Result<()>>;

    /// Serves `device` until `stop`, and then until every request that was begun is answered. Called once.
    ///
    /// # Errors
    /// When it cannot go on before that.
    fn serve(self: Box<Self>, device: SharedDevice, stop: LocalBoxFuture<'static, ()>) -> Served;
}
