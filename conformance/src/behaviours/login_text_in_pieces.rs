//! A login text may come in several requests with the C bit; each but the last is answered with nothing.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure, same};
use iscsi::pdu::LoginStage;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 6.2, 11.12.3";

/// A login text may come in several requests with the C bit; each but the last is answered with nothing.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.connect()?;
    let mut request = bench.login_request(&wire, bench.fresh_isid(), 0, 1);
    let text = bench.text(&[("MaxBurstLength", "65536")]);
    let (first, second) = text.split_at(20);
    (request.is_continued, request.transit_to) = (true, None);
    wire.send(&request, first.to_vec())?;
    let (response, answers) = wire.login_response()?;
    ensure(
        response.status.is_success() && answers.is_empty(),
        "the first piece is not answered with an empty response",
    )?;
    (request.is_continued, request.transit_to) = (false, Some(LoginStage::FullFeaturePhase));
    wire.send(&request, second.to_vec())?;
    let (response, answers) = wire.login_response()?;
    ensure(response.status.is_success(), format!("the whole text is refused: {}", response.status))?;
    same("MaxBurstLength", answers.get("MaxBurstLength").is_some(), true)
}
