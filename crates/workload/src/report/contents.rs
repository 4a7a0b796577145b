//! The contents of the report: two runs, and its texts.

use crate::closed_loop::Outage;
use crate::measurement::Measurement;
use crate::series::Series;

/// One run in the report.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Its setup, in a few words: `plain iSCSI`.
    pub name: &'a str,
    /// Its figures.
    pub measurement: &'a Measurement,
    /// Its response times.
    pub series: &'a Series,
    /// Times without a working device.
    pub outages: &'a [Outage],
}

/// The contents of the page.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// Heading of the page.
    pub title: &'a str,
    /// A paragraph below it.
    pub introduction: &'a str,
    /// The run without the cache.
    pub plain: Run<'a>,
    /// The run with it.
    pub cached: Run<'a>,
    /// Names and values of other facts: seed, machine, version, blocks verified.
    pub facts: Vec<(String, String)>,
}
