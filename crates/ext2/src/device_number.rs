//! Device numbers in inodes: small old ones in the first word, others in the second.

/// Major and minor number in the first two words of an inode.
pub fn parse(first: u32, second: u32) -> (u32, u32) {
    if first != 0 {
        return (first >> 8 & 0xff, first & 0xff);
    }
    (second >> 8 & 0xfff, second & 0xff | second >> 12 & 0xf_ff00)
}

/// The first two words for a device; `None` when its numbers are too large.
pub fn emit(major: u32, minor: u32) -> Option<(u32, u32)> {
    if major < 256 && minor < 256 {
        return Some((major << 8 | minor, 0));
    }
    let fits = major < 1 << 12 && minor < 1 << 20;
    fits.then_some((0, minor & 0xff | major << 8 | (minor & !0xff) << 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_devices_are_read_back() {
        for (major, minor) in [(0, 0), (8, 1), (255, 255), (256, 0), (4095, 0xf_ffff), (8, 256), (259, 70_000)] {
            let (first, second) = emit(major, minor).unwrap();
            assert_eq!(parse(first, second), (major, minor));
        }
        assert_eq!(emit(8, 1), Some((0x801, 0)));
        assert_eq!(emit(0x102, 0x3_0405), Some((0, 0x3041_0205)));
        assert_eq!((emit(4096, 0), emit(0, 1 << 20)), (None, None));
    }
}
