//! Tests of the whole: arrows, real clients, kill -9.
