//! Every key is answered as its kind asks for: the smaller, the larger, AND, OR, or the first acceptable of a list.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure, fail};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 13";

/// Every key is answered as its kind asks for: the smaller, the larger, AND, OR, or the first acceptable of a list.
pub fn run(bench: &Bench) -> Outcome {
    // Key, what is offered, and whether an answer is within the rules.
    type Rule = fn(&str) -> bool;
    let number = |text: &str| text.parse::<u32>().ok();
    let table: [(&str, &str, Rule); 14] = [
        ("HeaderDigest", "CRC32C,None", |it| matches!(it, "CRC32C" | "None")),
        ("DataDigest", "CRC32C,None", |it| matches!(it, "CRC32C" | "None")),
        ("MaxConnections", "4", |it| matches!(it, "1" | "2" | "3" | "4")),
        ("InitialR2T", "No", |it| matches!(it, "Yes" | "No")),
        ("ImmediateData", "No", |it| it == "No"),
        ("MaxBurstLength", "16384", |it| it.parse::<u32>().is_ok_and(|n| (512..=16384).contains(&n))),
        ("FirstBurstLength", "8192", |it| it.parse::<u32>().is_ok_and(|n| (512..=8192).contains(&n))),
        ("DefaultTime2Wait", "3", |it| it.parse::<u32>().is_ok_and(|n| (3..=3600).contains(&n))),
        ("DefaultTime2Retain", "5", |it| it.parse::<u32>().is_ok_and(|n| n <= 5)),
        ("MaxOutstandingR2T", "3", |it| matches!(it, "1" | "2" | "3")),
        ("DataPDUInOrder", "Yes", |it| it == "Yes"),
        ("DataSequenceInOrder", "Yes", |it| it == "Yes"),
        ("ErrorRecoveryLevel", "2", |it| matches!(it, "0" | "1" | "2")),
        ("TaskReporting", "RFC3720", |it| matches!(it, "RFC3720" | "Reject" | "NotUnderstood")),
    ];
    for (key, offered, is_allowed) in table {
        let mut wire = bench.connect()?;
        let keys = [(key, offered), ("MaxRecvDataSegmentLength", "65536")];
        let response = bench.try_log_in(&mut wire, bench.fresh_isid(), 0, 1, &keys)?;
        ensure(response.status.is_success(), format!("{key}={offered} ends the login: {}", response.status))?;
        let Some(answer) = wire.answers.get(key) else { return fail(format!("{key} is not answered")) };
        ensure(is_allowed(answer), format!("{key}={offered} is answered with {answer}"))?;
        if let Some(length) = wire.answers.get("MaxRecvDataSegmentLength") {
            let is_valid = number(length).is_some_and(|length| (512..1 << 24).contains(&length));
            ensure(is_valid, format!("MaxRecvDataSegmentLength={length}"))?;
        }
    }
    Ok(())
}
