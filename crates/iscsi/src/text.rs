//! Key=value text, as Login and Text PDUs carry it (RFC 7143 6.1).
//!
//! A pair is `key=value` followed by one null. Pairs may span PDUs: the data segments of a run of PDUs with the C bit
//! set, and of the one that ends it, are one *logical text data segment*. [`TextAssembler`] joins them, [`Keys::parse`]
//! cuts them into pairs, [`Keys::emit`] writes them. What this module keeps true:
//!
//! - no input panics, and none makes it hold more than its limit;
//! - a key is a standard label of at most 63 characters, a value is UTF-8 without null;
//! - no key stands twice in one text, except where the standard repeats it (TargetAddress; TargetName as well in an
//!   answer to SendTargets);
//! - the work grows no faster than the text, and the count of a peer's keys is limited.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::limits::{TEXT_KEY_CHARACTERS_MAX, TEXT_KEYS_MAX, TEXT_VALUE_BYTES_MAX};

/// The reserved answer for a key that the acceptor does not know.
pub const NOT_UNDERSTOOD: &str = "NotUnderstood";
/// The reserved answer for a key that another key made meaningless.
pub const IRRELEVANT: &str = "Irrelevant";
/// The reserved answer for a value the acceptor cannot take.
pub const REJECT: &str = "Reject";
/// The reserved list item for a missing function.
pub const NONE: &str = "None";

/// Accepted nulls after the last pair: the padding of a data segment.
const PADDING_BYTES_MAX: usize = 4;

/// Why a text is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text exceeds the receiver's limit.
    #[error("a text of more than {bytes_max} bytes")]
    TooLong {
        /// The receiver's limit.
        bytes_max: usize,
    },
    /// The last pair has no null after it.
    #[error("the last key=value pair does not end in a null")]
    Unterminated,
    /// A pair is not UTF-8.
    #[error("a key=value pair is not UTF-8")]
    NotUtf8,
    /// A pair has no equals sign.
    #[error("\"{0}\" has no equals sign")]
    NoValue(String),
    /// The text before the equals sign is not a key.
    #[error("\"{0}\" is not a key: a key is a letter and up to 62 letters, digits and .-+@_#")]
    BadKey(String),
    /// A value above [`TEXT_VALUE_BYTES_MAX`].
    #[error("the value of {0} is too long")]
    LongValue(String),
    /// A key that stands twice.
    #[error("{0} is given twice")]
    Duplicate(String),
    /// More pairs than the receiver accepts.
    #[error("a text of more than {keys_max} keys")]
    TooManyKeys {
        /// The receiver's limit.
        keys_max: usize,
    },
}

/// Pairs in the order in which they were sent or will be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    pairs: Vec<(String, String)>,
}

impl Keys {
    /// No pairs.
    pub fn new() -> Self {
        Self::default()
    }

    /// The pairs of one logical text data segment.
    ///
    /// # Errors
    /// What [`TextError`] lists; a key that stands twice is one, TargetAddress excepted (RFC 7143 6.3), and so are more
    /// than [`TEXT_KEYS_MAX`] of them.
    pub fn parse(text: &[u8]) -> Result<Self, TextError> {
        Self::parse_few(text, TEXT_KEYS_MAX)
    }

    /// The pairs of one logical text data segment that has `keys_max` of them at most.
    ///
    /// # Errors
    /// As [`Keys::parse`].
    pub fn parse_few(text: &[u8], keys_max: usize) -> Result<Self, TextError> {
        Self::parse_with::<&str>(text, &["TargetAddress"], keys_max)
    }

    /// The pairs of an answer to SendTargets, where TargetName repeats as well (RFC 7143 appendix C).
    ///
    /// # Errors
    /// As [`Keys::parse`], but for their count: the bytes of the answer bound it.
    pub fn parse_send_targets(text: &[u8]) -> Result<Self, TextError> {
        Self::parse_with::<&str>(text, &["TargetAddress", "TargetName"], usize::MAX)
    }

