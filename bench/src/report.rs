//! Medians, ratios, the table and the JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use crate::Arguments;
use crate::client::Case;
use crate::server::Kind;

/// One case and one server: a value per round.
#[derive(Debug, Default)]
struct Series {
    rates: Vec<f64>,
    cpu_us: Vec<f64>,
    client_cpu_us: Vec<f64>,
}

/// One case, one server, one round.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Operations per second.
    pub rate: f64,
    /// Microseconds of the server's processors per operation.
    pub cpu_us: f64,
    /// Microseconds of the client's processors per operation: at depth 1 its part of an operation's
    /// time, whatever the server is.
    pub client_cpu_us: f64,
}

/// All results.
pub struct Report {
    placement: String,
    rounds: usize,
    seconds: u64,
    ceilings: Vec<(&'static str, Series)>,
    cases: Vec<(&'static Case, BTreeMap<Kind, Series>)>,
}

impl Report {
    pub fn new(arguments: &Arguments) -> Self {
        Self {
            placement: format!("servers on CPU {}, clients on CPU {}", arguments.server_cpus, arguments.client_cpus),
            rounds: arguments.rounds,
            seconds: arguments.seconds,
            ceilings: Vec::new(),
            cases: Vec::new(),
        }
    }

    pub fn add_ceiling(&mut self, name: &'static str, rate: f64, cpu_us: f64) {
        let index = self.ceilings.iter().position(|(other, _)| *other == name).unwrap_or_else(|| {
            self.ceilings.push((name, Series::default()));
            self.ceilings.len() - 1
        });
        self.ceilings[index].1.rates.push(rate);
        self.ceilings[index].1.cpu_us.push(cpu_us);
    }

    pub fn add(&mut self, case: &'static Case, kind: Kind, measured: Measured) {
        let index = self.cases.iter().position(|(other, _)| other.name == case.name).unwrap_or_else(|| {
            self.cases.push((case, BTreeMap::new()));
            self.cases.len() - 1
        });
        let series = self.cases[index].1.entry(kind).or_default();
        series.rates.push(measured.rate);
        series.cpu_us.push(measured.cpu_us);
        series.client_cpu_us.push(measured.client_cpu_us);
    }

    /// Operations per second and microseconds of the server's processors per operation, medians.
    pub fn table(&self) -> String {
        let mut text = String::from(
            "| case | tgt rdwr | tgt aio | forebay | ratio | aim | tgt aio us/op | forebay us/op | ratio | aim | \
             client us/op |\n\
             |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        );
        for (case, servers) in &self.cases {
            let rate = |kind| servers.get(&kind).map_or(f64::NAN, |series| median(&series.rates));
            let cpu = |kind| servers.get(&kind).map_or(f64::NAN, |series| median(&series.cpu_us));
            let aim = |aim: Option<f64>, sign| aim.map_or_else(|| "-".to_owned(), |aim| format!("{sign} {aim}"));
            let (tgt, ours) = (rate(Kind::TgtAio), rate(Kind::Ours));
            let (tgt_cpu, our_cpu) = (cpu(Kind::TgtAio), cpu(Kind::Ours));
            let _ = writeln!(
                text,
                "| {} | {:.0} | {tgt:.0} | {ours:.0} | {:.2} | {} | {tgt_cpu:.1} | {our_cpu:.1} | {:.2} | {} | {:.1} |",
                case.name,
                rate(Kind::TgtReadWrite),
                ours / tgt,
                aim(case.rate_aim, "≥"),
                our_cpu / tgt_cpu,
                aim(case.cpu_aim, "≤"),
                servers.get(&Kind::Ours).map_or(f64::NAN, |series| median(&series.client_cpu_us)),
            );
        }
        if !self.ceilings.is_empty() {
            text.push_str("\n| bare TCP loopback | operations/s | us/op |\n|---|--:|--:|\n");
        }
        for (name, series) in &self.ceilings {
            let _ = writeln!(text, "| {name} | {:.0} | {:.1} |", median(&series.rates), median(&series.cpu_us));
        }
        text
    }

    /// The table, below a line about the run.
    pub fn page(&self) -> String {
        format!(
            "Placement: {}. Medians of {} interleaved rounds of {} s.\n\n{}",
            self.placement,
            self.rounds,
            self.seconds,
            self.table()
        )
    }

    /// Everything, with every round.
    pub fn json(&self) -> String {
        let of_case = |(case, servers): &(&Case, BTreeMap<Kind, Series>)| {
            let of_server = |(kind, series): (&Kind, &Series)| {
                (
                    kind.name().to_owned(),
                    json!({
                        "per_second": series.rates,
                        "cpu_us_per_op": series.cpu_us,
                        "client_cpu_us_per_op": series.client_cpu_us,
                    }),
                )
            };
            json!({ "case": case.name, "servers": servers.iter().map(of_server).collect::<serde_json::Map<_, _>>() })
        };
        let ceilings = self.ceilings.iter().map(|(name, series)| {
            ((*name).to_owned(), json!({ "per_second": series.rates, "cpu_us_per_op": series.cpu_us }))
        });
        let all = json!({
            "placement": self.placement,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "cases": self.cases.iter().map(of_case).collect::<Vec<Value>>(),
            "tcp": ceilings.collect::<serde_json::Map<_, _>>(),
        });
        format!("{all:#}\n")
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn a_median_is_the_middle_one() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
    }
}
