//! A text exchange of the full feature phase.

use crate::pdu::{InitiatorTaskTag, TargetTransferTag};
use crate::text::TextAssembler;

/// A text exchange under way (RFC 7143 11.10): request and response may each come in pieces.
pub(super) struct TextExchange {
    pub(super) initiator_task_tag: InitiatorTaskTag,
    pub(super) request: TextAssembler,
    /// The unsent part of the response, and the tag that the next request must carry to get it.
    pub(super) response: Vec<u8>,
    pub(super) tag: TargetTransferTag,
}
