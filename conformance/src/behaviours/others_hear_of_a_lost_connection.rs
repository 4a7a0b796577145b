//! At level 2 the other connections are told of one that is lost, with Time2Wait and Time2Retain.

use crate::bench::Bench;
use crate::bench::name;
use crate::verdict::{Outcome, fail, same, skip};
use iscsi::pdu::{AsyncEvent, AsyncMessage, Bhs};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 7.1.4.3, 11.9.1";

/// At level 2 the other connections are told of one that is lost, with Time2Wait and Time2Retain.
pub fn run(bench: &Bench) -> Outcome {
    let first = bench.log_in_at_level("2", &[("MaxConnections", "2")])?;
    if first.answers.get("MaxConnections") != Some("2") {
        return skip("the target takes one connection");
    }
    let mut second = bench.join(&first, 2)?;
    let cid = first.cid;
    drop(first);
    match second.receive_bhs() {
        Ok(Bhs::AsyncMessage(AsyncMessage { event: AsyncEvent::ConnectionDrop { cid: dropped, .. }, .. })) => {
            same("CID", dropped, cid)
        }
        Ok(other) => fail(format!("there is {}", name(&other))),
        Err(_) => skip("the target does not tell; it only should"),
    }
}
