//! What the report shows: two runs, and the words around them.

use crate::closed_loop::Outage;
use crate::measurement::Measurement;
use crate::series::Series;

/// One run, as the report needs it.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// What it ran on, in a few words: `plain iSCSI`.
    pub name: &'a str,
    /// Its figures.
    pub measurement: &'a Measurement,
    /// Its response times.
    pub series: &'a Series,
    /// When the device was away.
    pub outages: &'a [Outage],
}

/// Everything the page shows.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// Heading of the page.
    pub title: &'a str,
    /// A paragraph below it.
    pub introduction: &'a str,
    /// The run without what is to be shown.
    pub plain: Run<'a>,
    /// The run with it.
    pub cached: Run<'a>,
    /// Name and value of whatever else the reader may want to know: seed, machine, version, blocks verified.
    pub facts: Vec<(String, String)>,
}
