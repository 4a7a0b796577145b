//! The one lock that keeps overlapping requests in order.