    /// `K` is what keys are compared as.
    fn parse_with<'a, K: Ord + From<&'a str>>(
        text: &'a [u8],
        repeatable: &[&str],
        keys_max: usize,
    ) -> Result<Self, TextError> {
        let mut keys = Self::new();
        let mut seen = BTreeSet::<K>::new();
        let Some((last, text)) = text.split_last() else { return Ok(keys) };
        if *last != 0 {
            return Err(TextError::Unterminated);
        }
        // Counting nulls costs less than parsing a handful of keys.
        if text.iter().filter(|&&byte| byte == 0).count() >= keys_max.saturating_add(PADDING_BYTES_MAX) {
            return Err(TextError::TooManyKeys { keys_max });
        }
        // Some initiators count their padding into the segment: empty items are skipped.
        for item in text.split(|&byte| byte == 0).filter(|item| !item.is_empty()) {
            let (key, value) = parse_pair(item)?;
            if keys.len() >= keys_max {
                return Err(TextError::TooManyKeys { keys_max });
            }
            if !repeatable.contains(&key) && !seen.insert(K::from(key)) {
                return Err(TextError::Duplicate(key.to_owned()));
            }
            keys.push(key, value);
        }
        Ok(keys)
    }

    /// The pairs as bytes, each with its null.
    pub fn emit(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.pairs.iter().map(|(key, value)| key.len() + value.len() + 2).sum());
        for (key, value) in &self.pairs {
            text.extend_from_slice(key.as_bytes());
            text.push(b'=');
            text.extend_from_slice(value.as_bytes());
            text.push(0);
        }
        text
    }

    /// Adds a pair at the end.
    pub fn push(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.pairs.push((key.into(), value.into()));
    }

    /// Adds all of `other` at the end.
    pub fn append(&mut self, mut other: Self) {
        self.pairs.append(&mut other.pairs);
    }

    /// The first value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Count of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Keys {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self { pairs: pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect() }
    }
}

fn parse_pair(item: &[u8]) -> Result<(&str, &str), TextError> {
    let item = std::str::from_utf8(item).map_err(|_| TextError::NotUtf8)?;
    let (key, value) = item.split_once('=').ok_or_else(|| TextError::NoValue(excerpt(item)))?;
    if !is_key(key) {
        return Err(TextError::BadKey(excerpt(key)));
    }
    if value.len() > TEXT_VALUE_BYTES_MAX {
        return Err(TextError::LongValue(key.to_owned()));
    }
    Ok((key, value))
}

/// Whether `name` is a standard label (RFC 7143 6.1), or one of the two kinds of key outside its letters: `X#...` and
/// `iSCSIProtocolLevel`, which the standards themselves define.
fn is_key(name: &str) -> bool {
    let is_label = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+' | '@' | '_' | '#');
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.len() <= TEXT_KEY_CHARACTERS_MAX
        && name.chars().all(is_label)
}

/// Enough of a peer's text to recognise it in an error.
fn excerpt(text: &str) -> String {
    text.chars().take(TEXT_KEY_CHARACTERS_MAX).filter(|c| !c.is_control()).collect()
}

/// Joins the data segments of a run of PDUs into one logical text data segment.
#[derive(Debug)]
pub struct TextAssembler {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl TextAssembler {
    /// An assembler that holds at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), bytes_max }
    }

    /// Takes the segment of one PDU; with its C bit clear, gives the whole text and starts anew.
    ///
    /// # Errors
    /// `TooLong`; what was held is dropped.
    pub fn handle_segment(&mut self, segment: &[u8], continues: bool) -> Result<Option<Vec<u8>>, TextError> {
        if self.bytes.len() + segment.len() > self.bytes_max {
            self.bytes = Vec::new();
            return Err(TextError::TooLong { bytes_max: self.bytes_max });
        }
        self.bytes.extend_from_slice(segment);
        Ok((!continues).then(|| std::mem::take(&mut self.bytes)))
    }
}

/// Cuts a text that is longer than one PDU may carry: all pieces but the last go out with the C bit set.
/// An empty text is one empty piece.
pub fn segments(text: &[u8], segment_bytes_max: usize) -> impl Iterator<Item = (&[u8], bool)> {
    let count = text.len().div_ceil(segment_bytes_max.max(1)).max(1);
    (0..count).map(move |index| {
        let start = index * segment_bytes_max;
        let end = text.len().min(start + segment_bytes_max);
        (&text[start..end], index + 1 < count)
    })
}

