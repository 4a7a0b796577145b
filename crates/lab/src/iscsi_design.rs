//! Paper 001, *An iSCSI Design and Implementation*: figures 5 to 8.
//!
//! The paper's figures are drawn, not printed as tables. Ours are compared with the numbers in its
//! text: 70-80 MB/s with frames of 1.5k and 97-107 with 9k, 4,000 IOPS at depth 2 and 15,000 from
//! depth 8, 67 MB/s at 0.6 ms and 2 to 5 % less than in the lab.

use std::time::Duration;

use workload::bench::ReadWrite;

use crate::error::LabError;
use crate::model::{self, Model};
use crate::outcome::Found;
use crate::outcome::{Row, Span};
use crate::stage::{Connections, Load, Scale, Stage, Way};

/// A request of the throughput experiments.
const LARGE_BYTES: u32 = 128 << 10;
/// Requests in flight there: the paper's prototype never had more (section 4).
const LARGE_DEPTH: u32 = 8;
/// Figure 5 and 6: small frames.
const SMALL_FRAMES: Span = Span::between(70.0, 80.0);
/// Figure 5 and 6: jumbo frames.
const JUMBO_FRAMES: Span = Span::between(97.0, 107.0);
/// The bytes of a frame that are not data: IP and TCP headers with time stamps are 52 bytes.
const FRAME_HEADERS: u64 = 52;

/// One connection, then more of each kind, by TCP connections.
const KINDS: [Connections; 7] = [
    Connections::Ordinary(1),
    Connections::Ordinary(2),
    Connections::Ordinary(4),
    Connections::Ordinary(8),
    Connections::Split(1),
    Connections::Split(2),
    Connections::Split(4),
];
/// The same, where every kind is one line of a figure.
const FEW_KINDS: [Connections; 3] = [Connections::Ordinary(1), Connections::Ordinary(4), Connections::Split(2)];

fn milliseconds(scale: Scale) -> u64 {
    match scale {
        Scale::Full => 1000,
        Scale::Quick => 100,
    }
}

fn large(rw: &'static str, connections: Connections, scale: Scale) -> Load {
    let (bytes, depth, way) = (LARGE_BYTES, LARGE_DEPTH, None);
    Load { rw, bytes, depth, connections, way, milliseconds: milliseconds(scale) }
}

fn kinds(all: &[Connections], scale: Scale) -> &[Connections] {
    match scale {
        Scale::Full => all,
        Scale::Quick => &all[..2],
    }
}

fn frames(stage: &Stage, all: &[u32], scale: Scale) -> Vec<u32> {
    match (stage.has_frames(), scale) {
        (false, _) => vec![65_536],
        (true, Scale::Quick) => all.first().copied().into_iter().collect(),
        (true, Scale::Full) => all.to_vec(),
    }
}

fn paper_throughput(frame: u32) -> Option<Span> {
    match frame {
        1500 => Some(SMALL_FRAMES),
        9000 => Some(JUMBO_FRAMES),
        _ => None,
    }
}

/// Measures with each congestion control that this kernel has. Where none can be chosen, it
/// measures once, and the name passed to `measure` is "the system's congestion control".
fn with_congestion_controls(
    stage: &Stage,
    scale: Scale,
    notes: &mut Vec<String>,
    mut measure: impl FnMut(&str) -> Result<(), LabError>,
) -> Result<(), LabError> {
    let controls: &[&str] = if scale == Scale::Full { &["cubic", "bbr"] } else { &["cubic"] };
    let mut are_left_out = true;
    for control in controls {
        if stage.set_congestion_control(control) {
            are_left_out = false;
            measure(control)?;
        } else {
            notes.push(format!("left out: {control}, which cannot be chosen here"));
        }
    }
    if are_left_out {
        measure("the system's congestion control")?;
    }
    Ok(())
}

