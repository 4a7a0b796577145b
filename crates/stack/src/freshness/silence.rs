//! A target that says nothing about the changes by others just now: its logical unit is not there,
//! or busy, or the target cannot be reached.
//!
//! That is not the answer that a target keeps no mark: what others did is known there, and asking
//! again tells it. So nobody is told that what is dirty may lie over changes by others, no clean
//! line goes, and no mark: the target is asked again for a time, and after that the use of the
//! logical unit is refused, as it would have been without a login.

use std::future::Future;

use block::ErrorKind;
use tokio::time::{Instant, sleep};

use crate::error::{Error, Result};
use crate::limits::{TELLING_PAUSE_MAX, TELLING_PAUSE_MIN, TELLING_TIME_MAX};

/// Where a request about changes failed.
pub(crate) enum Asked {
    /// On this host.
    Here(Error),
    /// At the target.
    There(block::Error),
}

/// Whether an error of a mark's command says nothing about the changes by others, and another
/// attempt may: it is not the answer of a logical unit that is there and has done with the command.
pub(crate) fn is_silence(error: &block::Error) -> bool {
    use ErrorKind as Kind;
    matches!(error.kind(), Kind::Gone | Kind::NoAccess | Kind::TimedOut | Kind::OutcomeUnknown | Kind::Busy)
}

/// Whether an error of a mark's command is the answer that the target has no mark of ours: it keeps
/// none, has no room for one, or does not know it.
pub(crate) fn is_without_mark(error: &block::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::NotFound)
}

/// The error of a use that ends with this silence, in words for users.
pub(crate) fn silent(error: &block::Error) -> block::Error {
    let words = format!(
        "the target does not say now what others changed in the logical unit, which is not there, or busy: {error}. \
         That says nothing about what is here, which stays as it is: try again when the logical unit is there"
    );
    block::Error::new(ErrorKind::Gone, words)
}

/// Asks until the target says something, for [`TELLING_TIME_MAX`] and as long as the last attempt
/// takes.
///
/// # Errors
/// That of the last attempt; an error that is no silence at once.
pub(crate) async fn ask_until_answered<T, F>(mut ask: impl FnMut() -> F) -> std::result::Result<T, Asked>
where
    F: Future<Output = std::result::Result<T, Asked>>,
{
    let deadline = Instant::now() + TELLING_TIME_MAX;
    let mut pause = TELLING_PAUSE_MIN;
    loop {
        match ask().await {
            Err(Asked::There(error)) if is_silence(&error) && Instant::now() + pause < deadline => {
                if pause == TELLING_PAUSE_MIN {
                    tracing::warn!(%error, "the target does not say now what others changed, and is asked again");
                }
                sleep(pause).await;
                pause = (pause * 2).min(TELLING_PAUSE_MAX);
            }
            answered => return answered,
        }
    }
}

/// What was told, or the error for the user.
///
/// # Errors
/// As the attempts.
pub(crate) fn answered<T>(asked: std::result::Result<T, Asked>) -> Result<T> {
    asked.map_err(|asked| match asked {
        Asked::Here(error) => error,
        Asked::There(error) if is_silence(&error) => silent(&error).into(),
        Asked::There(error) => error.into(),
    })
}
