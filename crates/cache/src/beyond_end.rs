//! Gives up what is dirty beyond the end of an origin that became smaller: see [`stranded`](crate::stranded).

use std::sync::Arc;

use base::clock::Clock;
use base::range::ByteRange;
use block::{Completion, Device, Error, ErrorKind, Geometry, Identity, Operation, Request, Response, SharedDevice};
use futures_util::future::{Either, select};
use store::{Binding, Superblock, Tokens};

use crate::cache::Cache;
use crate::crash_mode::CrashMode;
use crate::format::{KIND, ParametersRaw};
use crate::mode::Mode;
use crate::options::{DirtyLimits, OpenOptions, Percent};

/// Gives up what is dirty beyond the end of the origin, which has the size it had when the cache
/// was opened last. The cache must not be open. Returns the bytes given up; other dirty data stays.
/// Afterwards the store has one of `tokens`, unless nothing had to be given up.
///
/// # Errors
/// See [`Cache::open`].
pub async fn discard_beyond_end(
    cache_device: &SharedDevice,
    clock: Arc<dyn Clock>,
    tokens: Option<Tokens>,
) -> Result<u64, Error> {
    let superblock: Superblock<ParametersRaw> = Superblock::read(cache_device, KIND).await?;
    let binding = Binding::from_raw(&superblock.payload.binding)?;
    if !CrashMode::from_raw(superblock.payload.crash_mode)?.keeps_dirty() {
        return Ok(0);
    }
    let origin: SharedDevice = Arc::new(AbsentOrigin { binding });
    // Limits at which no background cleaning begins, so nothing is sent.
    let dirty = DirtyLimits { clean_above: Percent::ALL, max: Percent::ALL };
    let options = OpenOptions { dirty, tokens, ..OpenOptions::new(Mode::WriteBack, clock) };
    let cache = Cache::open(Arc::clone(cache_device), origin, options).await?;
    let discarded = Box::pin(async {
        let core = cache.core();
        let bytes = core.stranded(&core.lines.state()).bytes;
        let end = core.origin.end();
        core.forget_superseded(ByteRange { offset: end, length: u64::MAX - end }).await?;
        cache.close(true).await?;
        Ok(bytes)
    });
    match select(discarded, Box::pin(cache.run())).await {
        Either::Left((discarded, _)) => discarded,
        Either::Right(((), discarded)) => discarded.await,
    }
}

/// Stand-in for the origin: it has a geometry and an identity, and fails every read and write.
struct AbsentOrigin {
    binding: Binding,
}

impl Device for AbsentOrigin {
    fn geometry(&self) -> Geometry {
        let Binding { size_bytes, logical_block_bytes, .. } = self.binding;
        Geometry { logical_block_bytes, ..Geometry::plain(size_bytes) }
    }

    fn identity(&self) -> Identity {
        self.binding.identity.clone()
    }

    fn submit(&self, request: Request) -> Completion {
        Completion::ready(match request.operation {
            // No write ever reached it.
            Operation::Flush => Response::done(base::buffer::Buffer::empty()),
            _ => request.fail(Error::new(ErrorKind::Gone, "the disk of this cache is not there")),
        })
    }
}
