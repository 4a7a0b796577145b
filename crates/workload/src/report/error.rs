//! The error of the report.

/// A plot could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the plot of {plot} could not be drawn: {reason}")]
pub struct ReportError {
    pub(super) plot: &'static str,
    pub(super) reason: String,
}