/// A numerical-value: decimal without leading zeroes, or hexadecimal after `0x` (RFC 7143 6.1).
pub fn parse_number(value: &str) -> Option<u64> {
    if let Some(digits) = strip_prefix(value, "0x") {
        let is_hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        return is_hex.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    }
    let is_decimal = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    (is_decimal && (value == "0" || !value.starts_with('0'))).then(|| value.parse().ok()).flatten()
}

/// A boolean-value.
pub fn parse_boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// `Yes` or `No`.
pub fn boolean(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// A binary-value: hexadecimal after `0x` or base64 after `0b` (RFC 7143 6.1). An odd hexadecimal digit is the low half
/// of the first byte. At most `bytes_max` bytes.
pub fn parse_binary(value: &str, bytes_max: usize) -> Option<Vec<u8>> {
    let bytes = if let Some(digits) = strip_prefix(value, "0x") {
        parse_hexadecimal(digits)?
    } else {
        BASE64.decode(strip_prefix(value, "0b")?).ok()?
    };
    (!bytes.is_empty() && bytes.len() <= bytes_max).then_some(bytes)
}

/// `bytes` as a hex-constant.
pub fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("0x");
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a string grows");
    }
    text
}

fn parse_hexadecimal(digits: &str) -> Option<Vec<u8>> {
    let nibbles: Option<Vec<u8>> = digits.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let nibbles = nibbles?;
    let (odd, pairs) = nibbles.split_at(nibbles.len() % 2);
    Some(odd.iter().copied().chain(pairs.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1])).collect())
}

