//! What it costs here to wake a sleeping thread.

use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Round trips that are measured. The other thread has gone to sleep before each.
const ROUNDS: usize = 15;

/// Pause before each, in which both processors come to rest.
const REST: Duration = Duration::from_micros(300);

/// What is believed: less was measured between processors that other programs kept awake, and does not hold a network's
/// round trip; more is a machine that had other things to do.
const LEAST: Duration = Duration::from_micros(50);
const MOST: Duration = Duration::from_micros(200);

/// Time from waking a thread to its first step, measured once (some 10 ms), between 50 us and 200 us; 50 us where there
/// are no threads to measure with.
pub fn wake_up_time() -> Duration {
    static MEASURED: OnceLock<Duration> = OnceLock::new();
    *MEASURED.get_or_init(|| measure().unwrap_or(Duration::from_micros(50)).clamp(LEAST, MOST))
}

/// Half of the median round trip.
fn measure() -> Option<Duration> {
    let (there, asked) = mpsc::channel();
    let (answer, back) = mpsc::channel();
    let echo = thread::Builder::new().name("wake-up".into()).spawn(move || answer_all(&asked, &answer)).ok()?;
    let mut times: Vec<Duration> = (0..ROUNDS).filter_map(|_| round_trip(&there, &back)).collect();
    drop(there);
    echo.join().ok()?;
    times.sort_unstable();
    times.get(times.len() / 2).map(|median| *median / 2)
}

fn answer_all(asked: &Receiver<()>, answer: &Sender<()>) {
    base::background::turn("wake-up");
    while asked.recv().is_ok() && answer.send(()).is_ok() {}
}

fn round_trip(there: &Sender<()>, back: &Receiver<()>) -> Option<Duration> {
    thread::sleep(REST);
    let begun = Instant::now();
    there.send(()).ok()?;
    back.recv().ok()?;
    Some(begun.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_measured_once_and_within_its_bounds() {
        let measured = wake_up_time();
        assert!((LEAST..=MOST).contains(&measured));
        assert_eq!(wake_up_time(), measured);
    }
}
