//! A link of a gigabit per second with delay and loss between two network namespaces: a TUN device in each, and threads
//! here that carry packets from one to the other.
//!
//! TCP runs from end to end over it, so its windows, its recovery and its congestion control are real, which they are
//! not behind a proxy. Packets are lost at random, from a seed, as often as asked, and never change places. A sleep
//! ends up to some 50 us late, and an idle processor takes as long to wake up: a round trip is 0.1 to 0.15 ms longer
//! than asked for.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::error::LabError;
use crate::limits::{PACKET_BYTES_MAX, PACKETS_UNDER_WAY_MAX, SMALL_PACKET_BYTES, WAN_BUFFER, WAN_TIME_PER_BYTE};

/// The link. Its threads end with its devices, which end with their namespaces.
pub(crate) struct Wan {
    settings: Arc<Settings>,
}

#[derive(Default)]
struct Settings {
    /// Delay of one way.
    delay_ns: AtomicU64,
    loss_ppm: AtomicU32,
    /// Packets of both ways since the last call of [`Wan::take_packets`].
    packets: AtomicU64,
    small_packets: AtomicU64,
}

/// Packets that both ends sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packets {
    pub(crate) count: u64,
    /// Shorter than [`SMALL_PACKET_BYTES`].
    pub(crate) small: u64,
}

impl Packets {
    pub(crate) fn small_percent(self) -> f64 {
        100.0 * self.small as f64 / self.count.max(1) as f64
    }
}

/// The time at which a packet is to arrive, and its bytes.
type Packet = (Instant, Vec<u8>);

impl Wan {
    /// Makes a device of that name in each namespace and joins them, without delay or loss. The devices still need
    /// addresses.
    pub(crate) fn open(namespaces: [&str; 2], device: &str) -> Result<Self, LabError> {
        let [one, other] = namespaces.map(|namespace| open(namespace, device));
        let (one, other) = (Arc::new(one?), Arc::new(other?));
        let settings = Arc::new(Settings::default());
        for (seed, from, to) in [(1, &one, &other), (2, &other, &one)] {
            let (sender, receiver) = sync_channel(PACKETS_UNDER_WAY_MAX);
            let (from, to, settings) = (Arc::clone(from), Arc::clone(to), Arc::clone(&settings));
            spawn(move || take(&from, &sender, &settings, seed));
            spawn(move || deliver(&to, &receiver));
        }
        Ok(Self { settings })
    }

    /// Sets the delay of one way, and how many packets of a million are lost, from the next packet
    /// on.
    pub(crate) fn set(&self, delay: Duration, loss_ppm: u32) {
        self.settings.delay_ns.store(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.settings.loss_ppm.store(loss_ppm.min(1_000_000), Ordering::Relaxed);
    }

    /// Packets since the last call.
    pub(crate) fn take_packets(&self) -> Packets {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        Packets { count: take(&self.settings.packets), small: take(&self.settings.small_packets) }
    }
}

/// A device in a namespace. The thread that enters it ends there.
fn open(namespace: &str, device: &str) -> Result<SyncDevice, LabError> {
    let failed = |error: std::io::Error| LabError::Other(format!("no TUN device in {namespace}: {error}"));
    let file = File::open(format!("/run/netns/{namespace}")).map_err(failed)?;
    let name = device.to_owned();
    let opened = spawn(move || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        DeviceBuilder::new().name(name).build_sync()
    });
    opened.join().unwrap_or_else(|_| Err(std::io::Error::other("its thread panicked"))).map_err(failed)
}

/// Receives packets from one end. A packet that does not fit into the buffer is lost, as at a
/// router.
fn take(from: &SyncDevice, sender: &SyncSender<Packet>, settings: &Settings, seed: u64) {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut packet = vec![0; PACKET_BYTES_MAX];
    // The time at which all packets so far are on the wire.
    let mut sent = Instant::now();
    while let Ok(length) = from.recv(&mut packet) {
        settings.packets.fetch_add(1, Ordering::Relaxed);
        settings.small_packets.fetch_add(u64::from(length < SMALL_PACKET_BYTES), Ordering::Relaxed);
        if random.random_ratio(settings.loss_ppm.load(Ordering::Relaxed), 1_000_000) {
            continue;
        }
        let now = Instant::now();
        if sent.saturating_duration_since(now) > WAN_BUFFER {
            continue;
        }
        sent = sent.max(now) + WAN_TIME_PER_BYTE * length as u32;
        let due = sent + Duration::from_nanos(settings.delay_ns.load(Ordering::Relaxed));
        if let Err(TrySendError::Disconnected(_)) = sender.try_send((due, packet[..length].to_vec())) {
            return;
        }
    }
}

/// Sends each packet to the other end when it is due.
fn deliver(to: &SyncDevice, receiver: &Receiver<Packet>) {
    for (due, packet) in receiver {
        let rest = due.saturating_duration_since(Instant::now());
        if !rest.is_zero() {
            sleep(rest);
        }
        if to.send(&packet).is_err() {
            return;
        }
    }
}
