//! The wire of a scripted iSCSI peer: PDUs with right (or wrong) lengths and digests out, and the PDUs of the end
//! under test in.

use base::buffer::Buffer;
use base::checksum::crc32c;
use iscsi::framing::{Destination, Digests, Progress, ReceivedPdu, Receiver};
use iscsi::pdu::{Lengths, RawBhs, padding_bytes};
use iscsi::target::AskedDataOut;
use scsi::Cdb;

use crate::iscsi_script::Fixes;

/// The bytes of a PDU.
pub fn pdu_bytes(fixes: Fixes, mut bhs: RawBhs, ahs: &[u8], data: &[u8], digests: Digests) -> Vec<u8> {
    if !fixes.has(Fixes::OWN_LENGTHS) {
        Lengths { ahs_words: (ahs.len() / 4) as u8, data_segment_bytes: data.len() as u32 }.emit(&mut bhs);
    }
    let mut out = bhs.to_vec();
    out.extend_from_slice(ahs);
    if digests.header {
        let digest = crc32c(&out) ^ u32::from(fixes.has(Fixes::BAD_HEADER_DIGEST));
        out.extend_from_slice(&digest.to_le_bytes());
    }
    let data_at = out.len();
    out.extend_from_slice(data);
    out.resize(out.len() + padding_bytes(data.len()), 0);
    if digests.data && !data.is_empty() {
        let digest = crc32c(&out[data_at..]) ^ u32::from(fixes.has(Fixes::BAD_DATA_DIGEST));
        out.extend_from_slice(&digest.to_le_bytes());
    }
    out
}

/// Reads what the end under test sends. Whatever it was sent before, this is whole PDUs.
pub struct Listener {
    receiver: Receiver,
}

/// No end under test sends longer data segments.
const DATA_SEGMENT_BYTES_MAX: u32 = (1 << 24) - 1;

impl Listener {
    /// A listener to a connection that just opened.
    pub fn new() -> Self {
        Self { receiver: Receiver::new(DATA_SEGMENT_BYTES_MAX) }
    }

    /// What follows carries these digests.
    pub fn set_digests(&mut self, digests: Digests) {
        self.receiver.set_parameters(digests, DATA_SEGMENT_BYTES_MAX);
    }

    /// The PDUs that `bytes` complete.
    ///
    /// # Panics
    /// When the bytes are no PDUs, or their digests are wrong.
    pub fn hear(&mut self, mut bytes: &[u8]) -> Vec<ReceivedPdu> {
        let mut pdus = Vec::new();
        loop {
            match self.receiver.poll().expect("the end under test keeps to its own framing") {
                Progress::Pdu(pdu) => {
                    assert!(!pdu.data.is_corrupt, "its data digests are right");
                    pdus.push(pdu);
                }
                Progress::NeedPlace => {
                    let length = self.receiver.pending_header().expect("a header waits").data_segment_bytes;
                    self.receiver.place(Destination::Buffer { buffer: Buffer::zeroed(length), offset: 0 });
                }
                Progress::NeedBytes if bytes.is_empty() => return pdus,
                Progress::NeedBytes => {
                    let space = self.receiver.receive_space();
                    let length = space.len().min(bytes.len());
                    space[..length].copy_from_slice(&bytes[..length]);
                    self.receiver.handle_received(length);
                    bytes = &bytes[length..];
                }
            }
        }
    }
}

impl Default for Listener {
    fn default() -> Self {
        Self::new()
    }
}

/// What a CDB asks for, with blocks of 512 bytes.
pub fn asked_data_out(cdb: &Cdb) -> AskedDataOut {
    let asked = cdb.class().data_out;
    AskedDataOut { bytes: asked.bytes(512), is_exact: asked.is_exact(), is_held: false }
}
