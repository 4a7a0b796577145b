//! The iSCSI target: portals, sessions and logical units on tokio.
