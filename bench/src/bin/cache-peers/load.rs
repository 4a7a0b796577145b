//! The load, and the record of its writes (sent, acknowledged, flushed), which is checked after a
//! guest ended.
//!
//! | a unit of 512 bytes holds | it is |
//! |---|---|
//! | an older write than the last one that a completed flush covers | lost although flushed: never allowed |
//! | an older one than the last acknowledged | lost although acknowledged: allowed for a disk with a volatile cache |
//! | content that was never written to that place | damaged |

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use block::device::DeviceExt;
use block::{Buffer, Request, Response, SharedDevice};
use futures_util::stream::{FuturesUnordered, StreamExt};
use initiator::{InitiatorOptions, RemoteLun, TcpConnector};
use serde_json::{Value, json};
use workload::content::{self, Unit};
use workload::limits::UNIT_BYTES;
use workload::{Access, AccessKind, Generator, Pattern, Profile};

use crate::Result;
use crate::peer::{FOOTPRINT_BYTES, GUEST_IQN};

/// Requests in flight.
const DEPTH: usize = 8;

/// Requests from one flush to the next.
const FLUSH_EVERY: u64 = 64;

/// Bytes of a read of the check.
const VERIFY_BYTES: u64 = 256 << 10;

/// The bytes requested, and the time they took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Bytes of reads.
    pub read_bytes: u64,
    /// Bytes of writes.
    pub written_bytes: u64,
    /// From the first request to the last answer.
    pub seconds: f64,
}

/// The result of the check of all units ever written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Survival {
    /// Units that were ever written.
    pub written: u64,
    /// Of them, those with a write that was acknowledged and in no completed flush.
    pub at_risk: u64,
    /// Lost although flushed.
    pub lost_flushed: u64,
    /// Lost although acknowledged, and not flushed.
    pub lost_acknowledged: u64,
    /// Units with content that was never written to that place.
    pub damaged: u64,
}

impl Survival {
    /// For the raw results.
    pub fn json(&self) -> Value {
        json!({
            "written": self.written,
            "at_risk": self.at_risk,
            "lost_flushed": self.lost_flushed,
            "lost_acknowledged": self.lost_acknowledged,
            "damaged": self.damaged,
        })
    }
}

/// Numbers of writes to one unit, zero for none.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    sent: u64,
    acknowledged: u64,
    flushed: u64,
}

/// A load on one device, through one session after another.
pub struct Load {
    seed: u64,
    runs: usize,
    version: u64,
    units: Vec<Known>,
    lun: Option<Arc<RemoteLun>>,
}

/// A request in flight.
enum Step {
    Access {
        access: Access,
        version: u64,
    },
    /// A flush, with the writes acknowledged before it.
    Flush(Vec<(Access, u64)>),
}

impl Load {
    /// A load that has written nothing yet.
    pub fn new(seed: u64) -> Self {
        let units = usize::try_from(FOOTPRINT_BYTES).expect("it fits in memory") / UNIT_BYTES;
        Self { seed, runs: 0, version: 0, units: vec![Known::default(); units], lun: None }
    }

    /// Logs in to a guest.
    ///
    /// # Errors
    /// Errors of the login.
    pub async fn connect(&mut self, address: SocketAddr) -> Result<()> {
        let options = InitiatorOptions::for_url(&format!("iscsi://{address}/{GUEST_IQN}/0").parse()?);
        let (lun, driver) = initiator::connect(options, Arc::new(TcpConnector)).await?;
        tokio::spawn(driver);
        self.lun = Some(lun);
        Ok(())
    }

    /// Logs out.
    pub async fn disconnect(&mut self) {
        if let Some(lun) = self.lun.take() {
            // The logout does not flush: data that is not flushed is at risk in a power loss.
            let _ = lun.close().await;
        }
    }

    /// Runs `count` requests, `write_share` of them writes, with a flush after every 64, and one at
    /// the end.
    ///
    /// # Errors
    /// Errors of the device, and reads of data other than the last acknowledged.
    pub async fn run(&mut self, count: u64, write_share: f64) -> Result<Counts> {
        let counts = self.go(count, write_share, false).await?;
        self.device()?.flush().await?;
        self.units.iter_mut().for_each(|known| known.flushed = known.acknowledged);
        Ok(counts)
    }

    /// Runs `count` reads in the same places.
    ///
    /// # Errors
    /// As [`Load::run`], but the data read is not checked.
    pub async fn read(&mut self, count: u64) -> Result<Counts> {
        self.go(count, 0.0, true).await
    }

