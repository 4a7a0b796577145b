//! The stripe against a flat model, with members that fail.

use super::*;
use crate::device::DeviceExt;
use crate::event::Event;
use crate::layer::delay::{DelayLayer, Delays, Latency};
use crate::layer::error::{ErrorLayer, ErrorRule, Trigger};
use crate::memory::MemoryDevice;
use crate::request::{ExtentKind, OperationKind, Response};
use base::buffer::Buffer;
use base::clock::Clock as _;
use base::clock::Instant;
use base::executor::{Executor, block_on};
use base::range::ByteRange;
use proptest::prelude::*;
use std::sync::Mutex;
use std::time::Duration;

const UNIT: u64 = 4096;

fn identity(number: usize) -> Identity {
    Identity { target: "memory".into(), unit: format!("unit {number}"), serial: format!("serial {number}") }
}

fn memory(number: usize, size_bytes: u64) -> SharedDevice {
    Arc::new(MemoryDevice::new(size_bytes, identity(number)))
}

fn stripe(sizes: &[u64]) -> Stripe {
    let members = sizes.iter().enumerate().map(|(number, &size)| memory(number, size)).collect();
    Stripe::new(members, UNIT).expect("members and unit are right")
}

fn message(members: Vec<SharedDevice>, unit_bytes: u64) -> String {
    Stripe::new(members, unit_bytes).err().expect("it is refused").to_string()
}

#[test]
fn what_makes_no_stripe_is_refused() {
    assert!(message(vec![memory(0, 1 << 20)], UNIT).contains("2 to 64 members"));
    assert!(message(vec![memory(0, 1 << 20), memory(1, 1 << 20)], 5000).contains("no power of two"));
    assert!(message(vec![memory(0, 1 << 20), memory(1, 1 << 20)], 256).contains("from 512"));
    assert!(message(vec![memory(0, 1 << 20), memory(1, 2048)], UNIT).contains("member 2 of 2"));
    let error = Stripe::new(vec![memory(0, 1 << 20), memory(1, 1 << 20), memory(0, 1 << 20)], UNIT).err();
    let error = error.expect("one device at two places");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("members 1 and 3"), "{error}");
}

#[test]
fn the_smallest_member_counts_and_the_rest_is_said() {
    let stripe = stripe(&[10 * UNIT + 512, 8 * UNIT + 1024, 9 * UNIT]);
    assert_eq!(stripe.geometry().size_bytes, 3 * 8 * UNIT);
    assert_eq!(stripe.geometry().hints.io_bytes_optimal, 3 * UNIT as u32);
    let unused: Vec<u64> = stripe.members().iter().map(|member| member.unused_bytes).collect();
    assert_eq!(unused, [2 * UNIT + 512, 1024, UNIT]);
}

#[test]
fn another_order_unit_or_member_is_another_identity() {
    let of = |numbers: &[usize], unit| {
        Stripe::new(numbers.iter().map(|&number| memory(number, 1 << 20)).collect(), unit).expect("right").identity()
    };
    let identity = of(&[0, 1, 2], UNIT);
    assert_eq!(identity, of(&[0, 1, 2], UNIT));
    for other in [of(&[0, 2, 1], UNIT), of(&[0, 1], UNIT), of(&[0, 1, 3], UNIT), of(&[0, 1, 2], 2 * UNIT)] {
        assert_ne!(identity, other);
    }
}

/// Three members with 1 ms each are done after 1 ms, not after 3.
#[test]
fn members_work_at_the_same_time() {
    let mut executor = Executor::in_order();
    let clock = executor.clock();
    let slow = |number| -> SharedDevice {
        let delays = Delays::all(Latency::Fixed(Duration::from_millis(1)));
        Arc::new(DelayLayer::new(memory(number, 1 << 20), Arc::new(clock.clone()), &Workers::new(), delays, 1))
    };
    let stripe = Stripe::new(vec![slow(0), slow(1), slow(2)], UNIT).expect("right");
    let begin = Instant::START;
    let clock = clock.clone();
    executor.block_on(async move {
        let bytes: Vec<u8> = (0..6 * UNIT).map(|index| (index / 512) as u8).collect();
        stripe.write(512, Buffer::copy_of(&bytes), false).await.expect("RAM does not fail");
        assert_eq!(clock.now(), begin + Duration::from_millis(1));
        stripe.flush().await.expect("RAM does not fail");
        assert_eq!(clock.now(), begin + Duration::from_millis(2));
        let read = stripe.read(512, Buffer::zeroed(bytes.len())).await.expect("RAM does not fail");
        assert!(read[..] == bytes[..]);
    });
}