/// Figure 5.
pub(crate) fn multi_throughput(stage: &Stage, scale: Scale) -> Result<Found, LabError> {
    let (mut rows, mut notes) = (Vec::new(), vec![stage.words().to_owned(), KINDS_NOTE.to_owned()]);
    with_congestion_controls(stage, scale, &mut notes, |control| {
        for frame in frames(stage, &[1500, 9000], scale) {
            stage.set_frames(frame)?;
            for rw in ["read", "write"] {
                let served = stage.serve(false)?;
                for &connections in kinds(&KINDS, scale) {
                    let measured = stage.bench(&served, large(rw, connections, scale))?;
                    let paper = paper_throughput(frame).filter(|_| connections == Connections::Split(1));
                    let (panel, series) =
                        (format!("{control}, frames of {frame}"), format!("{rw}, {}", connections.name()));
                    let (at, ours) = (f64::from(connections.tcp()), measured.megabytes_per_second);
                    rows.push(measured.row(panel, series, at, paper, ours));
                }
            }
        }
        Ok(())
    })?;
    Ok((rows, notes))
}

/// A note of every experiment that compares kinds of connections.
const KINDS_NOTE: &str = "MC/S is a session of so many ordinary connections (one: plain iSCSI), split is one of half \
                          as many pairs, of a connection for requests and one for responses each; the axis has TCP \
                          connections";

/// Chooses cubic, the congestion control of the paper's time, for experiments that do not compare
/// them. Returns the one in use, in words.
fn choose_cubic(stage: &Stage) -> String {
    let is_cubic = stage.set_congestion_control("cubic");
    format!("congestion control: {}", if is_cubic { "cubic" } else { "the system's" })
}

/// Figure 6.
pub(crate) fn frame_size(stage: &Stage, scale: Scale) -> Result<Found, LabError> {
    let mut rows = Vec::new();
    let control = choose_cubic(stage);
    for frame in frames(stage, &[1500, 3000, 4500, 6000, 9000], scale) {
        stage.set_frames(frame)?;
        for rw in ["read", "write"] {
            let served = stage.serve(false)?;
            for &connections in kinds(&FEW_KINDS, scale) {
                let measured = stage.bench(&served, large(rw, connections, scale))?;
                let series = format!("{}, {} connections", connections.name(), connections.tcp());
                let (at, ours) = (f64::from(frame), measured.megabytes_per_second);
                rows.push(measured.row(rw.to_owned(), series, at, paper_throughput(frame), ours));
            }
        }
    }
    rows.sort_by(|one, other| (&one.panel, &one.series).cmp(&(&other.panel, &other.series)));
    Ok((rows, vec![stage.words().to_owned(), KINDS_NOTE.to_owned(), control]))
}

/// The paper's number in figure 7 at a depth.
fn paper_iops(depth: u32) -> Option<Span> {
    match depth {
        2 => Some(Span::exactly(4000.0)),
        8.. => Some(Span::exactly(15_000.0)),
        _ => None,
    }
}

const DEPTHS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// Figure 7.
pub(crate) fn queue_depth(stage: &Stage, scale: Scale) -> Result<Found, LabError> {
    let mut rows = Vec::new();
    let sizes: &[u32] = if scale == Scale::Full { &[1, 2, 4, 8, 16, 32] } else { &[1] };
    stage.set_frames(1500)?;
    let control = choose_cubic(stage);
    for &kibibytes in sizes {
        // All kinds at the paper's size, one connection at the others.
        let compared = if kibibytes == 1 { kinds(&FEW_KINDS, scale) } else { &FEW_KINDS[..1] };
        for rw in ["randread", "randwrite"] {
            let served = stage.serve(false)?;
            for &connections in compared {
                for depth in DEPTHS {
                    let load = Load { bytes: kibibytes << 10, depth, ..large(rw, connections, scale) };
                    let measured = stage.bench(&served, load)?;
                    let paper = paper_iops(depth).filter(|_| kibibytes == 1);
                    let series = format!("{kibibytes} KiB, {}, {} connections", connections.name(), connections.tcp());
                    rows.push(measured.row(rw.to_owned(), series, f64::from(depth), paper, measured.iops));
                }
            }
        }
    }
    Ok((rows, vec![stage.words().to_owned(), KINDS_NOTE.to_owned(), control]))
}

