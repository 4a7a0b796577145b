//! The comparison of two runs, row by row, for the terminal and for the page.

use crate::measurement::Measurement;

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The compared figure.
    pub name: &'static str,
    /// The plain run.
    pub plain: String,
    /// The cached run.
    pub cached: String,
    /// How many times better the cached one is.
    pub gain: String,
    /// The iCache paper's iSCSI (section 3.3.2), where it gives the figure.
    pub paper_plain: &'static str,
    /// The iCache paper's iCache.
    pub paper_cached: &'static str,
}

/// Shown in place of a missing figure.
const NONE: &str = "–";

/// Name of a latency row, its figure, and the paper's figures.
type LatencyRow = (&'static str, fn(&Measurement) -> Option<u64>, &'static str, &'static str);

const LATENCY_ROWS: [LatencyRow; 8] = [
    ("response time, mean", |m| m.latency_ns.mean, "6757 µs", "3652 µs"),
    ("reads, mean", |m| m.reads.mean, NONE, NONE),
    ("reads, median", |m| m.reads.p50, NONE, NONE),
    ("reads, 99th percentile", |m| m.reads.p99, NONE, NONE),
    ("writes, mean", |m| m.writes.mean, NONE, NONE),
    ("writes, median", |m| m.writes.p50, NONE, NONE),
    ("writes, 99th percentile", |m| m.writes.p99, NONE, NONE),
    ("slowest", |m| m.latency_ns.max, NONE, "some 120 ms"),
];

/// The rows for two runs.
pub fn comparison(plain: &Measurement, cached: &Measurement) -> Vec<Row> {
    let mut rows = vec![Row {
        name: "requests per second",
        plain: rate_in_words(plain.iops),
        cached: rate_in_words(cached.iops),
        gain: gain(Some(cached.iops), Some(plain.iops)),
        paper_plain: NONE,
        paper_cached: NONE,
    }];
    rows.extend(LATENCY_ROWS.iter().map(|(name, figure, paper_plain, paper_cached)| {
        let (plain, cached) = (figure(plain), figure(cached));
        let as_float = |ns: Option<u64>| ns.map(|ns| ns as f64);
        Row {
            name,
            plain: time_in_words(plain),
            cached: time_in_words(cached),
            gain: gain(as_float(plain), as_float(cached)),
            paper_plain,
            paper_cached,
        }
    }));
    for (name, limit_us, paper_plain, paper_cached) in
        [("done within 1 ms", 1000, "almost none", "over 80 %"), ("done within 8 ms", 8000, "54 %", "90 %")]
    {
        let (plain, cached) = (share_within(plain, limit_us), share_within(cached, limit_us));
        let (plain, cached) = (share_in_words(plain), share_in_words(cached));
        rows.push(Row { name, plain, cached, gain: NONE.to_owned(), paper_plain, paper_cached });
    }
    rows
}

fn share_within(measurement: &Measurement, limit_us: u64) -> Option<f64> {
    measurement.shares_within.iter().find(|within| within.limit_us == limit_us).map(|within| within.share)
}

/// `better / worse` as a factor.
fn gain(better: Option<f64>, worse: Option<f64>) -> String {
    match (better, worse) {
        (Some(better), Some(worse)) if better > 0.0 && worse > 0.0 => {
            let factor = better / worse;
            if factor >= 10.0 { format!("{factor:.0} ×") } else { format!("{factor:.1} ×") }
        }
        _ => NONE.to_owned(),
    }
}

/// Nanoseconds with three digits: `842 ns`, `12.3 µs`, `8.42 ms`, `1.20 s`; a dash where there is no figure.
pub fn time_in_words(ns: Option<u64>) -> String {
    let Some(ns) = ns else { return NONE.to_owned() };
    let value = ns as f64;
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (value / 1e3, "µs"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// A rate with three digits or whole.
pub fn rate_in_words(rate: f64) -> String {
    if rate >= 100.0 { format!("{rate:.0}") } else { three_digits(rate) }
}

/// A share as a percentage; a dash where there is no figure.
pub fn share_in_words(share: Option<f64>) -> String {
    share.map_or_else(|| NONE.to_owned(), |share| format!("{:.1} %", share * 100.0))
}

fn three_digits(value: f64) -> String {
    match value {
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::Latency;

    #[test]
    fn figures_have_three_digits() {
        for (ns, words) in [
            (Some(842), "842 ns"),
            (Some(1_000), "1.00 µs"),
            (Some(12_345), "12.3 µs"),
            (Some(99_960), "100 µs"),
            (Some(8_424_000), "8.42 ms"),
            (Some(120_000_000), "120 ms"),
            (Some(1_200_000_000), "1.20 s"),
            (None, "–"),
        ] {
            assert_eq!(time_in_words(ns), words);
        }
        assert_eq!((rate_in_words(75.04), rate_in_words(12_345.6)), ("75.0".to_owned(), "12346".to_owned()));
        assert_eq!(share_in_words(Some(0.8123)), "81.2 %");
    }

    #[test]
    fn the_gain_is_the_right_way_round() {
        let latency = |mean| Latency { count: 10, mean: Some(mean), ..Latency::default() };
        let plain = Measurement { iops: 75.0, latency_ns: latency(50_000_000), ..Measurement::default() };
        let cached = Measurement { iops: 7500.0, latency_ns: latency(500_000), ..Measurement::default() };
        let rows = comparison(&plain, &cached);
        assert_eq!((rows[0].gain.as_str(), rows[1].gain.as_str(), rows[2].gain.as_str()), ("100 ×", "100 ×", "–"));
        assert_eq!((rows[1].paper_plain, rows[1].paper_cached), ("6757 µs", "3652 µs"));
    }
}
