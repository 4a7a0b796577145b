//! What people type: sizes, portals, URLs, LUN specifications. What is understood prints as something that is
//! understood the same.

#![no_main]

use std::fmt::{Debug, Display};
use std::str::FromStr;

use base::units::ByteSize;
use iscsi::url::{LUN_MAX, Portal, Url, UrlError};
use libfuzzer_sys::fuzz_target;

// The file alone: the crate around it would bring a runtime and the operating system into this build.
#[allow(dead_code)] // What tells files apart matters to the crate only.
#[path = "../../crates/stack/src/lun_spec.rs"]
mod lun_spec;

use lun_spec::{LunSpec, parse_duration};

fn check<T: FromStr<Err: Display> + Display + PartialEq + Debug>(text: &str) -> Option<T> {
    match text.parse::<T>() {
        Ok(value) => {
            let printed = value.to_string();
            match printed.parse::<T>() {
                Ok(again) => assert_eq!(value, again, "{text:?} printed as {printed:?}"),
                Err(error) => panic!("{text:?} prints as {printed:?}, which is refused: {error}"),
            }
            Some(value)
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    check::<ByteSize>(text);
    check::<Portal>(text);
    if let Some(url) = check::<Url>(text) {
        assert!(url.lun <= LUN_MAX && url.portal.port != 0);
        assert!(iscsi::url::is_iscsi_name(&url.target));
    }
    if let Err(error @ UrlError::Password) = text.parse::<Url>() {
        let password = text.split([':', '%', '@']).nth(2).unwrap_or_default();
        assert!(password.len() < 60 || !error.to_string().contains(password), "a password is not repeated");
    }
    if let Some(spec) = check::<LunSpec>(text) {
        assert!(matches!(spec.block_bytes, 512 | 4096));
    }
    let _ = parse_duration(text);
});
