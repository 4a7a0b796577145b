//! Serves RAM over NBD until interrupted: `serve_memory unix:/tmp/nbd.sock 1GiB`. For trying clients, and for profiling
//! the server.

use std::sync::Arc;

use base::units::ByteSize;
use block::Identity;
use block::memory::MemoryDevice;
use front::{ListenAddress, Listener, NbdOptions, NbdServer};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address: ListenAddress = arguments.next().ok_or("the first argument is an address")?.parse()?;
    let size: ByteSize = arguments.next().ok_or("the second argument is a size")?.parse()?;
    let device = Arc::new(MemoryDevice::new(size.0, Identity::default()));
    let server = NbdServer::new(device, NbdOptions { export_name: "memory".into(), ..NbdOptions::default() });
    let listener = Listener::bind(&address)?;
    println!("ready: {}", listener.address()?.uri("memory"));
    let interrupted = async { drop(tokio::signal::ctrl_c().await) };
    server.serve(listener, interrupted).await?;
    println!("{:#?}", server.counters());
    Ok(())
}