    /// Runs `count` requests, half of them writes. The last are in flight when this returns, and
    /// are never waited for.
    /// # Errors
    /// As [`Load::run`].
    pub async fn run_and_leave(&mut self, count: u64) -> Result<()> {
        let device = self.device()?;
        let mut accesses = self.accesses(0.5)?;
        let mut flight = Flight::new(device);
        for number in 0..count {
            self.issue(&mut flight, &mut accesses, number).await?;
        }
        // The target of this session ends with the guest; the next guest gets a session of its own.
        self.lun = None;
        Ok(())
    }

    async fn go(&mut self, count: u64, write_share: f64, is_blind: bool) -> Result<Counts> {
        let device = self.device()?;
        let mut accesses = self.accesses(write_share)?;
        let began = Instant::now();
        let mut flight = Flight::new(device);
        flight.is_blind = is_blind;
        for number in 0..count {
            self.issue(&mut flight, &mut accesses, number).await?;
        }
        while !flight.steps.is_empty() {
            self.settle(&mut flight).await?;
        }
        flight.counts.seconds = began.elapsed().as_secs_f64();
        Ok(flight.counts)
    }

    /// Sends the next request, once there is room and no request in flight overlaps it.
    async fn issue(&mut self, flight: &mut Flight, accesses: &mut Generator, number: u64) -> Result<()> {
        if number % FLUSH_EVERY == FLUSH_EVERY - 1 && !flight.is_blind {
            flight.flush();
        }
        let access = accesses.draw();
        while flight.steps.len() >= DEPTH || flight.is_in_the_way_of(&access) {
            self.settle(flight).await?;
        }
        let range = access.range;
        match access.kind {
            AccessKind::Write => {
                self.version += 1;
                let version = self.version;
                self.known(access).for_each(|known| known.sent = version);
                let mut buffer = Buffer::zeroed(range.length as usize);
                content::fill(self.seed, range.offset / UNIT_BYTES as u64, version, &mut buffer);
                flight.counts.written_bytes += range.length;
                flight.submit(Step::Access { access, version }, Request::write(range.offset, buffer, false));
            }
            _ => {
                flight.counts.read_bytes += range.length;
                let request = Request::read(range.offset, Buffer::zeroed(range.length as usize));
                flight.submit(Step::Access { access, version: 0 }, request);
            }
        }
        Ok(())
    }

