//! The target's configuration file: any text is a configuration or one line that says where it is none. The logical
//! units of a configuration print as specifications that are understood the same.

#![no_main]

use libfuzzer_sys::fuzz_target;

// The files alone: the crate around them would bring a runtime and the operating system into this build.
#[allow(dead_code)] // What it bounds matters to the crate only.
#[path = "../../crates/stack/src/limits_table.rs"]
mod limits_table;
#[path = "../../crates/stack/src/lun_mask.rs"]
mod lun_mask;
#[allow(dead_code)] // What tells files apart matters to the crate only.
#[path = "../../crates/stack/src/lun_spec.rs"]
mod lun_spec;
#[allow(dead_code)] // Names and secrets matter to the crate only.
#[path = "../../crates/stack/src/target_file.rs"]
mod target_file;

use lun_spec::LunSpec;
use target_file::TargetFile;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match TargetFile::parse(text) {
        Ok(file) => {
            for lun in file.target.iter().flat_map(|target| &target.luns) {
                let printed = lun.to_string();
                assert_eq!(printed.parse::<LunSpec>().as_ref(), Ok(lun), "{printed:?}");
                assert!(matches!(lun.block_bytes, 512 | 4096));
            }
            for mask in file.target.iter().flat_map(|target| &target.initiator).flat_map(|it| it.luns.iter().flatten())
            {
                assert_eq!(mask.to_string().parse(), Ok(*mask));
            }
        }
        Err(error) => {
            let said = error.to_string();
            assert!(!said.chars().any(char::is_control), "{said:?} is one line");
            assert!((1..=text.matches('\n').count() + 1).contains(&error.line), "{said}");
        }
    }
});