#[test]
fn a_member_that_is_down_is_named_and_the_others_go_on() {
    let broken = Arc::new(ErrorLayer::new(memory(1, 1 << 20), &Workers::new(), 1));
    broken.add(ErrorRule::new(Trigger::Always, ErrorKind::TimedOut));
    let stripe = Stripe::new(vec![memory(0, 1 << 20), broken, memory(2, 1 << 20)], UNIT).expect("right");
    block_on(stripe.write(0, Buffer::zeroed(512), false)).expect("member 1 works");
    let error = block_on(stripe.read(UNIT, Buffer::zeroed(512))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("member 2 of 3") && error.to_string().contains("serial 1"), "{error}");
    let error = block_on(stripe.read(0, Buffer::zeroed(3 * UNIT as usize))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "a read changes nothing");
    let error = block_on(stripe.write(0, Buffer::zeroed(3 * UNIT as usize), false)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "the other members have written");
    assert!(block_on(stripe.flush()).is_err());
}

#[test]
fn extents_are_those_of_the_members() {
    let stripe = stripe(&[64 << 20; 2].map(|size| size as u64));
    let kinds = |offset, length| -> Vec<(u64, u64, ExtentKind)> {
        let extents = block_on(stripe.extents(offset, length)).expect("RAM does not fail");
        extents.iter().map(|extent| (extent.range.offset, extent.range.length, extent.kind)).collect()
    };
    assert_eq!(kinds(0, 128 << 20), [(0, 128 << 20, ExtentKind::Hole)]);
    block_on(stripe.write(0, Buffer::zeroed(512), false)).expect("RAM does not fail");
    // RAM is taken by 256 KiB: the first 64 units of member 1 are stored, none of member 2.
    assert_eq!(
        kinds(0, 3 * UNIT),
        [(0, UNIT, ExtentKind::Data), (UNIT, UNIT, ExtentKind::Hole), (2 * UNIT, UNIT, ExtentKind::Data)]
    );
    assert_eq!(kinds(UNIT + 512, 1024), [(UNIT + 512, 1024, ExtentKind::Hole)]);
}

/// A device with events and a changeable size.
struct Told {
    hub: crate::event::EventHub,
    size: Mutex<u64>,
    number: usize,
}

impl Device for Told {
    fn geometry(&self) -> Geometry {
        Geometry::plain(*self.size.lock().expect("no test panics with it"))
    }
    fn identity(&self) -> Identity {
        identity(self.number)
    }
    fn submit(&self, request: Request) -> Completion {
        Completion::ready(Response { result: Ok(()), ..request.fail(ErrorKind::Gone) })
    }
    fn subscribe(&self) -> EventReceiver {
        self.hub.subscribe()
    }
}

#[test]
fn events_of_members_become_events_of_the_whole() {
    let told: Vec<Arc<Told>> =
        (0..2).map(|number| Arc::new(Told { hub: Default::default(), size: Mutex::new(1 << 20), number })).collect();
    let members = told.iter().cloned().map(|told| told as SharedDevice).collect();
    let stripe = Arc::new(Stripe::new(members, UNIT).expect("right"));
    let receiver = stripe.subscribe();
    let mut executor = Executor::in_order();
    let running = Arc::clone(&stripe);
    executor.spawn(async move { running.run().await });
    executor.run_until_stalled();
    let mut step = |member: usize, event: Event| {
        told[member].hub.publish(&event);
        executor.run_until_stalled();
        std::iter::from_fn(|| receiver.try_receive()).collect::<Vec<_>>()
    };
    assert_eq!(step(1, Event::Offline), [Event::Offline]);
    assert_eq!(step(0, Event::Offline), []);
    assert_eq!(stripe.members().iter().map(|member| member.is_online).collect::<Vec<_>>(), [false, false]);
    assert_eq!(step(1, Event::Back), []);
    assert_eq!(step(0, Event::Back), [Event::Back]);
    let range = ByteRange { offset: UNIT, length: UNIT };
    let expected = ByteRange { offset: 3 * UNIT, length: UNIT };
    assert_eq!(step(1, Event::Invalidated(range)), [Event::Invalidated(expected)]);
    assert_eq!(step(0, Event::Invalidated(ByteRange { offset: 0, length: 1 << 20 })), [Event::Missed]);
    *told[0].size.lock().unwrap() = 2 << 20;
    assert_eq!(step(0, Event::Resized(Geometry::plain(2 << 20))), [], "the other has not grown");
    *told[1].size.lock().unwrap() = 2 << 20;
    let grown = step(1, Event::Resized(Geometry::plain(2 << 20)));
    assert!(matches!(grown[..], [Event::Resized(geometry)] if geometry.size_bytes == 4 << 20), "{grown:?}");
    assert_eq!(stripe.geometry().size_bytes, 4 << 20);
}

