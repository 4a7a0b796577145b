//! Traces of any bytes: every record is a possible request, and what is written as a trace is read back the same.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use workload::access::AccessKind;
use workload::limits::TRACE_REQUEST_BYTES_MAX;
use workload::trace::{FORMATS, Format, Options, Record, TraceReader, write_cloud_physics};

fn read(bytes: &[u8], options: Options) -> Vec<Record> {
    let mut records = Vec::new();
    let mut reader = TraceReader::new(bytes, options);
    for record in reader.by_ref() {
        match record {
            Ok(record) => {
                assert!(record.access.range.length <= TRACE_REQUEST_BYTES_MAX);
                assert!(record.access.range.offset.checked_add(record.access.range.length).is_some());
                records.push(record);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(reader.next().is_none(), "after the end there is nothing");
    records
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    // All of them, and the one that the first line looks like.
    let format = FORMATS.map(|(format, _)| format).get(usize::from(choice & 0x0f)).copied();
    // As blkparse names a device, and as the others do.
    let source = match choice >> 6 {
        2 => Some("8,0".to_owned()),
        3 => Some("0".to_owned()),
        _ => None,
    };
    let records = read(bytes, Options { format, source, ..Options::default() });

    // The format of its own that can be written keeps reads and writes of whole blocks, and seconds.
    let is_kept = |record: &Record| {
        matches!(record.access.kind, AccessKind::Read | AccessKind::Write)
            && record.access.range.offset.is_multiple_of(512)
            && record.access.range.length.is_multiple_of(512)
    };
    let kept: Vec<Record> = records.into_iter().filter(is_kept).collect();
    let mut written = Vec::new();
    write_cloud_physics(kept.iter().copied(), &mut written).expect("memory takes everything");
    let again = read(&written, Options { format: Some(Format::CloudPhysics), ..Options::default() });
    assert_eq!(kept.len(), again.len());
    let began = kept.first().map_or(0, |record| record.at.as_secs());
    for (before, after) in kept.iter().zip(&again) {
        assert_eq!(before.access, after.access);
        assert_eq!(Duration::from_secs(before.at.as_secs().saturating_sub(began)), after.at);
    }
});
