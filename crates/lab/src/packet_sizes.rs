//! *A Caching Strategy to Improve iSCSI Performance*, section 1: on a typical iSCSI implementation some 58 % of the
//! TCP/IP packets are shorter than 127 bytes: commands, status, and acknowledgements.
//!
//! Packets are counted on the link between two TUN devices, in both directions, with their IP
//! headers and without the frame's. The paper does not say what ran; its other figures have small
//! requests. With the log the same requests are counted until the LUN has all data: of blocks
//! written again only the last data is on the wire, and neighbours go as one.

use crate::error::LabError;
use crate::outcome::Found;
use crate::outcome::{Row, Span};
use crate::stage::{Connections, Load, Measured, Scale, Served, Stage, Way};
use crate::wan::Packets;

/// The paper's share of small packets, in percent.
const PAPER: Span = Span::exactly(58.0);
/// Sizes of requests in bytes.
const SIZES: [u32; 5] = [512, 2048, 4096, 16 << 10, 64 << 10];
const SIZES_QUICK: [u32; 2] = [512, 4096];
/// Requests of one point: so many that login and logout do not count.
const REQUESTS: u64 = 5000;
const REQUESTS_QUICK: u64 = 300;
/// The range of the requests: small enough that some blocks are written again.
const FOOTPRINT_BYTES: u64 = 16 << 20;
/// The way of a switched network.
const WAY: Way = Way { round_trip_us: 0, loss_ppm: 0 };
/// Requests at once: one, as of the synchronous programs that the paper is about, and several.
const DEPTHS: [u32; 2] = [1, 8];

/// The share of small packets by the size of requests.
pub(crate) fn shares(stage: &Stage, scale: Scale) -> Result<Found, LabError> {
    let (sizes, depths): (&[u32], &[u32]) = match scale {
        Scale::Full => (&SIZES, &DEPTHS),
        Scale::Quick => (&SIZES_QUICK, &DEPTHS[..1]),
    };
    if !stage.has_frames() {
        return Err(LabError::Needs(
            "packet-sizes",
            "root, `ip` and /dev/net/tun: packets are counted on a link of its own",
        ));
    }
    stage.set_frames(1500)?;
    let (mut rows, mut notes) = (Vec::new(), vec![COUNTED.to_owned()]);
    for &depth in depths {
        for (rw, series) in [("randread", "reads"), ("randwrite", "writes")] {
            for &bytes in sizes {
                let served = stage.serve(false)?;
                let (measured, packets) = count_plain(stage, &served, load(rw, bytes, depth), scale)?;
                // The paper's share is drawn at the middle size, both for reads and for writes.
                let paper = (bytes == 4096).then_some(PAPER);
                rows.push(row(&measured, depth, series, bytes, paper, packets));
                notes.push(words(depth, series, bytes, packets, scale));
            }
        }
        for &bytes in sizes {
            let served = stage.serve(false)?;
            let (measured, packets) = count_logged(stage, &served, load("randwrite", bytes, depth), scale)?;
            rows.push(row(&measured, depth, "writes, with the log", bytes, None, packets));
            notes.push(words(depth, "writes, with the log", bytes, packets, scale));
        }
    }
    Ok((rows, notes))
}

const COUNTED: &str = "packets with their IP headers, both ways, frames of 1500 bytes; the paper does not say what its \
                       implementation was doing: its number stands at requests of 4 KiB. With the log: until the LUN \
                       has all; what was written again meanwhile is not sent";

fn load(rw: &'static str, bytes: u32, depth: u32) -> Load {
    Load { rw, bytes, depth, connections: Connections::Ordinary(1), way: Some(WAY), milliseconds: 0 }
}

fn requests(scale: Scale) -> u64 {
    if scale == Scale::Full { REQUESTS } else { REQUESTS_QUICK }
}

fn count_plain(stage: &Stage, served: &Served, load: Load, scale: Scale) -> Result<(Measured, Packets), LabError> {
    stage.count_packets();
    let measured =
        stage.bench_requests(&stage.url(served, load.way), served, load, requests(scale), FOOTPRINT_BYTES)?;
    Ok((measured, stage.count_packets()))
}

fn count_logged(stage: &Stage, served: &Served, load: Load, scale: Scale) -> Result<(Measured, Packets), LabError> {
    stage.count_packets();
    let attached = stage.attach_log(&stage.url(served, load.way))?;
    let measured = stage.bench_requests(attached.name(), served, load, requests(scale), FOOTPRINT_BYTES)?;
    attached.detach(stage)?;
    Ok((measured, stage.count_packets()))
}

fn row(measured: &Measured, depth: u32, series: &str, bytes: u32, paper: Option<Span>, packets: Packets) -> Row {
    let panel = if depth == 1 { "one request at a time".to_owned() } else { format!("{depth} requests at once") };
    measured.row(panel, series.to_owned(), f64::from(bytes) / 1024.0, paper, packets.small_percent())
}

fn words(depth: u32, series: &str, bytes: u32, packets: Packets, scale: Scale) -> String {
    let each = packets.count as f64 / requests(scale) as f64;
    format!("depth {depth}, {series} of {bytes} bytes: {} packets, {each:.2} a request", packets.count)
}
