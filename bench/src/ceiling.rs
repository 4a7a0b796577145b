//! The ceiling: TCP loopback without any protocol work. A request has a header's size, a reply a
//! header and a block; a write has the block in the request.
//!
//! *Unbatched* is one receive and one send per operation on both sides. *Batched*, a side receives
//! all waiting bytes, and sends the answers to them at once. The server is a process of its own, on
//! the servers' processors.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::processor::{self, on_processors};
use crate::{Arguments, Result};

/// Bytes of a basic header segment, so of a request.
const HEADER_BYTES: usize = 48;
/// Operations between looks at the clock.
const OPERATIONS_PER_LOOK: usize = 256;

/// One measurement.
pub struct Shape {
    pub name: &'static str,
    pub block_bytes: usize,
    pub depth: usize,
    pub is_batched: bool,
    /// Whether the block goes to the server, in the request.
    pub is_write: bool,
}

impl Shape {
    const fn new(name: &'static str, block_bytes: usize, depth: usize) -> Self {
        Self { name, block_bytes, depth, is_batched: false, is_write: false }
    }

    const fn batched(mut self) -> Self {
        self.is_batched = true;
        self
    }

    const fn write(mut self) -> Self {
        self.is_write = true;
        self
    }

    fn request_bytes(&self) -> usize {
        HEADER_BYTES + if self.is_write { self.block_bytes } else { 0 }
    }

    fn reply_bytes(&self) -> usize {
        HEADER_BYTES + if self.is_write { 0 } else { self.block_bytes }
    }
}

/// The measurements of each round.
pub const SHAPES: &[Shape] = &[
    Shape::new("TCP 4 KiB read, depth 1", 4096, 1),
    Shape::new("TCP 4 KiB write, depth 1", 4096, 1).write(),
    Shape::new("TCP 4 KiB read, depth 32", 4096, 32),
    Shape::new("TCP 4 KiB read, depth 32, batched", 4096, 32).batched(),
    Shape::new("TCP 4 KiB write, depth 32", 4096, 32).write(),
    Shape::new("TCP 4 KiB write, depth 32, batched", 4096, 32).batched().write(),
    Shape::new("TCP 128 KiB read, depth 8", 128 << 10, 8),
    Shape::new("TCP 128 KiB write, depth 8", 128 << 10, 8).write(),
];

/// The server: accepts one connection, whose first line gives the sizes as text, and replies until
/// it is closed.
pub fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut first = String::new();
    // Reading byte by byte would be slow. No request is lost in the buffer: the client sends none
    // before the server's first byte.
    BufReader::with_capacity(64, &stream).read_line(&mut first)?;
    let mut parameters = first.split_whitespace().map(str::parse::<usize>);
    let (Some(Ok(request_bytes)), Some(Ok(reply_bytes)), Some(Ok(batch_max))) =
        (parameters.next(), parameters.next(), parameters.next())
    else {
        return Err("the client did not say what to do".into());
    };
    reply(stream, request_bytes, reply_bytes, batch_max)
}

/// Replies to requests, at most `batch_max` per receive and send.
fn reply(mut stream: TcpStream, request_bytes: usize, reply_bytes: usize, batch_max: usize) -> Result<()> {
    let replies = vec![90; reply_bytes * batch_max];
    let mut requests = vec![0; request_bytes * batch_max];
    stream.write_all(&[1])?;
    let mut pending = 0;
    loop {
        let length = stream.read(&mut requests[..request_bytes * batch_max - pending])?;
        if length == 0 {
            return Ok(());
        }
        pending += length;
        let whole = pending / request_bytes;
        pending %= request_bytes;
        if whole > 0 {
            stream.write_all(&replies[..whole * reply_bytes])?;
        }
    }
}

/// Measures one shape: operations per second, and microseconds of the server's processor per
/// operation.
pub fn measure(shape: &Shape, arguments: &Arguments) -> Result<(f64, f64)> {
    let program = std::env::current_exe()?;
    let mut server =
        on_processors(&arguments.server_cpus).arg(program).arg("--ceiling-server").stdout(Stdio::piped()).spawn()?;
    let mut address = String::new();
    BufReader::new(server.stdout.take().ok_or("no standard output")?).read_line(&mut address)?;
    // The client is a thread of this process, which has no child to start on the clients'
    // processors: taskset moves this process itself.
    let own = std::process::id().to_string();
    let moved = Command::new("taskset").args(["-cp", &arguments.client_cpus, &own]).stdout(Stdio::null()).status()?;
    if !moved.success() {
        return Err("taskset failed".into());
    }
    let batch_max = if shape.is_batched { shape.depth } else { 1 };
    let mut stream = TcpStream::connect(address.trim())?;
    stream.set_nodelay(true)?;
    stream.write_all(format!("{} {} {batch_max}\n", shape.request_bytes(), shape.reply_bytes()).as_bytes())?;
    stream.read_exact(&mut [0])?;
    let before = processor::of_process_us(server.id())?;
    let (done, seconds) = ask(&mut stream, shape, batch_max, Duration::from_secs(arguments.seconds))?;
    let server_us = processor::of_process_us(server.id())? - before;
    // Replies are still on their way; closing the connection ends the server's loop.
    drop(stream);
    server.kill()?;
    server.wait()?;
    Ok((done / seconds, server_us / done))
}

/// Keeps `depth` requests in flight. Returns the count of answers, and the seconds they took.
fn ask(stream: &mut TcpStream, shape: &Shape, batch_max: usize, time: Duration) -> Result<(f64, f64)> {
    let (request_bytes, reply_bytes) = (shape.request_bytes(), shape.reply_bytes());
    let requests = vec![0; request_bytes * shape.depth];
    let mut replies = vec![0; reply_bytes * batch_max];
    let began = Instant::now();
    stream.write_all(&requests)?;
    let (mut done, mut pending, mut next_look) = (0, 0, OPERATIONS_PER_LOOK);
    loop {
        // Unbatched, one receive takes the rest of one reply and no more.
        let space = reply_bytes * batch_max - pending;
        let length = stream.read(&mut replies[..space])?;
        if length == 0 {
            return Err("the server of the loopback measurement is gone".into());
        }
        pending += length;
        let whole = pending / reply_bytes;
        pending %= reply_bytes;
        if whole > 0 {
            done += whole;
            stream.write_all(&requests[..whole * request_bytes])?;
        }
        if done >= next_look {
            next_look = done + OPERATIONS_PER_LOOK;
            let elapsed = began.elapsed();
            if elapsed >= time {
                return Ok((done as f64, elapsed.as_secs_f64()));
            }
        }
    }
}
