//! The one block device call that is an `ioctl` only: `BLKDISCARD`.
//!
//! For everything else there is a call that files have, too: zeroing is `fallocate`, the size is a
//! seek to the end.

#![expect(unsafe_code, reason = "the kernel is handed the address of two numbers")]

use std::fs::File;

use base::range::ByteRange;
use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Setter, opcode};

/// `BLKDISCARD` of `linux/fs.h`: `_IO(0x12, 119)`, over an offset and a length in bytes.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Discards `range`, whole logical blocks. What a read returns afterwards is not defined.
pub(crate) fn discard(file: &File, range: ByteRange) -> Result<(), Errno> {
    // SAFETY: this opcode takes a pointer to two `u64`, which it reads and does not keep; a descriptor that is no block
    // device answers ENOTTY.
    unsafe { ioctl::ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([range.offset, range.length])) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;
    use crate::loop_device::{LoopDevice, may_make_devices};

    #[test]
    fn a_device_gives_back_what_is_discarded() {
        if !may_make_devices() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let backing = folder.path().join("disk");
        let disk = LoopDevice::new(&backing, 8 << 20, 4096);
        let file = File::options().read(true).write(true).open(&disk.path).unwrap();
        file.write_all_at(&[7; 1 << 20], 0).and_then(|()| file.sync_all()).unwrap();
        let allocated = || std::fs::metadata(&backing).unwrap().blocks() * 512;
        assert!(allocated() >= 1 << 20);
        discard(&file, ByteRange { offset: 4096, length: (1 << 20) - 4096 }).unwrap();
        file.sync_all().unwrap();
        assert!(allocated() < 64 << 10, "{} bytes are allocated", allocated());
        let mut first = [0; 4096];
        file.read_exact_at(&mut first, 0).unwrap();
        assert_eq!(first, [7; 4096], "what is outside the range stays");
        assert_eq!(discard(&file, ByteRange { offset: 512, length: 512 }), Err(Errno::INVAL), "blocks are whole");
    }

    #[test]
    fn what_is_no_block_device_says_so() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(discard(&file, ByteRange { offset: 0, length: 512 }), Err(Errno::NOTTY));
    }
}
