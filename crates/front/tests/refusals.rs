//! Connections that are refused: whoever may connect may do so ten thousand times, and the log stays readable.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::limits::REFUSALS_LOGGED_MAX;
use common::{Running, memory};
use front::{ListenAddress, NbdOptions};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Counts lines of the log that a user sees.
#[derive(Clone, Default)]
struct Lines(Arc<AtomicUsize>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_refused_clients_is_a_few_lines() {
    const REFUSED: u64 = 200;
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let options = NbdOptions { connections_max: 1, spare_connections_max: 0, ..NbdOptions::default() };
    let running = Running::start(memory(1 << 20), options);
    let ListenAddress::Unix(path) = &running.address else { unreachable!("the tests use socket files") };
    let mut first = UnixStream::connect(path).await.unwrap();
    first.read_exact(&mut [0; 18]).await.unwrap();
    for _ in 0..REFUSED {
        let mut refused = UnixStream::connect(path).await.unwrap();
        assert_eq!(refused.read(&mut [0; 1]).await.unwrap(), 0, "it is closed");
    }
    assert_eq!(running.server.counters().connections_refused, REFUSED);
    assert_eq!(lines.0.load(Ordering::Relaxed), REFUSALS_LOGGED_MAX as usize);
    drop(first);
}
