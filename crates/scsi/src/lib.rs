//! SCSI command blocks, sense data, vital product data and mode pages (SPC-4, SBC-4).
