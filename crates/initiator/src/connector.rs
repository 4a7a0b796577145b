//! How connections come about: TCP in production, anything that reads and writes in tests and experiments.

use std::future::Future;
use std::io::{self, Read};
use std::pin::Pin;

use iscsi::url::Portal;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpStream;

/// A connection's two directions.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Whether [`receive_now`](Self::receive_now) works, so that busy polling makes sense.
    fn can_receive_now(&self) -> bool {
        false
    }

    /// Reads from the system directly, without the runtime, which looks at its sockets only between many polls.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there, else what the operating system says.
    fn receive_now(&self, _space: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Stream for TcpStream {
    fn can_receive_now(&self) -> bool {
        true
    }

    fn receive_now(&self, space: &mut [u8]) -> io::Result<usize> {
        (&*SockRef::from(self)).read(space)
    }
}

impl Stream for DuplexStream {}

impl Stream for BoxedStream {
    fn can_receive_now(&self) -> bool {
        (**self).can_receive_now()
    }

    fn receive_now(&self, space: &mut [u8]) -> io::Result<usize> {
        (**self).receive_now(space)
    }
}

/// A connection as the driver holds it.
pub type BoxedStream = Box<dyn Stream>;

/// The future of [`Connector::connect`].
pub type Connecting<'a> = Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + Send + 'a>>;

/// Opens connections.
pub trait Connector: Send + Sync + 'static {
    /// A new connection to `portal`. The driver bounds the time it may take.
    fn connect(&self, portal: &Portal) -> Connecting<'_>;
}

/// TCP over IPv4 and IPv6: all addresses of a host name are tried in turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpConnector;

impl TcpConnector {
    /// Opens a TCP connection to `portal`.
    ///
    /// # Errors
    /// The error of the last address that was tried.
    pub async fn open(portal: &Portal) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((portal.host.as_str(), portal.port)).await?;
        // Requests are written whole; waiting for more data would only delay them.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Connector for TcpConnector {
    fn connect(&self, portal: &Portal) -> Connecting<'_> {
        let portal = portal.clone();
        Box::pin(async move { Ok(Box::new(Self::open(&portal).await?) as BoxedStream) })
    }
}
