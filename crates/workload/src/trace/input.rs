//! The bytes of a trace, unpacked where they are packed.
//!
//! Packing is recognised by the first bytes and not by a name, since standard input has none.
//! Several packed streams in a row are one trace.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A reader of a trace's text.
pub type Input = Box<dyn BufRead + Send>;

/// The text in `source`, which may be packed by gzip or zstd.
///
/// # Errors
/// Those of `source`, and of an invalid head of a packed stream.
pub fn unpack(source: impl Read + Send + 'static) -> io::Result<Input> {
    let mut source = BufReader::new(source);
    let head = source.fill_buf()?;
    if head.starts_with(&GZIP_MAGIC) {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(source))));
    }
    if head.starts_with(&ZSTD_MAGIC) {
        return Ok(Box::new(BufReader::new(Zstd { decoder: Some(frame(source)?) })));
    }
    Ok(Box::new(source))
}

type Frame<R> = StreamingDecoder<R, ruzstd::decoding::FrameDecoder>;

/// A reader of zstd frames in a row.
struct Zstd<R: BufRead> {
    /// `None` at the end.
    decoder: Option<Frame<R>>,
}

fn frame<R: BufRead>(source: R) -> io::Result<Frame<R>> {
    StreamingDecoder::new(source).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let count = decoder.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            let Some(finished) = self.decoder.take() else { break };
            let mut source = finished.into_inner();
            if !source.fill_buf()?.is_empty() {
                self.decoder = Some(frame(source)?);
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Cursor, Write};

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    const TEXT: &str = "1 8 0 0\n50 1 0 1\n";

    fn unpacked(bytes: Vec<u8>) -> io::Result<String> {
        let mut text = String::new();
        unpack(Cursor::new(bytes))?.read_to_string(&mut text).map(|_| text)
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(text: &str) -> Vec<u8> {
        compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
    }

    #[test]
    fn text_is_found_however_it_is_packed() {
        assert_eq!(unpacked(TEXT.into()).unwrap(), TEXT);
        for pack in [gzip, zstd] {
            assert_eq!(unpacked(pack(TEXT)).unwrap(), TEXT);
            assert_eq!(unpacked([pack(TEXT), pack(TEXT)].concat()).unwrap(), TEXT.repeat(2), "two streams");
        }
        assert_eq!(unpacked(Vec::new()).unwrap(), "");
    }

    #[test]
    fn a_damaged_stream_is_an_error() {
        for packed in [gzip(&TEXT.repeat(50)), zstd(&TEXT.repeat(50))] {
            assert!(unpacked(packed[..packed.len() - 6].to_vec()).is_err());
        }
    }
}
