//! Why an experiment did not run.

/// Why an experiment did not run.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// It has no model.
    #[error("{0} runs by the real clock only")]
    NoModel(&'static str),
    /// It needs the paper's machines.
    #[error("{0} runs by the virtual clock only: --clock virtual")]
    NoStage(&'static str),
    /// The experiment, and what it needs: a program or a privilege.
    #[error("{0} needs {1}")]
    Needs(&'static str, &'static str),
    /// A device of a model.
    #[error("the modelled device failed: {0}")]
    Device(block::Error),
    /// A program could not be run.
    #[error("cannot run {0}: {1}")]
    Run(String, std::io::Error),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}
