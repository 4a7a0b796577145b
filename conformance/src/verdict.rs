//! How a behaviour ends.

/// What stops a behaviour before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The target does otherwise than the standard says.
    Fail(String),
    /// It cannot be tried here.
    Skip(String),
}

/// The end of a behaviour.
pub type Outcome<T = ()> = Result<T, Stop>;

/// A failure.
pub fn fail<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Stop::Fail(why.into()))
}

/// A skip.
pub fn skip<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Stop::Skip(why.into()))
}

/// Fails unless it is so.
pub fn ensure(is_so: bool, why: impl Into<String>) -> Outcome {
    if is_so { Ok(()) } else { fail(why) }
}

/// Fails unless both are the same.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T) -> Outcome {
    if got == want { Ok(()) } else { fail(format!("{what} is {got:?}, not {want:?}")) }
}
