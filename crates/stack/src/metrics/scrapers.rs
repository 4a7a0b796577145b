//! The connections of scrapers: a limited number, and none that is silent for long. One more closes
//! the oldest: a scrape takes a moment, so the oldest is not in one.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::limits::{METRICS_CONNECTIONS_MAX, METRICS_SILENCE_MAX};

/// A listener that keeps a limited number of connections.
pub(super) struct Scrapers {
    listener: TcpListener,
    /// The places of the connections, the oldest first. A connection whose place is dropped ends.
    places: VecDeque<oneshot::Sender<()>>,
}

impl Scrapers {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, places: VecDeque::new() }
    }

    /// Takes a place, if necessary that of the oldest connection.
    fn take_place(&mut self) -> oneshot::Receiver<()> {
        self.places.retain(|place| !place.is_closed());
        if self.places.len() >= METRICS_CONNECTIONS_MAX {
            self.places.pop_front();
        }
        let (place, held) = oneshot::channel();
        self.places.push_back(place);
        held
    }
}

impl Listener for Scrapers {
    type Io = Scraper;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Scraper, SocketAddr) {
        // Logs and waits when descriptors run short.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let place = Some(self.take_place());
        (Scraper { stream, silence: Box::pin(sleep(METRICS_SILENCE_MAX)), place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends with an error when it is silent, or when it has lost its place. Only
/// sending counts as activity: a request that comes byte by byte has one time limit as a whole.
pub(super) struct Scraper {
    stream: TcpStream,
    silence: Pin<Box<Sleep>>,
    /// `None` once it is lost.
    place: Option<oneshot::Receiver<()>>,
}

impl Scraper {
    /// Ready with an error when it has been silent for too long, or lost its place.
    fn poll_end<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if self.place.as_mut().is_some_and(|place| Pin::new(place).poll(context).is_ready()) {
            self.place = None;
        }
        if self.place.is_some() && self.silence.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Passes on the result of a write, and notes the activity.
    fn poll_sent<T>(&mut self, context: &mut Context<'_>, sent: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if sent.is_pending() {
            return self.poll_end(context);
        }
        self.silence = Box::pin(sleep_until(Instant::now() + METRICS_SILENCE_MAX));
        sent
    }
}

impl AsyncRead for Scraper {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(Err(error)) = this.poll_end::<()>(context) {
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
    use crate::status::ProcessStatus;

    async fn status() -> ProcessStatus {
        ProcessStatus::Target(Box::default())
    }

    const SCRAPE: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
    /// The beginning of a request.
    const SILENT: &[u8] = b"GET /metrics HT";

    async fn silent(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(SILENT).await.unwrap();
        stream
    }

    /// It was closed for another connection, before its own silence would have ended it.
    async fn assert_closed(stream: &mut TcpStream) {
        let mut byte = [0];
        let read = tokio::time::timeout(METRICS_SILENCE_MAX / 2, stream.read(&mut byte)).await;
        assert_eq!(read.expect("it is closed at once").unwrap_or_default(), 0, "it has no answer");
    }

    async fn scrape(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(SCRAPE).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// A host that connects again and again would fill all places whenever older connections are
    /// closed for their silence.
    #[tokio::test]
    async fn a_scraper_does_not_wait_for_the_silence_of_others_to_end() {
        let server = MetricsServer::bind("127.0.0.1:0".parse().unwrap(), Reach::Everywhere).unwrap();
        let address = server.address();
        let scraping = async {
            let mut others = Vec::new();
            for _ in 0..2 * METRICS_CONNECTIONS_MAX {
                others.push(silent(address).await);
            }
            assert!(scrape(address).await.starts_with("HTTP/1.1 200"));
            let last = others.pop().expect("there are many");
            let read = last.try_read(&mut [0; 8]);
            assert!(matches!(&read, Err(error) if error.kind() == io::ErrorKind::WouldBlock), "it is there: {read:?}");
            assert_closed(&mut others[0]).await;
        };
        tokio::select! {
            served = server.serve(status, std::future::pending()) => panic!("{served:?}"),
            () = scraping => {}
        }
    }

    #[tokio::test]
    async fn thirty_two_keep_their_places_and_one_more_takes_that_of_the_first() {
        let server = MetricsServer::bind("127.0.0.1:0".parse().unwrap(), Reach::Everywhere).unwrap();
        let address = server.address();
        let scraping = async {
            let mut others = Vec::new();
            for _ in 0..32 {
                others.push(silent(address).await);
            }
            assert!(scrape(address).await.starts_with("HTTP/1.1 200"));
            assert_closed(&mut others[0]).await;
            for other in &mut others[1..] {
                other.write_all(&SCRAPE[SILENT.len()..]).await.unwrap();
                let mut answer = String::new();
                other.read_to_string(&mut answer).await.unwrap();
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            }
        };
        tokio::select! {
            served = server.serve(status, std::future::pending()) => panic!("{served:?}"),
            () = scraping => {}
        }
    }

    /// Whoever has said nothing has nine seconds for certain, and is gone after eleven.
    #[tokio::test(start_paused = true)]
    async fn who_is_silent_for_ten_seconds_is_closed() {
        let server = MetricsServer::bind("127.0.0.1:0".parse().unwrap(), Reach::Everywhere).unwrap();
        let address = server.address();
        let scraping = async {
            let (began, mut byte) = (Instant::now(), [0]);
            let mut stream = silent(address).await;
            // Its silence counts from when it was accepted, which an answer to one who came later shows.
            assert!(scrape(address).await.starts_with("HTTP/1.1 200"));
            let read = stream.read(&mut byte).await;
            assert_eq!(read.unwrap_or_default(), 0, "it has no answer");
            let took = began.elapsed().as_secs_f64();
            assert!((9.0..11.0).contains(&took), "it was closed after {took} s");
        };
        tokio::select! {
            served = server.serve(status, std::future::pending()) => panic!("{served:?}"),
            ended = tokio::time::timeout(4 * METRICS_SILENCE_MAX, scraping) => ended.expect("it is closed"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_silent_connections_do_not_keep_a_scraper_away() {
        let loopback = Reach::Loopback { advice: "" };
        let server = MetricsServer::bind("127.0.0.1:0".parse().unwrap(), loopback).unwrap();
        let address = server.address();
        let scraping = async {
            let mut others = Vec::new();
            for count in 0..2 * METRICS_CONNECTIONS_MAX {
                others.push(if count % 2 == 0 {
                    silent(address).await
                } else {
                    TcpStream::connect(address).await.unwrap()
                });
            }
            let answer = scrape(address).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        };
        tokio::select! {
            served = server.serve(status, std::future::pending()) => panic!("{served:?}"),
            () = scraping => {}
        }
    }
}
