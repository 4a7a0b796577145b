//! The demo's report: one HTML page that needs nothing else.
//!
//! A table of the two runs beside the iCache paper's figures, and four plots as inline SVG. No script, no font, no
//! image, no reference to anything outside; dark and light follow the reader's system. Every text from outside is
//! escaped.

mod page;
mod plots;
mod table;

use crate::closed_loop::Outage;
use crate::measurement::Measurement;
use crate::series::Series;

pub use table::{Row, comparison, rate_in_words, share_in_words, time_in_words};

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

/// A plot could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the plot of {plot} could not be drawn: {reason}")]
pub struct ReportError {
    plot: &'static str,
    reason: String,
}

impl Report<'_> {
    /// The page.
    ///
    /// # Errors
    /// A plot that could not be drawn.
    pub fn to_html(&self) -> Result<String, ReportError> {
        page::html(self)
    }
}