    /// Waits for one request, and records its result.
    async fn settle(&mut self, flight: &mut Flight) -> Result<()> {
        let Some((id, response)) = flight.completions.next().await else { return Ok(()) };
        let place = flight.steps.iter().position(|(other, _)| *other == id).ok_or("it was in flight")?;
        let (_, step) = flight.steps.remove(place).ok_or("it was in flight")?;
        response.result?;
        match step {
            Step::Flush(covered) => {
                for (access, version) in covered {
                    for known in self.known(access) {
                        known.flushed = known.flushed.max(version);
                    }
                }
            }
            Step::Access { access, version } if access.kind == AccessKind::Write => {
                for known in self.known(access) {
                    known.acknowledged = version;
                }
                flight.unflushed.push((access, version));
            }
            Step::Access { .. } if flight.is_blind => {}
            Step::Access { access, .. } => {
                let seed = self.seed;
                let first = access.range.offset / UNIT_BYTES as u64;
                for ((unit, bytes), known) in (first..).zip(response.buffer.chunks(UNIT_BYTES)).zip(self.known(access))
                {
                    if version_of(seed, unit, bytes) != Some(known.acknowledged) {
                        return Err(format!("unit {unit} is {}, not {known:?}", content::identify(bytes)).into());
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads all units and compares them with the record. The units found become the record.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn verify(&mut self) -> Result<Survival> {
        let device = self.device()?;
        let mut survival = Survival::default();
        let mut reads = futures_util::stream::iter((0..FOOTPRINT_BYTES).step_by(VERIFY_BYTES as usize))
            .map(|offset| {
                let read = device.read(offset, Buffer::zeroed(VERIFY_BYTES as usize));
                async move { (offset, read.await) }
            })
            .buffered(4);
        while let Some((offset, buffer)) = reads.next().await {
            let buffer = buffer?;
            let first = offset / UNIT_BYTES as u64;
            for (unit, bytes) in (first..).zip(buffer.chunks(UNIT_BYTES)) {
                let known = &mut self.units[unit as usize];
                check(known, version_of(self.seed, unit, bytes), &mut survival);
            }
        }
        Ok(survival)
    }

    fn device(&self) -> Result<SharedDevice> {
        Ok(self.lun.clone().ok_or("nobody is logged in")?)
    }

    /// The accesses of the paper's kinds of load: few places are used often. Slots of 32 KiB,
    /// because neighbours are mostly used together; three of four requests are for 4 KiB of one.
    fn accesses(&mut self, write_share: f64) -> Result<Generator> {
        let mut generator = Generator::new(Profile {
            // The permutation of places follows from the seed, so it must be the same in all runs.
            seed: self.seed,
            write_share,
            sizes: vec![(4 << 10, 3.0), (32 << 10, 1.0)],
            pattern: Pattern::Zipf { theta: 0.99 },
            footprint: block::ByteRange { offset: 0, length: FOOTPRINT_BYTES },
        })?;
        // Another part of the stream for each run.
        generator.by_ref().take(self.runs * 20_000).for_each(|_| ());
        self.runs += 1;
        Ok(generator)
    }

    fn known(&mut self, access: Access) -> impl Iterator<Item = &mut Known> {
        let first = (access.range.offset / UNIT_BYTES as u64) as usize;
        self.units.iter_mut().skip(first).take((access.range.length / UNIT_BYTES as u64) as usize)
    }
}

/// The number of the write that a unit holds: zero for zeroes; `None` for content of another place.
fn version_of(seed: u64, unit: u64, bytes: &[u8]) -> Option<u64> {
    match content::identify(bytes) {
        Unit::Zero => Some(0),
        Unit::Whole(stamp) if stamp.seed == seed && stamp.unit == unit => Some(stamp.version),
        _ => None,
    }
}

fn check(known: &mut Known, found: Option<u64>, survival: &mut Survival) {
    survival.written += u64::from(known.sent > 0);
    survival.at_risk += u64::from(known.acknowledged > known.flushed);
    match found {
        Some(version) if version > known.sent => survival.damaged += 1,
        None => survival.damaged += 1,
        Some(version) if version < known.flushed => survival.lost_flushed += 1,
        Some(version) if version < known.acknowledged => survival.lost_acknowledged += 1,
        Some(_) => {}
    }
    let now = found.unwrap_or(0);
    *known = Known { sent: now, acknowledged: now, flushed: now };
}

type Answer = std::pin::Pin<Box<dyn Future<Output = (u64, Response)> + Send>>;

/// The requests in flight.
struct Flight {
    device: SharedDevice,
    completions: FuturesUnordered<Answer>,
    steps: VecDeque<(u64, Step)>,
    next_id: u64,
    unflushed: Vec<(Access, u64)>,
    counts: Counts,
    is_blind: bool,
}

impl Flight {
    fn new(device: SharedDevice) -> Self {
        Self {
            device,
            completions: FuturesUnordered::new(),
            steps: VecDeque::new(),
            next_id: 0,
            unflushed: Vec::new(),
            counts: Counts::default(),
            is_blind: false,
        }
    }

    fn is_in_the_way_of(&self, access: &Access) -> bool {
        self.steps
            .iter()
            .any(|(_, step)| matches!(step, Step::Access { access: other, .. } if other.conflicts_with(access)))
    }

    fn flush(&mut self) {
        let covered = std::mem::take(&mut self.unflushed);
        self.submit(Step::Flush(covered), Request::flush());
    }

    fn submit(&mut self, step: Step, request: Request) {
        let id = self.next_id;
        self.next_id += 1;
        let completion = self.device.submit(request);
        self.steps.push_back((id, step));
        self.completions.push(Box::pin(async move { (id, completion.await) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_has_its_name() {
        let known = Known { sent: 9, acknowledged: 7, flushed: 5 };
        for (found, expected) in [
            (Some(9), [0, 0, 0]),
            (Some(7), [0, 0, 0]),
            (Some(6), [0, 1, 0]),
            (Some(5), [0, 1, 0]),
            (Some(4), [1, 0, 0]),
            (Some(0), [1, 0, 0]),
            (Some(10), [0, 0, 1]),
            (None, [0, 0, 1]),
        ] {
            let mut survival = Survival::default();
            check(&mut known.clone(), found, &mut survival);
            let Survival { lost_flushed, lost_acknowledged, damaged, .. } = survival;
            assert_eq!([lost_flushed, lost_acknowledged, damaged], expected, "{found:?}");
            assert_eq!((survival.written, survival.at_risk), (1, 1));
        }
    }
}
