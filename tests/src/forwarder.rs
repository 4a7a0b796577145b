//! A portal that can be cut off: it forwards connections to a real one.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A portal that forwards connections to a real one until it is cut off.
pub struct Forwarder {
    /// Where it listens.
    pub address: SocketAddr,
    is_cut: Arc<AtomicBool>,
    is_frozen: Arc<AtomicBool>,
    /// The ends of each connection that was ever made and not cut.
    connections: Arc<Mutex<Vec<[TcpStream; 2]>>>,
}

impl Forwarder {
    /// One to `target`, ADDRESS:PORT.
    ///
    /// # Panics
    /// When there is no port left.
    pub fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        let forwarder =
            Self { address, is_cut: Arc::default(), is_frozen: Arc::default(), connections: Arc::default() };
        let (is_cut, connections) = (Arc::clone(&forwarder.is_cut), Arc::clone(&forwarder.connections));
        let is_frozen = Arc::clone(&forwarder.is_frozen);
        let target = target.to_owned();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                wait_while(&is_frozen);
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(&target) else { continue };
                let copy = |stream: &TcpStream| stream.try_clone().expect("there are descriptors left");
                lock(&connections).push([copy(&near), copy(&far)]);
                forward(copy(&near), copy(&far), Arc::clone(&is_frozen));
                forward(far, near, Arc::clone(&is_frozen));
            }
        });
        forwarder
    }

    /// Ends all connections and refuses new ones.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        lock(&self.connections).drain(..).for_each(end);
    }

    /// Ends one connection, by the order in which they were made; new ones are welcome.
    ///
    /// # Panics
    /// When there is none such.
    pub fn cut_one(&self, index: usize) {
        end(lock(&self.connections).remove(index));
    }

    /// Nothing arrives any more, also no end, and no side is told: a network that loses everything.
    pub fn freeze(&self) {
        self.is_frozen.store(true, Ordering::SeqCst);
    }

    /// Takes connections again. What was frozen arrives, unless it was cut.
    pub fn mend(&self) {
        self.is_frozen.store(false, Ordering::SeqCst);
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end(connection: [TcpStream; 2]) {
    for stream in connection {
        // The other end may have closed it already.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn wait_while(is_frozen: &AtomicBool) {
    while is_frozen.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, is_frozen: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            wait_while(&is_frozen);
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        wait_while(&is_frozen);
        // The other end may have closed it already.
        let _ = to.shutdown(Shutdown::Write);
    });
}
