//! A text of a setting that means the same from whatever directory it is read.

use std::ffi::OsStr;
use std::path::{Path, PathBuf, absolute};

use crate::error::{Error, Failure, Result};
use crate::fronts;
use crate::settings::kind::Kind;
use crate::settings::setting::Setting;

/// The text with its paths from the root on.
///
/// # Errors
/// `Usage` for what is no UTF-8, and for a front that is none.
pub fn rooted(setting: &Setting, text: &OsStr) -> Result<String> {
    let refused = |why: &str| Error::new(Failure::Usage, format!("{} {}: {why}", setting.key, text.to_string_lossy()));
    let is_text =
        |text: &OsStr| text.to_str().map(str::to_owned).ok_or_else(|| refused("a file has text in UTF-8 only"));
    if let Kind::Path = setting.kind {
        let path = absolute(Path::new(text)).map_err(|error| refused(&error.to_string()))?;
        return is_text(path.as_os_str());
    }
    let text = is_text(text)?;
    if setting.key == "front" && text.contains(':') {
        let usual = |kind: &str| PathBuf::from(kind);
        let front = fronts::parse(&text, &usual).map_err(|why| refused(&why))?;
        return Ok(format!("{}:{}", front.kind.name, front.place));
    }
    Ok(text)
}
