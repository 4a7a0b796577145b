//! Front ends: the ways in which programs of this machine reach a block device.
//!
//! | module | holds |
//! |---|---|
//! | [`server`] | [`NbdServer`]: a device as an NBD export |
//! | [`client`] | [`NbdClient`]: an NBD export as a device |
//! | [`listener`] | [`Listener`]: a socket to serve on; [`SocketAccess`]: mode and group of its file |
//! | [`address`] | [`ListenAddress`]: `unix:PATH` or `HOST:PORT` |
//! | [`exported`] | [`Exported`]: a device for fronts, with what they share |
//! | [`admission`] | [`Admission`]: who may have how much in the device beside others |
//! | [`turns_layer`] | [`TurnsLayer`]: a device whose submitters take turns, for a gateway |
//! | [`fuse`] | [`FuseFile`]: a device as a file |
//! | [`mount`] | [`Volume`]: a file system in a directory |
//! | [`kernel`] | [`KernelDisk`]: a device as the kernel's `/dev/nbdN` |
//! | [`tls`] | [`Tls`]: certificates, and a stream that is secured in the middle of a handshake |
//! | [`counters`] | [`NbdCounters`]: the counters of a server |
//! | [`limits`] | the bounds |

#![forbid(unsafe_code)]

pub mod address;
pub mod admission;
mod carry_out;
pub mod client;
mod connection;
pub mod counters;
mod error_table;
pub mod exported;
mod flushes;
pub mod fuse;
mod handshake_turn;
mod handshakes;
mod holdings;
mod in_flight;
pub mod kernel;
mod kind_counters;
pub mod limits;
pub mod listener;
mod long_requests;
pub mod mount;
mod next_turn;
mod open_connection;
pub mod options;
mod partial;
mod room;
pub mod server;
mod shared;
pub mod tls;
pub mod turns_layer;

pub use address::ListenAddress;
pub use admission::Admission;
pub use client::{ClientDriver, NbdClient};
pub use counters::NbdCounters;
pub use exported::Exported;
pub use fuse::{FuseCounters, FuseFile, FuseOptions, Mountpoint, check_fuse};
pub use kernel::{KernelDisk, check_kernel_nbd, free_disk};
pub use kind_counters::RequestCounters;
pub use listener::{Listener, SocketAccess};
pub use mount::{Volume, VolumeOptions, make_mountable};
pub use options::NbdOptions;
pub use server::NbdServer;
pub use tls::{Tls, TlsFiles};
pub use turns_layer::TurnsLayer;
