//! TCP segments of our connections, as the kernel counts them (RFC 4898: SegsOut, DataSegsOut and their like).
//!
//! This module counts nothing: a request for the status asks the kernel, over a netlink socket, for
//! `tcp_info` of each connection (sock_diag(7)). So a segment costs nothing. For a closed
//! connection the last answer is kept, which is read just before it is closed. Segments between the
//! last answer and the peer's end of a connection are not counted.
//!
//! A segment that carries no data is an acknowledgement: 40 to 80 bytes of headers. Those with data can be small or
//! large; the kernel counts them and their bytes, not each one's size.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::ops::AddAssign;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use initiator::{BoxedStream, Connecting, Connector, Stream, TcpConnector};
use iscsi::url::Portal;
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::limits::SOCK_DIAG_ANSWER_BYTES;

/// Segments and bytes of TCP connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Segments {
    /// Sent, acknowledgements and repetitions included.
    pub sent: u64,
    /// Sent with data.
    pub sent_with_data: u64,
    /// Received.
    pub received: u64,
    /// Received with data.
    pub received_with_data: u64,
    /// Sent once more.
    pub retransmitted: u64,
}

impl AddAssign for Segments {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.sent_with_data += other.sent_with_data;
        self.received += other.received;
        self.received_with_data += other.received_with_data;
        self.retransmitted += other.retransmitted;
    }
}

/// The kernel's counts for the TCP connection between these addresses of this host and its peer;
/// `None` when the kernel does not know it, or does not report them.
pub fn of_connection(local: SocketAddr, peer: SocketAddr) -> Option<Segments> {
    ask(local, peer).inspect_err(|error| tracing::debug!(%error, %peer, "no word of a connection's segments")).ok()?
}

fn ask(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<Segments>> {
    let (family, socket_id) = match local.ip() {
        IpAddr::V4(_) => (AF_INET, SocketId::new_v4()),
        IpAddr::V6(_) => (AF_INET6, SocketId::new_v6()),
    };
    let socket_id = SocketId {
        source_port: local.port(),
        destination_port: peer.port(),
        source_address: local.ip(),
        destination_address: peer.ip(),
        // INET_DIAG_NOCOOKIE: any socket with these addresses.
        cookie: [0xff; 8],
        ..socket_id
    };
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::INFO,
        states: StateFlags::all(),
        socket_id,
    };
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.connect(&netlink_sys::SocketAddr::new(0, 0))?;
    socket.send(&bytes, 0)?;
    let mut answer = Vec::with_capacity(SOCK_DIAG_ANSWER_BYTES);
    socket.recv(&mut answer, 0)?;
    let answer = NetlinkMessage::<SockDiagMessage>::deserialize(&answer).map_err(io::Error::other)?;
    match answer.payload {
        NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
            Ok(response.nlas.iter().find_map(|nla| match nla {
                Nla::TcpInfo(info) => Some(Segments {
                    sent: info.segs_out.into(),
                    sent_with_data: info.data_segs_out.into(),
                    received: info.segs_in.into(),
                    received_with_data: info.data_segs_in.into(),
                    retransmitted: info.total_retrans.into(),
                }),
                _ => None,
            }))
        }
        NetlinkPayload::Error(error) => Err(error.to_io()),
        _ => Ok(None),
    }
}

/// Counts segments of all connections that were made through [`SegmentMeter::connector`], including
/// closed ones.
#[derive(Debug, Default)]
pub struct SegmentMeter(Mutex<Connections>);

#[derive(Debug, Default)]
struct Connections {
    /// Totals of closed connections.
    closed: Segments,
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    local: SocketAddr,
    peer: SocketAddr,
    /// The last counts that were read.
    last: Option<Segments>,
}

impl Open {
    /// The last known counts: the kernel forgets a connection that its peer ended.
    fn read(&mut self) -> Option<Segments> {
        self.last = of_connection(self.local, self.peer).or(self.last);
        self.last
    }
}

impl SegmentMeter {
    /// A connector whose TCP connections are counted here.
    pub fn connector(self: &Arc<Self>) -> Arc<dyn Connector> {
        Arc::new(MeteredConnector(Arc::clone(self)))
    }

    /// The segments so far; `None` where the kernel does not report them.
    pub fn read(&self) -> Option<Segments> {
        let mut connections = self.lock();
        let mut sum = connections.closed;
        let mut is_known = sum != Segments::default();
        for segments in connections.open.iter_mut().filter_map(Open::read) {
            sum += segments;
            is_known = true;
        }
        is_known.then_some(sum)
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct MeteredConnector(Arc<SegmentMeter>);

impl Connector for MeteredConnector {
    fn connect(&self, portal: &Portal) -> Connecting<'_> {
        let portal = portal.clone();
        Box::pin(async move {
            let stream = TcpConnector::open(&portal).await?;
            let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
            self.0.lock().open.push(Open { local, peer, last: None });
            Ok(Box::new(MeteredStream { stream, local, peer, meter: Arc::clone(&self.0) }) as BoxedStream)
        })
    }
}

impl Stream for MeteredStream {
    fn can_receive_now(&self) -> bool {
        self.stream.can_receive_now()
    }

    fn receive_now(&self, space: &mut [u8]) -> io::Result<usize> {
        self.stream.receive_now(space)
    }
}

/// A connection whose segments are read before it is closed.
struct MeteredStream {
    stream: TcpStream,
    local: SocketAddr,
    peer: SocketAddr,
    meter: Arc<SegmentMeter>,
}

impl Drop for MeteredStream {
    fn drop(&mut self) {
        let mut connections = self.meter.lock();
        let is_this = |open: &Open| (open.local, open.peer) == (self.local, self.peer);
        if let Some(index) = connections.open.iter().position(is_this) {
            let segments = connections.open.swap_remove(index).read();
            connections.closed += segments.unwrap_or_default();
        }
    }
}

impl AsyncRead for MeteredStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, into)
    }
}

impl AsyncWrite for MeteredStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
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
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn segments_are_counted_while_a_connection_is_open_and_kept_when_it_is_closed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let portal: Portal = listener.local_addr().unwrap().to_string().parse().unwrap();
        let meter = Arc::new(SegmentMeter::default());
        assert_eq!(meter.read(), None, "nothing was connected yet");
        let connector = meter.connector();
        let (near, far) = tokio::join!(connector.connect(&portal), listener.accept());
        let (mut near, (mut far, _)) = (near.unwrap(), far.unwrap());
        let mut byte = [0];
        for _ in 0..20 {
            near.write_all(b"?").await.unwrap();
            far.read_exact(&mut byte).await.unwrap();
            far.write_all(b"!").await.unwrap();
            near.read_exact(&mut byte).await.unwrap();
        }
        let open = meter.read().expect("the kernel tells");
        assert_eq!((open.sent_with_data, open.received_with_data), (20, 20));
        assert!(open.sent > 20 && open.received >= 20, "the handshake counts, too: {open:?}");
        assert!(meter.read().unwrap().sent >= open.sent, "looking changes nothing");
        drop(near);
        let closed = meter.read().expect("it is kept");
        assert_eq!(closed.sent_with_data, 20);
        assert!(closed.sent >= open.sent);
        assert!(meter.lock().open.is_empty());
    }

    #[test]
    fn a_connection_that_is_not_there_has_no_segments() {
        let nobody = "127.0.0.1:1".parse().unwrap();
        assert_eq!(of_connection(nobody, nobody), None);
    }
}