/// Packets lost of a million, as the experiments have them.
fn losses(stage: &Stage, scale: Scale) -> &'static [u32] {
    if stage.has_frames() && scale == Scale::Full { &[0, 1000] } else { &[0] }
}

fn loss_words(loss_ppm: u32) -> String {
    format!("{} % lost", f64::from(loss_ppm) / 10_000.0)
}

/// Figure 8.
pub(crate) fn metro(stage: &Stage, scale: Scale) -> Result<Found, LabError> {
    let round_trips: &[u64] = if scale == Scale::Full { &[0, 600, 10_000] } else { &[0, 600] };
    let mut rows = Vec::new();
    let mut notes = vec![stage.words().to_owned(), KINDS_NOTE.to_owned()];
    notes.push("the disk is a file in the page cache of this machine".to_owned());
    with_congestion_controls(stage, scale, &mut notes, |control| {
        for frame in frames(stage, &[1500, 9000], scale) {
            stage.set_frames(frame)?;
            for rw in ["read", "write"] {
                let served = stage.serve(true)?;
                for &connections in kinds(&FEW_KINDS, scale) {
                    for &loss_ppm in losses(stage, scale) {
                        for &round_trip_us in round_trips {
                            let way = Some(Way { round_trip_us, loss_ppm });
                            let measured = stage.bench(&served, Load { way, ..large(rw, connections, scale) })?;
                            let is_paper = round_trip_us == 600 && rw == "write" && frame == 1500 && loss_ppm == 0;
                            let panel = format!("{rw}, {control}, frames of {frame}");
                            let series = format!(
                                "{}, {} connections, {}",
                                connections.name(),
                                connections.tcp(),
                                loss_words(loss_ppm)
                            );
                            let (at, ours) = (round_trip_us as f64 / 1000.0, measured.megabytes_per_second);
                            rows.push(measured.row(panel, series, at, is_paper.then_some(Span::exactly(67.0)), ours));
                        }
                    }
                }
            }
        }
        Ok(())
    })?;
    Ok((rows, notes))
}

/// The measurements behind the default number and kind of connections: by round trip, loss and size
/// of request.
pub(crate) fn connection_kinds(stage: &Stage, scale: Scale) -> Result<Found, LabError> {
    let round_trips: &[u64] = if scale == Scale::Full { &[0, 600, 10_000] } else { &[0] };
    let mut rows = Vec::new();
    stage.set_frames(1500)?;
    let control = choose_cubic(stage);
    for (bytes, depth) in [(4096, 32), (LARGE_BYTES, LARGE_DEPTH)] {
        for rw in ["randread", "randwrite"] {
            let served = stage.serve(false)?;
            for &round_trip_us in round_trips {
                for &loss_ppm in losses(stage, scale) {
                    let way = Some(Way { round_trip_us, loss_ppm });
                    for &connections in kinds(&KINDS, scale) {
                        let load = Load { bytes, depth, way, ..large(rw, connections, scale) };
                        let measured = stage.bench(&served, load)?;
                        let (size, milliseconds) = (bytes >> 10, round_trip_us as f64 / 1000.0);
                        let panel = format!("{rw} {size} KiB, {milliseconds} ms");
                        let series = format!("{}, {}", connections.name(), loss_words(loss_ppm));
                        let (at, ours) = (f64::from(connections.tcp()), measured.megabytes_per_second);
                        rows.push(measured.row(panel, series, at, None, ours));
                    }
                }
            }
        }
    }
    Ok((rows, vec![stage.words().to_owned(), KINDS_NOTE.to_owned(), control]))
}

