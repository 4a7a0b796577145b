//! A front that ends at once, or cannot even be opened, for tests of a stack whose front fails.

use std::io;

use futures_util::future::LocalBoxFuture;

use super::kind::{Clients, Front, FrontKind, Served};
use crate::error::{Error, Failure};
use crate::status::fronts::FrontCounters;

static KIND: FrontKind = FrontKind {
    name: "broken",
    places: "broken:nowhere",
    place: |text| Ok(text.to_owned()),
    usual: |_| Err("it is broken".to_owned()),
    listen: |_| Err(Error::new(Failure::Other, "it cannot listen")),
    users: |place, count| format!("{count} of {place}"),
    metrics: &[],
};

struct Broken {
    opens: bool,
}

/// A front that ends at once.
pub(crate) fn broken() -> Box<dyn Front> {
    Box::new(Broken { opens: true })
}

/// A front that cannot be opened.
pub(crate) fn unopenable() -> Box<dyn Front> {
    Box::new(Broken { opens: false })
}

impl Front for Broken {
    fn kind(&self) -> &'static FrontKind {
        &KIND
    }

    fn place(&self) -> String {
        "nowhere".to_owned()
    }

    fn address(&self) -> String {
        "broken://nowhere".to_owned()
    }

    fn open(&self, _: &Served) -> io::Result<()> {
        if self.opens { Ok(()) } else { Err(io::Error::other("it does not open")) }
    }

    fn serve<'a>(&'a self, _: Served, _: LocalBoxFuture<'a, ()>) -> LocalBoxFuture<'a, io::Result<()>> {
        Box::pin(async { Err(io::Error::other("it broke")) })
    }

    fn clients(&self) -> Clients {
        Clients::default()
    }

    fn count(&self, _: &mut FrontCounters) {}
}
