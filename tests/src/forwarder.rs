//! A portal that can be cut off: it forwards connections to a real one.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A portal that forwards connections to a real one until it is cut off.
pub struct Forwarder {
    /// Where it listens.
    pub address: SocketAddr,
    is_cut: Arc<AtomicBool>,
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
        let forwarder = Self { address, is_cut: Arc::default(), connections: Arc::default() };
        let (is_cut, connections) = (Arc::clone(&forwarder.is_cut), Arc::clone(&forwarder.connections));
        let target = target.to_owned();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(&target) else { continue };
                let copy = |stream: &TcpStream| stream.try_clone().expect("there are descriptors left");
                lock(&connections).push([copy(&near), copy(&far)]);
                forward(copy(&near), copy(&far));
                forward(far, near);
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

    /// Takes connections again.
    pub fn mend(&self) {
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

fn forward(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        // The other end may have closed it already.
        let _ = to.shutdown(Shutdown::Write);
    });
}
