//! The kernel's requests for a FUSE file, and their answers.
//!
//! The file has the device's length, which `O_TRUNC` and `ftruncate` do not change; nor do its
//! name, owner and mode change. It is opened for direct I/O: the kernel keeps no pages of it, so
//! several openers and other fronts of one device see the same data. Shared maps of it work where
//! the kernel allows them beside direct I/O (6.6 and later).

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;
use tokio::runtime::Handle;

use super::openers::Openers;
use super::work::Work;
use crate::limits::{FUSE_BACKGROUND_MAX, STEP_BYTES};

/// The file's owner and permissions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ownership {
    pub(super) user: u32,
    pub(super) group: u32,
    /// Permission bits.
    pub(super) mode: u16,
}

/// The handler of the kernel's requests.
pub(super) struct Requests {
    pub(super) work: Arc<Work>,
    pub(super) openers: Openers,
    pub(super) handle: Handle,
    pub(super) ownership: Ownership,
    pub(super) is_read_only: bool,
    pub(super) mounted_at: SystemTime,
}

/// The size may change at any time.
const ATTRIBUTES_TIME: Duration = Duration::ZERO;

impl Requests {
    fn attributes(&self) -> FileAttr {
        let (size, when) = (self.work.size_bytes(), self.mounted_at);
        FileAttr {
            ino: INodeNo::ROOT,
            size,
            blocks: size / 512,
            atime: when,
            mtime: when,
            ctime: when,
            crtime: when,
            kind: FileType::RegularFile,
            perm: self.ownership.mode,
            nlink: 1,
            uid: self.ownership.user,
            gid: self.ownership.group,
            rdev: 0,
            blksize: self.work.block_bytes(),
            flags: 0,
        }
    }
}

impl Filesystem for Requests {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Optional: an older kernel lacks some of these and works without.
        let _ = config.set_max_write(STEP_BYTES as u32);
        let _ = config.set_max_background(FUSE_BACKGROUND_MAX);
        for wish in [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP] {
            let _ = config.add_capabilities(wish);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::ENOTDIR);
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTRIBUTES_TIME, &self.attributes());
    }

    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        reply.attr(&ATTRIBUTES_TIME, &self.attributes());
    }

    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.work.is_closed() {
            return reply.error(Errno::EIO);
        }
        if self.is_read_only && flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        self.work.counters.note_opened();
        let handle = FileHandle(self.openers.add());
        reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.work.counters.note_closed();
        self.openers.remove(handle.0);
        reply.ok();
    }

    /// A descriptor is closed: that makes nothing durable (close(2)).
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = u64::from(size);
        let read = self.work.read(offset, length);
        self.work.carry_out(&self.handle, (|counters| &counters.reads, length), read, |outcome| match outcome {
            Ok(buffer) => reply.data(&buffer),
            Err(errno) => reply.error(errno),
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let length = data.len();
        // The kernel sets these flags for RWF_DSYNC, too. O_SYNC includes the bit of O_DSYNC.
        let is_durable = flags.0 & OFlags::DSYNC.bits().cast_signed() != 0;
        let write = self.work.write(offset, data, is_durable);
        self.work.carry_out(&self.handle, (|counters| &counters.writes, length as u64), write, move |outcome| {
            match outcome {
                Ok(()) => reply.written(length as u32),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let flush = self.openers.tell(handle.0, self.work.flush());
        self.work.carry_out(&self.handle, (|counters| &counters.flushes, 0), flush, |outcome| answer(reply, outcome));
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = rustix::fs::FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let (punch, zero) = (rustix::fs::FallocateFlags::PUNCH_HOLE, rustix::fs::FallocateFlags::ZERO_RANGE);
        let is_known = (punch | zero | rustix::fs::FallocateFlags::KEEP_SIZE).contains(mode);
        match mode {
            _ if !is_known => reply.error(Errno::EOPNOTSUPP),
            _ if self.is_read_only => reply.error(Errno::EROFS),
            mode if mode.intersects(punch | zero) => {
                let zeroes = self.work.write_zeroes(offset, length, mode.contains(punch));
                self.work.carry_out(&self.handle, (|counters| &counters.zeroes, length), zeroes, |outcome| {
                    answer(reply, outcome)
                });
            }
            // A device has room for all of its blocks, as far as it reports.
            _ if offset.saturating_add(length) <= self.work.size_bytes() => reply.ok(),
            _ => reply.error(Errno::ENOSPC),
        }
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let (Ok(offset), SEEK_DATA | SEEK_HOLE) = (u64::try_from(offset), whence) else {
            return reply.error(Errno::EINVAL);
        };
        let seek = self.work.seek(offset, whence == SEEK_DATA);
        self.work.carry_out(&self.handle, (|counters| &counters.seeks, 0), seek, |outcome| match outcome {
            Ok(Some(found)) => reply.offset(found.cast_signed()),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(errno) => reply.error(errno),
        });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let block_bytes = self.work.block_bytes();
        let blocks = self.work.size_bytes() / u64::from(block_bytes);
        reply.statfs(blocks, 0, 0, 1, 0, block_bytes, 255, block_bytes);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::EOPNOTSUPP);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::EOPNOTSUPP);
    }
}

fn answer(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}