#[derive(Clone, Debug)]
enum Step {
    Read { sector: u64, sectors: u64 },
    Write { sector: u64, sectors: u64, byte: u8 },
    Zero { sector: u64, sectors: u64 },
    Discard { sector: u64, sectors: u64 },
}

fn step(sector_count: u64) -> impl Strategy<Value = Step> {
    let range = (0..sector_count).prop_flat_map(move |sector| (Just(sector), 1..=(sector_count - sector).min(90)));
    (0u8..4, range, any::<u8>()).prop_map(|(kind, (sector, sectors), byte)| match kind {
        0 => Step::Read { sector, sectors },
        1 => Step::Write { sector, sectors, byte },
        2 => Step::Zero { sector, sectors },
        _ => Step::Discard { sector, sectors },
    })
}

const MEMBER_BYTES: u64 = 16 * UNIT;

proptest! {
    /// A member that is down leaves its part unchanged; everything else is as on a flat device.
    #[test]
    fn a_stripe_is_a_flat_device(
        member_count in 2usize..5,
        steps in prop::collection::vec((step(2 * MEMBER_BYTES / 512), prop::option::weighted(0.3, 0usize..4)), 1..60)
    ) {
        let layers: Vec<Arc<ErrorLayer>> =
            (0..member_count)
                .map(|number| Arc::new(ErrorLayer::new(memory(number, MEMBER_BYTES), &Workers::new(), 1)))
                .collect();
        let members = layers.iter().cloned().map(|layer| layer as SharedDevice).collect();
        let stripe = Stripe::new(members, UNIT).expect("right");
        let mut model = vec![0u8; stripe.geometry().size_bytes as usize];
        for (step, down) in steps {
            let down = down.filter(|&down| down < member_count);
            if let Some(down) = down {
                let all = OperationKind::ALL;
                layers[down].add(ErrorRule::new(Trigger::Always, ErrorKind::Media).on(&all));
            }
            let (sector, sectors) = match step {
                Step::Read { sector, sectors } | Step::Write { sector, sectors, .. }
                | Step::Zero { sector, sectors } | Step::Discard { sector, sectors } => (sector, sectors),
            };
            let range = ByteRange { offset: sector * 512, length: sectors * 512 };
            let places = range.offset as usize..range.end() as usize;
            let (result, fill) = match step {
                Step::Read { .. } => {
                    let read = block_on(stripe.read(range.offset, Buffer::zeroed(places.len())));
                    if let Ok(read) = &read {
                        prop_assert!(read[..] == model[places.clone()]);
                    }
                    (read.map(drop), None)
                }
                Step::Write { byte, .. } => {
                    let bytes: Vec<u8> = (0..places.len()).map(|at| byte.wrapping_add((at / 512) as u8)).collect();
                    (block_on(stripe.write(range.offset, Buffer::copy_of(&bytes), false)).map(drop), Some(bytes))
                }
                Step::Zero { .. } => {
                    let done = block_on(stripe.write_zeroes(range.offset, range.length, false, true));
                    (done, Some(vec![0; places.len()]))
                }
                Step::Discard { .. } => {
                    (block_on(stripe.discard(range.offset, range.length)), Some(vec![0; places.len()]))
                }
            };
            let touches = |member: usize| stripe.layout().on_member(member, range).length > 0;
            prop_assert_eq!(result.is_err(), down.is_some_and(touches));
            for piece in stripe.layout().pieces(range).filter(|piece| Some(piece.member) != down) {
                if let Some(bytes) = &fill {
                    let (at, end) = (piece.at as usize, (piece.at + piece.length) as usize);
                    model[places.start + at..places.start + end].copy_from_slice(&bytes[at..end]);
                }
            }
            layers.iter().for_each(|layer| layer.clear());
        }
        let whole = block_on(stripe.read(0, Buffer::zeroed(model.len()))).expect("all members are up");
        prop_assert!(whole[..] == model[..]);
    }
}
