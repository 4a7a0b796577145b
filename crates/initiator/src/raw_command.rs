//! A SCSI command as its caller made it, and its result.

use block::{Buffer, ByteRange};
use iscsi::initiator::Data;
use scsi::Cdb;

use crate::unit::Unit;

/// When a raw command is issued again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Never: the caller gets the result as it is.
    Never,
    /// When the unit reports that it did not begin it. After a lost session the outcome is unknown.
    IfRefused,
    /// Whenever there is no answer, like a read.
    Always,
}

/// The CDB of a raw command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RawCdb {
    /// A command of ours.
    Typed(Cdb),
    /// The bytes of a caller, zero after their end, which are sent as they are; and what they say, if it is a command
    /// that we know.
    Bytes([u8; 16], Option<Cdb>),
}

impl RawCdb {
    /// The CDB in the bytes of a caller.
    ///
    /// # Panics
    /// When there are more than 16 of them.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        let mut padded = [0; 16];
        padded[..bytes.len()].copy_from_slice(bytes);
        Self::Bytes(padded, Cdb::parse(bytes).ok())
    }

    /// The command, if it is one that we know.
    pub(crate) fn command(&self) -> Option<&Cdb> {
        match self {
            Self::Typed(cdb) => Some(cdb),
            Self::Bytes(_, parsed) => parsed.as_ref(),
        }
    }

    /// The CDB field of its PDU.
    fn field(&self) -> [u8; 16] {
        match self {
            Self::Typed(cdb) => cdb.emit_padded(),
            Self::Bytes(bytes, _) => *bytes,
        }
    }
}

/// A SCSI command as its caller made it.
#[derive(Debug)]
pub(crate) struct RawCommand {
    pub(crate) repeat: Repeat,
    /// Bytes that it changes, alone among overlapping requests, durably; empty for none.
    pub(crate) range: ByteRange,
    pub(crate) cdb: RawCdb,
    /// Bytes to be sent.
    pub(crate) data_out: Vec<u8>,
    /// Room for bytes to be received; not together with `data_out`.
    pub(crate) data_in_length: usize,
}

impl RawCommand {
    /// A command that changes nothing, with the room that it asks for.
    pub(crate) fn reading(cdb: Cdb) -> Self {
        Self { data_in_length: cdb.parameter_data_bytes() as usize, ..Self::sending(Repeat::Always, cdb, Vec::new()) }
    }

    /// A command with its data-out, which changes no bytes of the unit.
    pub(crate) fn sending(repeat: Repeat, cdb: Cdb, data_out: Vec<u8>) -> Self {
        Self { repeat, range: ByteRange::default(), cdb: RawCdb::Typed(cdb), data_out, data_in_length: 0 }
    }

    /// Its CDB field and its data, for `unit` as it is now: with FUA, where it changes bytes that a cache may hold.
    pub(crate) fn parts(&self, unit: &Unit) -> ([u8; 16], Data) {
        let needs_fua = !self.range.is_empty() && unit.has_fua && (unit.is_volatile() || unit.may_get_cache);
        let durable = self.cdb.command().filter(|_| needs_fua).and_then(|cdb| cdb.with_fua());
        let field = durable.map_or_else(|| self.cdb.field(), |cdb| cdb.emit_padded());
        let data = match (self.data_out.len(), self.data_in_length) {
            (0, 0) => Data::None,
            (0, length) => Data::Read(Buffer::zeroed(length), 0..length),
            (length, _) => Data::Write(Buffer::copy_of(&self.data_out), 0..length),
        };
        (field, data)
    }
}

/// The result of a [`RawCommand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawOutcome {
    /// SCSI status code.
    pub status: u8,
    /// Sense data.
    pub sense: Vec<u8>,
    /// Bytes received.
    pub data_in: Vec<u8>,
}
