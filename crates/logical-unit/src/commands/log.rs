//! LOG SENSE (SPC-4 6.8): there are no counters to report, so there are two pages.

use block::Buffer;
use scsi::Sense;
use scsi::cdb::LogSense;
use scsi::log::{self, page};

use crate::data_in::cut;
use crate::failure::Failure;

/// The function that emits a page.
type Emit = fn() -> Vec<u8>;

/// The supported pages, ascending by their codes.
const PAGES: &[(u8, Emit)] =
    &[(page::SUPPORTED_PAGES, supported_pages), (page::INFORMATIONAL_EXCEPTIONS, log::emit_informational_exceptions)];

fn supported_pages() -> Vec<u8> {
    log::emit_supported_pages(&PAGES.iter().map(|(code, _)| *code).collect::<Vec<_>>())
}

pub(super) fn sense(asked: LogSense) -> Result<Buffer, Failure> {
    if asked.is_save {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 0).into());
    }
    if asked.subpage != 0 {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_byte(3).into());
    }
    if asked.first_parameter != 0 {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_byte(5).into());
    }
    let emit = PAGES.iter().find(|(code, _)| *code == asked.page).map(|(_, emit)| emit);
    let emit = emit.ok_or(Sense::INVALID_FIELD_IN_CDB.at_bit(2, 5))?;
    Ok(cut(&emit(), u32::from(asked.allocation_length)))
}
