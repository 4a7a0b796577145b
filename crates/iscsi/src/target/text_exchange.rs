//! A text exchange of the full feature phase.

use crate::pdu::{InitiatorTaskTag, TargetTransferTag};
use crate::text::TextAssembler;

/// A text exchange under way (RFC 7143 11.10): the request may come in pieces, and so may the response go.
pub(super) struct TextExchange {
    pub(super) initiator_task_tag: InitiatorTaskTag,
    pub(super) request: TextAssembler,
    /// What of the response was not sent yet, and what the next request must carry to get it.
    pub(super) response: Vec<u8>,
    pub(super) tag: TargetTransferTag,
}
