//! A front that ends at once, for tests of a stack whose front fails.

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
    metrics: &[],
};

struct Broken;

/// Makes such a front.
pub(crate) fn broken() -> Box<dyn Front> {
    Box::new(Broken)
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

    fn serve<'a>(&'a self, _: Served, _: LocalBoxFuture<'a, ()>) -> LocalBoxFuture<'a, io::Result<()>> {
        Box::pin(async { Err(io::Error::other("it broke")) })
    }

    fn clients(&self) -> Clients {
        Clients::default()
    }

    fn count(&self, _: &mut FrontCounters) {}
}
