//! The report of two synthetic runs: one page, complete, safe and small.
//!
//! The page is left in the target folder's `tmp`.

use std::path::Path;
use std::time::Duration;

use base::random::Random;
use workload::AccessKind;
use workload::closed_loop::Outage;
use workload::measurement::{Measurement, Recorder};
use workload::report::{Report, Run};
use workload::series::{Sample, Series};

const RUN: Duration = Duration::from_secs(8);

/// A run at depth 4 whose response times `latency` draws, with an outage.
struct MadeUp {
    measurement: Measurement,
    series: Series,
    outages: Vec<Outage>,
}

fn made_up(
    outage: Option<(Duration, Duration)>,
    mut latency: impl FnMut(&mut Random, AccessKind) -> Duration,
) -> MadeUp {
    let mut random = Random::new(4);
    let (mut recorder, mut series) = (Recorder::new(), Series::new());
    let mut lanes = [Duration::ZERO; 4];
    loop {
        let lane = (0..4).min_by_key(|&lane| lanes[lane]).expect("there are four");
        let kind = if random.chance(0.89) { AccessKind::Write } else { AccessKind::Read };
        let mut took = latency(&mut random, kind);
        if let Some((from, until)) = outage
            && lanes[lane] < from
            && lanes[lane] + took >= from
        {
            took = until - lanes[lane] + took;
        }
        lanes[lane] += took;
        if lanes[lane] > RUN {
            break;
        }
        recorder.record(kind, 2048, took);
        series.push(Sample { at_ns: lanes[lane].as_nanos() as u64, latency_ns: took.as_nanos() as u64, kind });
    }
    let outages = outage.map(|(from, until)| Outage { from, until: Some(until) });
    MadeUp { measurement: recorder.measurement(RUN), series, outages: outages.into_iter().collect() }
}

fn plain() -> MadeUp {
    made_up(None, |random, _| Duration::from_micros(4 * 13_000 + random.below(20_000)))
}

fn cached() -> MadeUp {
    let outage = (Duration::from_millis(4000), Duration::from_millis(4350));
    made_up(Some(outage), |random, kind| {
        let spread = (-random.unit().max(1e-9).ln() * 60.0) as u64;
        match kind {
            AccessKind::Read if random.chance(0.05) => Duration::from_micros(14_000 + random.below(12_000)),
            AccessKind::Read => Duration::from_micros(45 + spread / 2),
            _ => Duration::from_micros(180 + spread),
        }
    })
}

fn page(name: &str, plain: &MadeUp, cached: &MadeUp) -> String {
    let report = Report {
        title: "A slow remote disk, nearly as fast as a local one",
        introduction: "89 % writes of 2 KiB, zipf over 32 MiB, depth 4, 8 s each. <b>\"Made up\" & 'safe'</b>",
        plain: Run {
            name: "plain iSCSI",
            measurement: &plain.measurement,
            series: &plain.series,
            outages: &plain.outages,
        },
        cached: Run {
            name: "through the cache",
            measurement: &cached.measurement,
            series: &cached.series,
            outages: &cached.outages,
        },
        facts: vec![("seed".to_owned(), "4".to_owned()), ("<i>".to_owned(), "a & b".to_owned())],
    };
    let html = report.to_html().expect("the plots can be drawn");
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), &html).expect("the target folder can be written");
    html
}

#[test]
fn the_page_is_whole_safe_and_small() {
    let html = page("report.html", &plain(), &cached());
    assert!(html.len() < 1 << 20, "{} bytes", html.len());
    assert_eq!(html.matches("<svg ").count(), 4);
    assert_eq!(html.matches("</svg>").count(), 4);
    assert!(html.contains("&lt;b&gt;&quot;Made up&quot; &amp; &#39;safe&#39;&lt;/b&gt;"));
    assert!(!html.contains("<b>") && !html.contains("<i>"));
    for word in ["killed", "serving again", "6757 µs", "3652 µs", "over 80 %", "prefers-color-scheme:dark"] {
        assert!(html.contains(word), "{word}");
    }
    // The name space of SVG is a name, not a reference.
    let without_name_space = html.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script"] {
        assert!(!without_name_space.contains(outside), "{outside}");
    }
}

#[test]
fn runs_without_requests_make_a_page_too() {
    let empty = || MadeUp {
        measurement: Recorder::new().measurement(Duration::ZERO),
        series: Series::new(),
        outages: vec![Outage { from: Duration::from_secs(1), until: None }],
    };
    let html = page("empty.html", &empty(), &empty());
    assert_eq!(html.matches("<svg ").count(), 3, "there are no groups to show");
}
