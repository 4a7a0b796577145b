//! The options of an NBD server.

use crate::limits::{BUFFER_BYTES_MAX, CONNECTIONS_MAX, SPARE_CONNECTIONS_MAX};
use crate::tls::Tls;

/// The options of an NBD server.
#[derive(Clone, Debug)]
pub struct NbdOptions {
    /// Name of the export; clients that name none get it, too. At most 4096 bytes, the rest is cut.
    pub export_name: String,
    /// Description of the export for people; may be empty.
    pub description: String,
    /// Refuse writes even where the device takes them.
    pub is_read_only: bool,
    /// TLS, optional or required for clients; `None` offers none.
    pub tls: Option<Tls>,
    /// Connections that hold a full share of the buffers at once.
    pub connections_max: usize,
    /// Connections besides these; one more is accepted and closed.
    pub spare_connections_max: usize,
    /// Bytes of buffers lent at once, an equal share for each of `connections_max`. A request
    /// larger than a share has one of [`LARGE_REQUESTS_MAX`](crate::limits::LARGE_REQUESTS_MAX)
    /// places besides.
    pub buffer_bytes_max: usize,
}

impl Default for NbdOptions {
    fn default() -> Self {
        Self {
            export_name: String::new(),
            description: String::new(),
            is_read_only: false,
            tls: None,
            connections_max: CONNECTIONS_MAX,
            spare_connections_max: SPARE_CONNECTIONS_MAX,
            buffer_bytes_max: BUFFER_BYTES_MAX,
        }
    }
}

impl NbdOptions {
    /// Connections at once.
    pub(crate) fn all_connections_max(&self) -> usize {
        self.connections_max.saturating_add(self.spare_connections_max)
    }
}
