//! iSCSI names (RFC 7143 4.2.7, RFC 3722), and peers' texts in logs and on terminals.
//!
//! | type | after the type |
//! |---|---|
//! | `iqn.` | a year and a month, a dot, a naming authority, and mostly a colon and a text that the authority chose |
//! | `eui.` | 16 hexadecimal digits |
//! | `naa.` | 16 or 32 hexadecimal digits |
//!
//! A name is letters, digits, dots, dashes and colons. Letters and digits may be any of Unicode's;
//! comparisons fold capitals.

use std::borrow::Cow;

use crate::limits::NAME_BYTES_MAX;

/// A name for the wire: a type in capitals, as only a person writes it, becomes lower case (RFC
/// 3722 section 2: case folds). The rest stays, because there are targets that compare names byte
/// by byte.
pub fn canonical(name: &str) -> Cow<'_, str> {
    let has_capitals = name.get(..4).is_some_and(|kind| kind.bytes().any(|byte| byte.is_ascii_uppercase()));
    if has_capitals { Cow::Owned(name.to_lowercase()) } else { Cow::Borrowed(name) }
}

/// A name for comparisons, however it was written (RFC 7143 4.2.7.2, RFC 3722 section 2).
pub fn folded(name: &str) -> String {
    name.to_lowercase()
}

/// Whether `name` is an iSCSI name.
pub fn is_valid(name: &str) -> bool {
    if name.len() > NAME_BYTES_MAX {
        return false;
    }
    let Some((kind, rest)) = name.split_at_checked("iqn.".len()) else { return false };
    let is_hexadecimal = rest.bytes().all(|byte| byte.is_ascii_hexdigit());
    match kind.to_ascii_lowercase().as_str() {
        "iqn." => is_qualified(rest),
        "eui." => is_hexadecimal && rest.len() == 16,
        "naa." => is_hexadecimal && matches!(rest.len(), 16 | 32),
        _ => false,
    }
}

/// `yyyy-mm.authority`, followed by anything that a name may contain.
fn is_qualified(rest: &str) -> bool {
    let Some((date, authority)) = rest.split_once('.') else { return false };
    let is_date = date.split_once('-').is_some_and(|(year, month)| {
        let are_digits = |text: &str, count| text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
        are_digits(year, 4) && are_digits(month, 2)
    });
    let is_allowed = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | ':');
    is_date && authority.starts_with(char::is_alphanumeric) && authority.chars().all(is_allowed)
}

/// A peer's text for a log or a terminal: control characters and characters that change the writing
/// direction are escaped.
pub fn printable(text: &str) -> String {
    let is_harmless = |c: char| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric();
    text.chars().flat_map(|c| if is_harmless(c) { vec![c] } else { c.escape_unicode().collect() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_used() {
        for name in [
            "iqn.1993-08.org.debian:01:abcdef",
            "iqn.1991-05.com.microsoft:HOST-7",
            "iqn.1998-01.com.vmware:esx-1",
            "iqn.2001-04.com.example",
            "iqn.2001-04.com.example:storage.disk2.sys1.xyz",
            "iqn.2026-01.io.example:\u{fc}ber",
            "eui.02004567A425678D",
            "naa.52004567BA64678D",
            "naa.62004567BA64678D0123456789ABCDEF",
        ] {
            assert!(is_valid(name), "{name}");
        }
    }

    #[test]
    fn words_that_are_no_names() {
        let long = format!("iqn.2026-01.io.example:{}", "a".repeat(NAME_BYTES_MAX));
        for name in [
            "",
            "host",
            "iqn.",
            "iqn.x",
            "iqn.2026-01",
            "iqn.2026-01.",
            "iqn.2026-1.io.example",
            "iqn.2026-01.io.example:a b",
            "iqn.2026-01.io.example:a\nsession began",
            "iqn.2026-01.io.example:\u{1b}[2J",
            "iqn.2026-01.io.example:a,i,0x1",
            "iqn.2026-01.io.example:a\u{202e}b",
            "eui.02004567",
            "naa.52004567BA64678",
            long.as_str(),
        ] {
            assert!(!is_valid(name), "{name:?}");
        }
    }

    #[test]
    fn names_are_compared_without_their_capitals() {
        assert_eq!(folded("iqn.2026-01.io.example:\u{dc}BER"), folded("IQN.2026-01.IO.example:\u{fc}ber"));
        assert_eq!(
            canonical("iqn.2026-01.io.example:Disk"),
            "iqn.2026-01.io.example:Disk",
            "and sent as they were written"
        );
    }

    #[test]
    fn what_is_printed_is_one_harmless_line() {
        assert_eq!(printable("iqn.2026-01.io.example:a b"), "iqn.2026-01.io.example:a b");
        assert_eq!(printable("a\n\u{1b}[2J\u{202e}"), "a\\u{a}\\u{1b}[2J\\u{202e}");
    }
}