/// The paper's machines: what netperf gave as the wire; latency and time of a request from figure 7's two numbers
/// (4,000 IOPS at depth 2 is 500 us a request, 15,000 is 66 us of processor each).
const SMALL_IO: Model = Model {
    round_trip: Duration::from_micros(430),
    bytes_per_second: 117_475_000,
    per_request: Duration::from_micros(66),
    per_frame: Duration::ZERO,
    frame_bytes: 1500 - FRAME_HEADERS,
    medium: Duration::ZERO,
};

/// The paper's prototype never had more requests in flight (section 4).
const PAPER_DEPTH_MAX: u32 = 8;

/// Figure 7 in virtual time.
pub(crate) fn queue_depth_model(_: Scale) -> Result<Found, LabError> {
    let mut rows = Vec::new();
    for depth in DEPTHS {
        let load = model::Load { rw: ReadWrite::RandWrite, bytes: 1024, depth: depth.min(PAPER_DEPTH_MAX) };
        let (iops, _) = model::run(SMALL_IO, load)?;
        rows.push(model_row("1 KiB", f64::from(depth), paper_iops(depth), iops));
    }
    let notes = vec![
        "put in: 939.8 Mbit/s (netperf), 430 us round trip and 66 us of processor a request (from 4,000 and 15,000 \
         IOPS), at most 8 in flight; what comes out are the other depths, and what our protocol adds"
            .to_owned(),
    ];
    Ok((rows, notes))
}

/// The paper's machines with large requests: 6.2 us of processor a frame and 1.19 ms a request of 128 KiB follow from
/// 75 MB/s with 1.5k and 102 MB/s with 9k.
fn large_io(frame: u64) -> Model {
    Model {
        per_request: Duration::from_micros(1190),
        per_frame: Duration::from_nanos(6200),
        frame_bytes: frame - FRAME_HEADERS,
        ..SMALL_IO
    }
}

fn run_large(model: Model) -> Result<f64, LabError> {
    let load = model::Load { rw: ReadWrite::Write, bytes: LARGE_BYTES, depth: LARGE_DEPTH };
    Ok(model::run(model, load)?.1 / 1e6)
}

/// Figure 6 in virtual time.
pub(crate) fn frame_size_model(_: Scale) -> Result<Found, LabError> {
    let mut rows = Vec::new();
    for frame in [1500, 3000, 4500, 6000, 9000] {
        let paper = match frame {
            1500 => Some(SMALL_FRAMES),
            9000 => Some(JUMBO_FRAMES),
            _ => None,
        };
        rows.push(model_row("write", frame as f64, paper, run_large(large_io(frame))?));
    }
    let notes = vec![
        "put in: 6.2 us of processor a frame and 1.19 ms a request, from 75 MB/s with 1.5k and 102 MB/s with 9k; what \
         comes out is the curve between them"
            .to_owned(),
    ];
    Ok((rows, notes))
}

/// Figure 8 in virtual time.
pub(crate) fn metro_model(_: Scale) -> Result<Found, LabError> {
    let mut rows = Vec::new();
    for round_trip_us in [0u64, 600, 10_000] {
        let medium = Duration::from_micros(500);
        let round_trip = SMALL_IO.round_trip + Duration::from_micros(round_trip_us);
        let found = run_large(Model { round_trip, medium, ..large_io(1500) })?;
        let paper = (round_trip_us == 600).then_some(Span::exactly(67.0));
        rows.push(model_row("write, small frames", round_trip_us as f64 / 1000.0, paper, found));
    }
    let notes = vec![
        "put in: as for frame-size, and 0.5 ms of the array's write cache a request; what comes out is what the longer \
         way costs at 8 requests in flight (the paper: 2 to 5 % at 0.6 ms)"
            .to_owned(),
    ];
    Ok((rows, notes))
}

fn model_row(series: &str, at: f64, paper: Option<Span>, ours: f64) -> Row {
    Row { panel: String::new(), series: series.to_owned(), at, paper, ours, client_cpu_us: None, server_cpu_us: None }
}
