//! Any bytes as PDUs: a header that is understood emits as one that is understood the same, and so do additional
//! header segments. The same bytes as a stream give the same PDUs however they are cut.

#![no_main]

use base::buffer::Buffer;
use fuzz::iscsi_peer::{Listener, pdu_bytes};
use fuzz::iscsi_script::Fixes;
use iscsi::framing::{DataSegment, Destination, Digests, FramingError, Progress, Receiver, TransmitQueue};
use iscsi::pdu::*;
use libfuzzer_sys::fuzz_target;

fn check_header(raw: &RawBhs) {
    let Ok(header) = Bhs::parse(raw) else { return };
    assert_eq!(Some(header.opcode()), Opcode::of(raw));
    let mut emitted = [0xa5; BHS_BYTES];
    header.emit(&mut emitted);
    assert_eq!(Lengths::parse(&emitted), Lengths::default());
    assert_eq!(Bhs::parse(&emitted), Ok(header));
}

fn check_ahs(bytes: &[u8]) -> Option<AdditionalHeaders> {
    let headers = AdditionalHeaders::parse(bytes).ok()?;
    let mut emitted = Vec::new();
    headers.emit(&mut emitted);
    assert!(emitted.len().is_multiple_of(4));
    assert_eq!(AdditionalHeaders::parse(&emitted).as_ref(), Ok(&headers));
    Some(headers)
}

/// What a stream comes to: the PDUs, and how it ends.
type Heard = (Vec<(RawBhs, AdditionalHeaders, Vec<u8>, bool)>, Option<FramingError>);

fn hear(mut bytes: &[u8], cut: usize, digests: Digests) -> Heard {
    let mut receiver = Receiver::new(8192);
    receiver.set_parameters(digests, 8192);
    let mut pdus = Vec::new();
    loop {
        match receiver.poll() {
            Err(error) => return (pdus, Some(error)),
            Ok(Progress::Pdu(pdu)) => {
                let data = pdu.data.bytes().to_vec();
                pdus.push((pdu.header.raw, pdu.header.ahs, data, pdu.data.is_corrupt));
            }
            Ok(Progress::NeedPlace) => {
                let length = receiver.pending_header().expect("a header waits").data_segment_bytes;
                assert!(length <= 8192 && length > 0);
                receiver.place(Destination::Buffer { buffer: Buffer::zeroed(length), offset: 0 });
            }
            Ok(Progress::NeedBytes) if bytes.is_empty() => return (pdus, None),
            Ok(Progress::NeedBytes) => {
                let space = receiver.receive_space();
                let length = space.len().min(bytes.len()).min(cut);
                assert!(length > 0, "there is space for what is needed");
                space[..length].copy_from_slice(&bytes[..length]);
                receiver.handle_received(length);
                bytes = &bytes[length..];
            }
        }
    }
}

/// Sends one PDU through a queue and hears it at the other end.
fn send_and_hear(raw: &RawBhs, ahs: AdditionalHeaders, data: &[u8], digests: Digests) {
    let Ok(Bhs::ScsiCommand(command)) = Bhs::parse(raw) else { return };
    let mut queue = TransmitQueue::new(digests);
    queue.push(&command, &ahs, DataSegment::from(data.to_vec()));
    let mut wire = Vec::new();
    while !queue.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[]); 2];
        let count = queue.io_slices(&mut slices);
        let length = slices[0].len().min(13);
        assert!(count > 0 && length > 0, "a queue that is not empty has something to send");
        wire.extend_from_slice(&slices[0][..length]);
        queue.handle_transmitted(length);
    }
    let mut ahs_bytes = Vec::new();
    ahs.emit(&mut ahs_bytes);
    assert_eq!(wire, pdu_bytes(Fixes::default(), command.to_bytes(), &ahs_bytes, data, digests));
    let mut listener = Listener::new();
    listener.set_digests(digests);
    let heard = listener.hear(&wire);
    assert_eq!(heard.len(), 1);
    assert_eq!(heard[0].header.bhs, Ok(Bhs::ScsiCommand(command)));
    assert_eq!(heard[0].header.ahs, ahs);
    assert_eq!(heard[0].data.bytes(), data);
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&flags, bytes)) = bytes.split_first() else { return };
    let digests = Digests { header: flags & 1 != 0, data: flags & 2 != 0 };
    let cut = 1 + usize::from(flags >> 2);
    assert_eq!(hear(bytes, cut, digests), hear(bytes, usize::MAX, digests));

    let Some((raw, rest)) = bytes.split_first_chunk::<BHS_BYTES>() else { return };
    check_header(raw);
    // The same header as every PDU there is.
    for opcode in Opcode::ALL {
        let mut raw = *raw;
        raw[0] = raw[0] & 0xc0 | opcode.code();
        check_header(&raw);
    }
    let (ahs, data) = rest.split_at(rest.len().min(usize::from(flags >> 4) * 4));
    let mut command = *raw;
    command[0] = command[0] & 0x40 | Opcode::ScsiCommand.code();
    if let Some(ahs) = check_ahs(ahs) {
        send_and_hear(&command, ahs, data, digests);
    }
});