fn strip_prefix<'a>(value: &'a str, prefix: &str) -> Option<&'a str> {
    let (head, tail) = value.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(tail)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let keys: Keys =
            [("InitiatorName", "iqn.2026-01.io.forebay:a"), ("AuthMethod", "CHAP,None")].into_iter().collect();
        let text = keys.emit();
        assert_eq!(text, b"InitiatorName=iqn.2026-01.io.forebay:a\0AuthMethod=CHAP,None\0");
        assert_eq!(Keys::parse(&text), Ok(keys));
    }

    #[test]
    fn a_value_may_hold_equals_signs_and_be_empty() {
        let keys = Keys::parse(b"CHAP_R=0bAQ==\0TargetAlias=\0").unwrap();
        assert_eq!(keys.get("CHAP_R"), Some("0bAQ=="));
        assert_eq!(keys.get("TargetAlias"), Some(""));
    }

    #[test]
    fn texts_that_are_refused() {
        for (text, error) in [
            (&b"MaxBurstLength=1"[..], TextError::Unterminated),
            (b"MaxBurstLength\0", TextError::NoValue("MaxBurstLength".into())),
            (b"=1\0", TextError::BadKey(String::new())),
            (b"9Lives=1\0", TextError::BadKey("9Lives".into())),
            (b"A=\xff\0", TextError::NotUtf8),
            (b"A=1\0A=2\0", TextError::Duplicate("A".into())),
            (b"TargetName=a\0TargetName=b\0", TextError::Duplicate("TargetName".into())),
        ] {
            assert_eq!(Keys::parse(text), Err(error));
        }
        let long_key = [b'A'; 64].iter().copied().chain(*b"=1\0").collect::<Vec<_>>();
        assert!(matches!(Keys::parse(&long_key), Err(TextError::BadKey(_))));
    }

    /// Before authentication, from any client: each key would be compared with all others.
    #[test]
    fn a_text_of_many_keys_is_refused() {
        let text = |count: usize| (0..count).map(|number| (format!("X-{number}"), "")).collect::<Keys>().emit();
        assert_eq!(Keys::parse(&text(TEXT_KEYS_MAX)).map(|keys| keys.len()), Ok(TEXT_KEYS_MAX));
        assert_eq!(Keys::parse(&text(TEXT_KEYS_MAX + 1)), Err(TextError::TooManyKeys { keys_max: TEXT_KEYS_MAX }));
    }

    thread_local! {
        static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    }

    /// A key whose comparisons with others are counted.
    struct Counted<'a>(&'a str);

    impl<'a> From<&'a str> for Counted<'a> {
        fn from(key: &'a str) -> Self {
            Self(key)
        }
    }

    impl Ord for Counted<'_> {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(other.0)
        }
    }

    impl PartialOrd for Counted<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Eq for Counted<'_> {}

    /// An answer to SendTargets may be long; with each key compared to each it would take as long as nobody waits.
    #[test]
    fn what_a_long_answer_to_send_targets_takes_grows_with_its_length() {
        let text_of = |count: u32| (0..count).map(|number| (format!("X-{number}"), "")).collect::<Keys>().emit();
        let comparisons_of = |count: u32| {
            COMPARISONS.set(0);
            let keys = Keys::parse_with::<Counted>(&text_of(count), &[], usize::MAX);
            assert_eq!(keys.map(|keys| keys.len()), Ok(count as usize));
            COMPARISONS.get()
        };
        // Twenty times as many keys, in a tree that is somewhat higher; with each compared to each it would be 400.
        let (short, long) = (comparisons_of(500), comparisons_of(10_000));
        assert!(long < short * 40, "{short}, and {long} for twenty times as many");
        let text = text_of(50_000);
        let twice = [text, b"X-7=\0".to_vec()].concat();
        assert_eq!(Keys::parse_send_targets(&twice), Err(TextError::Duplicate("X-7".into())));
    }

    #[test]
    fn send_targets_repeats_names_and_addresses() {
        let keys = Keys::parse_send_targets(b"TargetName=a\0TargetAddress=h:1,1\0TargetName=b\0TargetAddress=h:2,1\0");
        assert_eq!(keys.unwrap().len(), 4);
    }

    #[test]
    fn padding_counted_into_the_segment_is_forgiven() {
        assert_eq!(Keys::parse(b"A=1\0\0\0").unwrap().len(), 1);
    }

    #[test]
    fn numbers() {
        for (text, number) in [("0", Some(0)), ("8192", Some(8192)), ("0x1F", Some(31)), ("0Xff", Some(255))] {
            assert_eq!(parse_number(text), number, "{text}");
        }
        for text in ["", "-1", "+1", "007", "0x", "0x+1", "18446744073709551616", "1~2", "é", "0é"] {
            assert_eq!(parse_number(text), None, "{text}");
        }
    }

    #[test]
    fn binary_values() {
        assert_eq!(parse_binary("0x0aFF", 16), Some(vec![0x0a, 0xff]));
        assert_eq!(parse_binary("0xabc", 16), Some(vec![0x0a, 0xbc]));
        assert_eq!(parse_binary("0bAQID", 16), Some(vec![1, 2, 3]));
        for text in ["", "0x", "0xzz", "0b*", "12", "0x010203"] {
            assert_eq!(parse_binary(text, 2), None, "{text}");
        }
        assert_eq!(hexadecimal(&[0x0a, 0xff]), "0x0aff");
    }

    proptest! {
        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Keys::parse(&bytes);
        }

        #[test]
        fn what_is_emitted_and_cut_is_assembled_and_parsed(
            values in proptest::collection::vec("[a-zA-Z0-9.,:=/\\[\\] é]{0,40}", 0..20),
            segment_bytes_max in 1usize..100,
        ) {
            let keys: Keys = values.iter().enumerate().map(|(index, value)| (format!("K{index}"), value)).collect();
            let text = keys.emit();
            let mut assembler = TextAssembler::new(text.len());
            let mut assembled = None;
            for (segment, continues) in segments(&text, segment_bytes_max) {
                prop_assert!(segment.len() <= segment_bytes_max);
                prop_assert!(assembled.is_none());
                assembled = assembler.handle_segment(segment, continues).unwrap();
            }
            prop_assert_eq!(Keys::parse(&assembled.unwrap()), Ok(keys));
        }

        #[test]
        fn binary_survives(bytes in proptest::collection::vec(any::<u8>(), 1..100)) {
            prop_assert_eq!(parse_binary(&hexadecimal(&bytes), 100), Some(bytes));
        }
    }

    #[test]
    fn an_endless_text_is_cut_off() {
        let mut assembler = TextAssembler::new(10);
        assert_eq!(assembler.handle_segment(&[b'A'; 8], true), Ok(None));
        assert!(!assembler.bytes.is_empty());
        assert_eq!(assembler.handle_segment(&[b'A'; 8], true), Err(TextError::TooLong { bytes_max: 10 }));
        assert!(assembler.bytes.is_empty());
    }
}
