//! A client that does one thing at a time: it waits for the reply to a command before it sends the next one.

use base::buffer::Buffer;
use front::NbdServer;
use nbd::client::{Client, ClientOptions, Completed, Event};
use nbd::{BlockSize, Command, ErrorCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

pub(crate) struct StepClient {
    pub(crate) stream: DuplexStream,
    client: Client<()>,
    /// The block sizes that the server announced.
    pub(crate) sizes: BlockSize,
}

impl StepClient {
    /// A client of a server, over a stream in memory.
    pub(crate) async fn connect(server: &NbdServer) -> Self {
        let (near, far) = tokio::io::duplex(1 << 20);
        let server = server.clone();
        tokio::spawn(async move { server.serve_connection(far, std::future::pending()).await });
        Self::over(near).await
    }

    /// A client over a stream whose other end is served.
    pub(crate) async fn over(stream: DuplexStream) -> Self {
        let client = Client::new(ClientOptions::default());
        let mut connected = Self { stream, client, sizes: BlockSize::DEFAULT };
        let Event::Connected(info) = connected.next_event().await else { panic!("the server serves its export") };
        connected.sizes = info.block_size;
        connected
    }

    /// Says that it leaves, and waits for the end of the connection.
    pub(crate) async fn leave(mut self) {
        self.client.disconnect();
        self.send().await;
        assert_eq!(self.stream.read(&mut [0]).await.unwrap(), 0, "nothing is left to be said");
    }

    /// Sends a command of which it does not read the answer.
    pub(crate) async fn send_only(&mut self, command: Command) {
        self.submit(command);
        self.send().await;
    }

    fn submit(&mut self, command: Command) {
        let length = if let Command::Read { length, .. } = command { length as usize } else { 0 };
        self.client.submit(command, Buffer::zeroed(length), ()).unwrap();
    }

    async fn send(&mut self) {
        while !self.client.transmit().is_empty() {
            let mut slices = [std::io::IoSlice::new(&[])];
            self.client.transmit().io_slices(&mut slices);
            let count = self.stream.write(&slices[0]).await.unwrap();
            self.client.transmit().handle_transmitted(count);
        }
    }

    async fn next_event(&mut self) -> Event<()> {
        loop {
            if let Some(event) = self.client.poll_event() {
                return event;
            }
            self.send().await;
            let count = self.stream.read(self.client.receive_space()).await.unwrap();
            assert!(count > 0, "the server closed the connection");
            self.client.handle_received(count);
        }
    }

    pub(crate) async fn ask(&mut self, command: Command) -> Completed<()> {
        self.submit(command);
        match self.next_event().await {
            Event::Completed(completed) => completed,
            other => panic!("{other:?} is no answer"),
        }
    }

    pub(crate) async fn code_of(&mut self, command: Command) -> Option<ErrorCode> {
        self.ask(command).await.result.err().map(|failure| failure.code)
    }

    pub(crate) async fn write(&mut self, offset: u64, bytes: &[u8]) {
        let buffer = Buffer::copy_of(bytes);
        self.ask(Command::Write { offset, buffer, fua: false }).await.result.unwrap();
    }

    pub(crate) async fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        let completed = self.ask(Command::Read { offset, length: length as u32 }).await;
        completed.result.unwrap();
        completed.buffer.to_vec()
    }
}
