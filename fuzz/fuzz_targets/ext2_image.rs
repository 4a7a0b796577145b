//! An ext2 with any damage: opening it, walking through it and changing it end in values, and end.

#![no_main]

use fuzz::damage::device;
use fuzz::ext2_image::{act, images, open, walk};
use fuzz::input::Input;
use libfuzzer_sys::fuzz_target;

const DAMAGES_MAX: usize = 8;
/// Places of damage are in units of so many bytes.
const UNIT_BYTES: usize = 16;

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let flags = input.byte();
    let mut image = images()[usize::from(flags) % images().len()].clone();
    for _ in 0..usize::from(flags / 16) % DAMAGES_MAX {
        let at = usize::from(input.u16()) * UNIT_BYTES % image.len();
        let damage = input.counted_short();
        image[at..].iter_mut().zip(damage).for_each(|(byte, new)| *byte = *new);
    }
    if let Ok(file_system) = open(&device(&image, "E"), true) {
        walk(&file_system);
    }
    if let Ok(file_system) = open(&device(&image, "E"), false) {
        act(&file_system, &mut input);
        walk(&file_system);
    }
});
