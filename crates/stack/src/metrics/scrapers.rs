//! The connections of scrapers: so many at once, and none that is silent for long.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::limits::{METRICS_CONNECTIONS_MAX, METRICS_SILENCE_MAX};

/// A listener that accepts no more than it has room for.
pub(super) struct Scrapers {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

impl Scrapers {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(METRICS_CONNECTIONS_MAX)) }
    }
}

impl Listener for Scrapers {
    type Io = Scraper;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Scraper, SocketAddr) {
        let room = Arc::clone(&self.room).acquire_owned().await.expect("the semaphore is never closed");
        // Logs and waits where descriptors are short.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        (Scraper { stream, silence: Box::pin(sleep(METRICS_SILENCE_MAX)), _room: room }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends with an error when it is silent. Only what is sent counts as news: a request that comes byte by byte has its time as a
/// whole.
pub(super) struct Scraper {
    stream: TcpStream,
    silence: Pin<Box<Sleep>>,
    _room: OwnedSemaphorePermit,
}

impl Scraper {
    fn poll_silence<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        ready!(self.silence.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Passes on what a write came to.
    fn poll_sent<T>(&mut self, context: &mut Context<'_>, sent: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if sent.is_pending() {
            return self.poll_silence(context);
        }
        self.silence = Box::pin(sleep_until(Instant::now() + METRICS_SILENCE_MAX));
        sent
    }
}

impl AsyncRead for Scraper {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(Err(error)) = this.poll_silence::<()>(context) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut this.stream).poll_read(context, bytes)
    }
}

impl AsyncWrite for Scraper {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let sent = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.poll_sent(context, sent)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::metrics::{MetricsServer, Reach};

    #[tokio::test(start_paused = true)]
    async fn many_silent_connections_do_not_keep_a_scraper_away() {
        let loopback = Reach::Loopback { advice: "" };
        let server = MetricsServer::bind("127.0.0.1:0".parse().unwrap(), loopback).unwrap();
        let address = server.address();
        let scrape = async {
            let mut silent = Vec::new();
            for count in 0..2 * METRICS_CONNECTIONS_MAX {
                let mut stream = TcpStream::connect(address).await.unwrap();
                if count % 2 == 0 {
                    stream.write_all(b"GET /metrics HT").await.unwrap();
                }
                silent.push(stream);
            }
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        };
        tokio::select! {
            served = server.serve(async || serde_json::json!({ "kind": "target" }), std::future::pending()) => panic!("{served:?}"),
            () = scrape => {}
        }
    }
}
