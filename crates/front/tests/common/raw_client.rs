//! A client whose bytes the test chooses.

use front::NbdServer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::Semaphore;

/// A client over a stream in memory that does not wait for replies.
pub(crate) struct RawClient(pub(crate) DuplexStream);

/// Goes to transmission: fixed newstyle without zeroes, and the unnamed export.
pub(crate) async fn shake_hands(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).await.unwrap();
    stream.write_all(&3u32.to_be_bytes()).await.unwrap();
    stream.write_all(b"IHAVEOPT").await.unwrap();
    stream.write_all(&[0, 0, 0, 1, 0, 0, 0, 0]).await.unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).await.unwrap();
}

/// A request at the beginning of the export.
pub(crate) fn request(command: u16, length: u32) -> [u8; 28] {
    let mut request = [0; 28];
    request[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
    request[6..8].copy_from_slice(&command.to_be_bytes());
    request[24..].copy_from_slice(&length.to_be_bytes());
    request
}

impl RawClient {
    pub(crate) async fn connect(server: &NbdServer) -> Self {
        let (mut near, far) = tokio::io::duplex(1 << 20);
        let server = server.clone();
        tokio::spawn(async move { server.serve_connection(far, std::future::pending()).await });
        shake_hands(&mut near).await;
        Self(near)
    }

    /// Sends the same request `count` times, in one write.
    pub(crate) async fn ask(&mut self, command: u16, length: u32, count: usize) {
        self.0.write_all(&request(command, length).repeat(count)).await.unwrap();
    }

    /// Repeats a request while the server lives, `depth` times at once, and takes the replies. A
    /// write brings its payload.
    pub(crate) fn keep_asking(self, command: u16, length: u32, depth: usize) {
        let (mut replies, mut requests) = tokio::io::split(self.0);
        let payload_bytes = if command == 1 { length as usize } else { 0 };
        let data_bytes = if command == 0 { length as usize } else { 0 };
        let whole = [&request(command, length)[..], &vec![7; payload_bytes]].concat();
        let mut reply = vec![0; 16 + data_bytes];
        let credit = Semaphore::new(depth);
        tokio::spawn(async move {
            let ask = async {
                while requests.write_all(&whole).await.is_ok() {
                    credit.acquire().await.expect("nobody closes the semaphore").forget();
                }
            };
            let take = async {
                while replies.read_exact(&mut reply).await.is_ok() {
                    credit.add_permits(1);
                }
            };
            tokio::join!(ask, take)
        });
    }

    /// The error fields of the next replies, which have no data.
    pub(crate) async fn errors(&mut self, count: usize) -> Vec<u32> {
        let mut replies = vec![0; 16 * count];
        self.0.read_exact(&mut replies).await.unwrap();
        replies.chunks_exact(16).map(|reply| u32::from_be_bytes(reply[4..8].try_into().unwrap())).collect()
    }
}
