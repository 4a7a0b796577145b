//! The stream of a connection, and its move to another shard.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A byte stream that can be handed to another runtime.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin + Send {
    /// The same stream, registered with the calling runtime.
    ///
    /// # Errors
    /// Those of the operating system.
    fn rehome(self: Box<Self>) -> io::Result<Box<dyn Transport>>;

    /// Whether [`receive_now`](Self::receive_now) works, so that busy polling makes sense.
    fn can_receive_now(&self) -> bool;

    /// Reads from the system directly, without the runtime, which looks at its sockets only between
    /// many polls.
    ///
    /// # Errors
    /// `WouldBlock` when no data is there, else those of the operating system.
    fn receive_now(&self, space: &mut [u8]) -> io::Result<usize>;
}

impl Transport for TcpStream {
    fn rehome(self: Box<Self>) -> io::Result<Box<dyn Transport>> {
        Ok(Box::new(Self::from_std(self.into_std()?)?))
    }

    fn can_receive_now(&self) -> bool {
        true
    }

    fn receive_now(&self, space: &mut [u8]) -> io::Result<usize> {
        (&*SockRef::from(self)).read(space)
    }
}

/// Any other stream; it wakes the task that polled it last, on any thread.
pub(crate) struct Other<S>(pub(crate) S);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Transport for Other<S> {
    fn rehome(self: Box<Self>) -> io::Result<Box<dyn Transport>> {
        Ok(self)
    }

    fn can_receive_now(&self) -> bool {
        false
    }

    fn receive_now(&self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Other<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Other<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
