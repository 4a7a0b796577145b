//! Requests to a device, and their responses.

use base::buffer::Buffer;
use base::range::ByteRange;

use crate::error::Error;
use crate::submitter::Submitter;

/// One request. Offsets and lengths are bytes, multiples of the device's logical block.
#[derive(Debug)]
pub struct Request {
    /// First byte; ignored by `Flush`.
    pub offset: u64,
    /// The operation on the range.
    pub operation: Operation,
    /// The submitter. Layers that make requests on behalf of others keep it where it matters below.
    pub submitter: Submitter,
}

/// An operation on the range of a request.
#[derive(Debug)]
pub enum Operation {
    /// Fills the buffer from the device.
    Read {
        /// Comes back in the response, filled over its whole length when the read succeeded.
        buffer: Buffer,
    },
    /// Stores the buffer on the device.
    Write {
        /// May come back in the response for reuse, or as [`Buffer::empty`] where a layer kept it.
        buffer: Buffer,
        /// Force unit access: complete only when these bytes are durable.
        fua: bool,
    },
    /// Makes durable every write that completed before this was submitted.
    Flush,
    /// The client does not need the bytes any more; a later read returns zeroes only if the
    /// geometry says so.
    Discard {
        /// Bytes from `offset`.
        length: u64,
    },
    /// The bytes read as zero afterwards.
    WriteZeroes {
        /// Bytes from `offset`.
        length: u64,
        /// Complete only when the zeroes are durable.
        fua: bool,
        /// Whether the device may give the space back.
        may_discard: bool,
    },
    /// Lists which parts of the range are stored at all.
    Extents {
        /// Bytes from `offset`.
        length: u64,
    },
}

/// The operations without their parameters, to count or choose by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// [`Operation::Read`].
    Read,
    /// [`Operation::Write`].
    Write,
    /// [`Operation::Flush`].
    Flush,
    /// [`Operation::Discard`].
    Discard,
    /// [`Operation::WriteZeroes`].
    WriteZeroes,
    /// [`Operation::Extents`].
    Extents,
}

impl OperationKind {
    /// All operations, each at its own [`index`](Self::index).
    pub const ALL: [Self; 6] = [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes, Self::Extents];

    /// Place in [`OperationKind::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The operation's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write_zeroes",
            Self::Extents => "extents",
        }
    }
}

impl Operation {
    /// Which operation it is.
    pub const fn kind(&self) -> OperationKind {
        match self {
            Self::Read { .. } => OperationKind::Read,
            Self::Write { .. } => OperationKind::Write,
            Self::Flush => OperationKind::Flush,
            Self::Discard { .. } => OperationKind::Discard,
            Self::WriteZeroes { .. } => OperationKind::WriteZeroes,
            Self::Extents { .. } => OperationKind::Extents,
        }
    }
}

impl Request {
    fn new(offset: u64, operation: Operation) -> Self {
        Self { offset, operation, submitter: Submitter::default() }
    }

    /// The same of another submitter.
    #[must_use]
    pub fn by(self, submitter: Submitter) -> Self {
        Self { submitter, ..self }
    }

    /// A read into `buffer`.
    pub fn read(offset: u64, buffer: Buffer) -> Self {
        Self::new(offset, Operation::Read { buffer })
    }

    /// A write of `buffer`.
    pub fn write(offset: u64, buffer: Buffer, fua: bool) -> Self {
        Self::new(offset, Operation::Write { buffer, fua })
    }

    /// A flush.
    pub fn flush() -> Self {
        Self::new(0, Operation::Flush)
    }

    /// A discard.
    pub fn discard(offset: u64, length: u64) -> Self {
        Self::new(offset, Operation::Discard { length })
    }

    /// A write of zeroes.
    pub fn write_zeroes(offset: u64, length: u64, fua: bool, may_discard: bool) -> Self {
        Self::new(offset, Operation::WriteZeroes { length, fua, may_discard })
    }

    /// A request for extents.
    pub fn extents(offset: u64, length: u64) -> Self {
        Self::new(offset, Operation::Extents { length })
    }

    /// The bytes it touches (empty for a flush), or `None` when their end overflows.
    pub fn range(&self) -> Option<ByteRange> {
        let length = match &self.operation {
            Operation::Read { buffer } | Operation::Write { buffer, .. } => buffer.len() as u64,
            Operation::Flush => return ByteRange::new(0, 0),
            Operation::Discard { length } | Operation::WriteZeroes { length, .. } | Operation::Extents { length } => {
                *length
            }
        };
        ByteRange::new(self.offset, length)
    }

    /// Whether it changes what is stored.
    pub fn is_mutation(&self) -> bool {
        matches!(self.operation, Operation::Write { .. } | Operation::Discard { .. } | Operation::WriteZeroes { .. })
    }

    /// The response with `error`, and this request's buffer.
    pub fn fail(self, error: impl Into<Error>) -> Response {
        let buffer = match self.operation {
            Operation::Read { buffer } | Operation::Write { buffer, .. } => buffer,
            _ => Buffer::empty(),
        };
        Response { result: Err(error.into()), buffer, extents: Vec::new() }
    }
}

/// The result of a request.
#[derive(Debug)]
pub struct Response {
    /// Success only if all of it was carried out.
    pub result: Result<(), Error>,
    /// The request's buffer: filled after a successful read, unspecified content otherwise.
    pub buffer: Buffer,
    /// Answer of `Extents`, ascending and adjacent from the request's offset; it may end before the range does.
    pub extents: Vec<Extent>,
}

impl Response {
    /// Success, with the buffer handed back.
    pub fn done(buffer: Buffer) -> Self {
        Self { result: Ok(()), buffer, extents: Vec::new() }
    }

    /// Failure, with the buffer handed back.
    pub fn failed(error: impl Into<Error>, buffer: Buffer) -> Self {
        Self { result: Err(error.into()), buffer, extents: Vec::new() }
    }

    /// The buffer, or the error.
    ///
    /// # Errors
    /// The device's error.
    pub fn into_buffer(self) -> Result<Buffer, Error> {
        self.result.map(|()| self.buffer)
    }
}

/// A run of bytes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Which bytes.
    pub range: ByteRange,
    /// How they are stored.
    pub kind: ExtentKind,
}

/// How bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Space is allocated.
    Data,
    /// No space is allocated; reads as zeroes.
    Hole,
}
