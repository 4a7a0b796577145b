//! Devices over devices, each saying one thing.
