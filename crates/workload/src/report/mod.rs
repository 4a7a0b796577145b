//! The demo's report: one HTML page without other files.
//!
//! A table of the two runs beside the iCache paper's figures, and four plots as inline SVG. No script, no font, no
//! image, no reference to anything outside; dark and light follow the reader's system. Every text from outside is
//! escaped.

mod contents;
mod error;
mod escape;
mod page;
mod plots;
mod table;

pub use contents::{Report, Run};
pub use error::ReportError;
pub use table::{Row, comparison, rate_in_words, share_in_words, time_in_words};

impl Report<'_> {
    /// The page.
    ///
    /// # Errors
    /// When a plot could not be drawn.
    pub fn to_html(&self) -> Result<String, ReportError> {
        page::html(self)
    }
}
