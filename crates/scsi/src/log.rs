//! LOG SENSE data (SPC-4 7.3): the list of pages, and informational exceptions.

/// Page codes.
pub mod page {
    #![expect(missing_docs, reason = "the standard's own names")]
    pub const SUPPORTED_PAGES: u8 = 0x00;
    pub const INFORMATIONAL_EXCEPTIONS: u8 = 0x2f;
}

fn whole(page: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![page, 0];
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Page 00h: the pages there are, ascending.
pub fn emit_supported_pages(pages: &[u8]) -> Vec<u8> {
    whole(page::SUPPORTED_PAGES, pages)
}

/// Page 2Fh with its one parameter: there is no exception, and no temperature is known.
pub fn emit_informational_exceptions() -> Vec<u8> {
    whole(page::INFORMATIONAL_EXCEPTIONS, &[0, 0, 0x03, 4, 0, 0, 0xff, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        assert_eq!(emit_supported_pages(&[0x00, 0x2f]), [0, 0, 0, 2, 0x00, 0x2f]);
        assert_eq!(emit_informational_exceptions(), [0x2f, 0, 0, 8, 0, 0, 3, 4, 0, 0, 0xff, 0]);
    }
}
