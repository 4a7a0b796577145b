//! File and block device backends on io_uring.
