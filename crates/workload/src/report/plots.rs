//! The four plots, as SVG with the colours of the page.
//!
//! plotters writes colours as attributes. Two of them, [`INK`] and [`GRID`], are marks that no run
//! uses; the page's style replaces them by its own, so the plots follow dark and light. Legends are
//! part of the page, outside the drawing, where they cannot cover anything.

use std::time::Duration;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::contents::Run;
use super::error::ReportError;
use super::escape::escaped;
use crate::limits::PLOT_POINTS_MAX;
use crate::measurement::SHARE_LIMITS_US;
use crate::series::{Sample, Series};

/// Colours of the runs: readable on white and on black, and distinguishable for the colour-blind.
pub(super) const PLAIN_COLOR: (u8, u8, u8) = (217, 119, 6);
pub(super) const CACHED_COLOR: (u8, u8, u8) = (37, 130, 235);

const INK: RGBColor = RGBColor(0x1f, 0x23, 0x29);
const GRID: RGBColor = RGBColor(0xd1, 0xd9, 0xe1);

/// The style that turns the marks into the page's colours.
pub(super) const STYLE: &str = "svg [fill=\"#1F2329\"]{fill:var(--ink)}svg [stroke=\"#1F2329\"]{stroke:var(--ink)}\
svg [stroke=\"#D1D9E1\"]{stroke:var(--grid)}svg [fill=\"#D1D9E1\"]{fill:var(--grid)}";

const SIZE: (u32, u32) = (960, 380);
const FONT: &str = "sans-serif";
/// Least pixels of a cell, in which one point stands for all samples there.
const CELL_PIXELS_MIN: f64 = 3.0;

/// The paper's shares (section 3.3.2): the limit in microseconds, and percent.
const PAPER_PLAIN_SHARES: [(u64, f64); 3] = [(1000, 0.0), (4000, 1.0), (8000, 54.0)];
const PAPER_CACHED_SHARES: [(u64, f64); 2] = [(1000, 80.0), (8000, 90.0)];

/// A plot and its texts.
pub(super) struct Plot {
    pub(super) title: &'static str,
    pub(super) caption: String,
    pub(super) svg: String,
    pub(super) has_paper_points: bool,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = Result<(), Box<dyn std::error::Error>>;

/// The grid, axes and labels that all plots share.
macro_rules! mesh {
    ($chart:expr, $x:expr, $y:expr, $x_label:expr, $y_label:expr) => {
        $chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style((FONT, 14).into_font().color(&INK))
            .axis_desc_style((FONT, 15).into_font().color(&INK))
            .x_desc($x)
            .y_desc($y)
            .x_label_formatter(&$x_label)
            .y_label_formatter(&$y_label)
            .draw()?
    };
}
/// All plots, in the order of the page.
pub(super) fn all(plain: &Run<'_>, cached: &Run<'_>) -> Result<Vec<Plot>, ReportError> {
    let runs = [(plain, PLAIN_COLOR), (cached, CACHED_COLOR)].map(|(run, (r, g, b))| (*run, RGBColor(r, g, b)));
    let mut plots = vec![over_time(&runs)?, histogram(&runs)?, shares(&runs)?];
    plots.extend(group_means(&runs)?);
    Ok(plots)
}

type Runs<'a> = [(Run<'a>, RGBColor); 2];

fn over_time(runs: &Runs<'_>) -> Result<Plot, ReportError> {
    let title = "Response time over time";
    let svg = draw(title, |area| {
        let seconds_max = runs.iter().map(|(run, _)| last_second(run.series)).fold(1.0, f64::max);
        let latency_range = latency_range_us(runs);
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .margin_top(28)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..seconds_max, latency_range.clone().log_scale())?;
        mesh!(
            chart,
            "seconds since the run began",
            "response time",
            |seconds: &f64| format!("{seconds}"),
            |us: &f64| time_label(*us)
        );
        for (run, color) in runs {
            let points = scattered(run.series, seconds_max, &latency_range);
            chart.draw_series(points.into_iter().map(|point| Circle::new(point, 2, color.mix(0.7).filled())))?;
        }
        let top = latency_range.end;
        for outage in runs.iter().flat_map(|(run, _)| run.outages) {
            let marks =
                [(Some(outage.from), "killed", HPos::Right, -5), (outage.until, "serving again", HPos::Left, 5)];
            for (at, word, side, nudge) in marks {
                let Some(at) = at else { continue };
                let x = at.as_secs_f64().min(seconds_max);
                let line = vec![(x, latency_range.start), (x, top)];
                chart.draw_series(DashedLineSeries::new(line, 5, 4, INK.stroke_width(1)))?;
                let style = (FONT, 14).into_font().color(&INK).pos(text_anchor(side));
                let label = EmptyElement::at((x, top)) + Text::new(word, (nudge, -6), style);
                chart.draw_series(std::iter::once(label))?;
            }
        }
        Ok(())
    })?;
    let caption =
        "Each dot is a request, at the moment it finished; where many fall together, one is drawn. Logarithmic. \
                   Requests that were in flight when the process was killed count from when they were first issued."
            .to_owned();
    Ok(Plot { title, caption, svg, has_paper_points: false })
}

fn text_anchor(side: HPos) -> Pos {
    Pos::new(side, VPos::Bottom)
}

fn histogram(runs: &Runs<'_>) -> Result<Plot, ReportError> {
    let title = "How response times are spread (the paper’s figure 5a)";
    let svg =
        draw(title, |area| {
            let range = latency_range_us(runs);
            let bins = runs.map(|(run, color)| (shares_per_bin(run.series, &range), color));
            let highest = bins.iter().flat_map(|(bins, _)| bins).map(|bin| bin.percent).fold(1.0, f64::max);
            let mut chart = chart_below(area).build_cartesian_2d(range.log_scale(), 0.0..highest * 1.08)?;
            mesh!(chart, "response time", "requests, percent", |us: &f64| time_label(*us), |percent: &f64| format!(
                "{percent}"
            ));
            for (bins, color) in bins {
                let bars = bins.iter().filter(|bin| bin.percent > 0.0);
                chart.draw_series(bars.clone().map(|bin| {
                    Rectangle::new([(bin.from_us, 0.0), (bin.to_us, bin.percent)], color.mix(0.45).filled())
                }))?;
                chart.draw_series(bars.map(|bin| {
                    Rectangle::new([(bin.from_us, 0.0), (bin.to_us, bin.percent)], color.stroke_width(1))
                }))?;
            }
            Ok(())
        })?;
    let caption = "Percent of each run’s requests in each bar; bars are ten to a decade.".to_owned();
    Ok(Plot { title, caption, svg, has_paper_points: false })
}

fn shares(runs: &Runs<'_>) -> Result<Plot, ReportError> {
    let title = "Requests finished within a given time (the paper’s figure 5b)";
    let svg = draw(title, |area| {
        let limit_count = SHARE_LIMITS_US.len() as f64;
        let mut chart = chart_below(area).build_cartesian_2d(0.0..limit_count, 0.0..108.0)?;
        let label = |place: &f64| {
            let limit = (place.fract() - 0.5).abs() < 0.01;
            SHARE_LIMITS_US.get(*place as usize).filter(|_| limit).map_or_else(String::new, |us| time_label(*us as f64))
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style((FONT, 14).into_font().color(&INK))
            .axis_desc_style((FONT, 15).into_font().color(&INK))
            .x_labels(SHARE_LIMITS_US.len() * 2 + 1)
            .x_desc("finished within")
            .x_label_formatter(&label)
            .y_labels(6)
            .y_desc("requests, percent")
            .y_label_formatter(&|percent| format!("{percent:.0}"))
            .draw()?;
        let papers: [&[(u64, f64)]; 2] = [&PAPER_PLAIN_SHARES, &PAPER_CACHED_SHARES];
        for (index, ((run, color), paper)) in runs.iter().zip(papers).enumerate() {
            let left = 0.14 + index as f64 * 0.37;
            for within in &run.measurement.shares_within {
                let Some(place) = limit_place(within.limit_us) else { continue };
                let (from, to) = (place + left, place + left + 0.35);
                let percent = within.share * 100.0;
                chart.draw_series([Rectangle::new([(from, 0.0), (to, percent)], color.mix(0.8).filled())])?;
                let style = (FONT, 12).into_font().color(&INK).pos(text_anchor(HPos::Center));
                // Above the bar, and above the ring of the paper where it sits on top of the bar.
                let is_ringed = paper
                    .iter()
                    .any(|(us, value)| *us == within.limit_us && (percent - 4.0..percent + 7.0).contains(value));
                let at = ((from + to) / 2.0, percent);
                let label = EmptyElement::at(at)
                    + Text::new(percent_label(percent), (0, if is_ringed { -14 } else { -4 }), style);
                chart.draw_series(std::iter::once(label))?;
            }
            let rings = paper.iter().filter_map(|(us, percent)| Some((limit_place(*us)? + left + 0.175, *percent)));
            let rings: Vec<(f64, f64)> = rings.collect();
            chart.draw_series(rings.iter().map(|at| Circle::new(*at, 6, INK.filled())))?;
            chart.draw_series(rings.iter().map(|at| Circle::new(*at, 4, color.filled())))?;
        }
        Ok(())
    })?;
    let caption =
        "The paper: over 80 % of iCache’s requests within 1 ms and about 90 % within 8 ms; of iSCSI’s almost none \
                   within 1 ms, less than 1 % within 4 ms, 54 % within 8 ms."
            .to_owned();
    Ok(Plot { title, caption, svg, has_paper_points: true })
}

/// `None` when no run has a group.
fn group_means(runs: &Runs<'_>) -> Result<Option<Plot>, ReportError> {
    let title = "Mean response time of successive groups of requests (the paper’s figure 6)";
    let groups = runs.map(|(run, color)| (run.name, Groups::of(run.series), color));
    if groups.iter().all(|(_, groups, _)| groups.means_us.len() < 2) {
        return Ok(None);
    }
    let svg = draw(title, |area| {
        let means = || groups.iter().flat_map(|(_, groups, _)| groups.means_us.iter().copied());
        let range = decades(means());
        let mut chart = chart_below(area).build_cartesian_2d(0.0..100.0, range.log_scale())?;
        mesh!(
            chart,
            "progress of the run, percent of its requests",
            "mean response time",
            |percent: &f64| format!("{percent}"),
            |us: &f64| time_label(*us)
        );
        for (_, groups, color) in &groups {
            let step = 100.0 / groups.means_us.len().max(1) as f64;
            let line = groups.means_us.iter().enumerate().map(|(index, us)| ((index as f64 + 0.5) * step, *us));
            chart.draw_series(LineSeries::new(line, color.stroke_width(2)))?;
        }
        Ok(())
    })?;
    let sizes = groups.iter().map(|(name, groups, _)| format!("{name}: groups of {}", groups.size));
    let caption = format!(
        "{}. Logarithmic. The paper’s means: iSCSI 6757 µs, iCache 3652 µs.",
        sizes.collect::<Vec<_>>().join("; ")
    );
    Ok(Some(Plot { title, caption, svg, has_paper_points: false }))
}

/// Means of groups: of 1000 where there are enough, else of 100 or 10.
struct Groups {
    size: u64,
    means_us: Vec<f64>,
}

/// With fewer groups a line says nothing, and smaller groups are taken.
const GROUPS_MIN: usize = 8;

impl Groups {
    fn of(series: &Series) -> Self {
        let exact: Vec<f64> = series.group_means().map(microseconds).collect();
        if exact.len() >= GROUPS_MIN || series.stride() > 1 {
            return Self { size: series.group_size(), means_us: exact };
        }
        let size = if series.samples().len() >= 100 * GROUPS_MIN { 100 } else { 10 };
        let mean_us = |group: &[Sample]| {
            group.iter().map(|sample| sample.latency_ns as f64 / 1e3).sum::<f64>() / group.len() as f64
        };
        Self { size: size as u64, means_us: series.samples().chunks_exact(size).map(mean_us).collect() }
    }
}

fn chart_below<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.margin(12).x_label_area_size(44).y_label_area_size(64);
    builder
}

/// Draws into a string and makes a labelled image of it.
fn draw(plot: &'static str, paint: impl FnOnce(&Area<'_>) -> DrawResult) -> Result<String, ReportError> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let drawn = paint(&area).and_then(|()| Ok(area.present()?));
        drawn.map_err(|error| ReportError { plot, reason: error.to_string() })?;
    }
    Ok(svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{}\" ", escaped(plot)), 1))
}

fn last_second(series: &Series) -> f64 {
    series.samples().last().map_or(0.0, |sample| sample.at_ns as f64 / 1e9)
}

fn latency_range_us(runs: &Runs<'_>) -> std::ops::Range<f64> {
    decades(runs.iter().flat_map(|(run, _)| run.series.samples()).map(|sample| sample.latency_ns as f64 / 1e3))
}

/// Whole decades around the values, at least one.
fn decades(values_us: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (low, high) = values_us.fold((f64::MAX, 0.0f64), |(low, high), us| (low.min(us), high.max(us)));
    if low > high {
        return 1.0..1000.0;
    }
    let low = low.max(0.1).log10().floor();
    let high = high.max(0.1).log10().ceil().max(low + 1.0);
    10f64.powf(low)..10f64.powf(high)
}

/// One sample for each small cell of the plot; with too many samples the cells grow. So an isolated
/// sample is always drawn.
fn scattered(series: &Series, seconds_max: f64, range_us: &std::ops::Range<f64>) -> Vec<(f64, f64)> {
    let mut cell_pixels = CELL_PIXELS_MIN;
    loop {
        let points = one_per_cell(series, seconds_max, range_us, cell_pixels);
        if points.len() <= PLOT_POINTS_MAX {
            return points;
        }
        cell_pixels *= 1.25;
    }
}

fn one_per_cell(
    series: &Series,
    seconds_max: f64,
    range_us: &std::ops::Range<f64>,
    cell_pixels: f64,
) -> Vec<(f64, f64)> {
    let (columns, rows) = (f64::from(SIZE.0) / cell_pixels, f64::from(SIZE.1) / cell_pixels);
    let height = (range_us.end / range_us.start).log10();
    let mut seen = std::collections::BTreeSet::new();
    let point = |sample: &Sample| {
        let (seconds, us) = (sample.at_ns as f64 / 1e9, (sample.latency_ns as f64 / 1e3).max(range_us.start));
        let column = (seconds / seconds_max * columns) as u32;
        let row = ((us / range_us.start).log10() / height * rows) as u32;
        seen.insert((column, row)).then_some((seconds, us))
    };
    series.samples().iter().filter_map(point).collect()
}

#[derive(Clone, Copy)]
struct Bin {
    from_us: f64,
    to_us: f64,
    percent: f64,
}

fn shares_per_bin(series: &Series, range_us: &std::ops::Range<f64>) -> Vec<Bin> {
    let place = |us: f64| (us / range_us.start).log10() * 10.0;
    let count = place(range_us.end).round() as usize;
    let edge = |index: usize| range_us.start * 10f64.powf(index as f64 / 10.0);
    let mut bins: Vec<Bin> =
        (0..count).map(|index| Bin { from_us: edge(index), to_us: edge(index + 1), percent: 0.0 }).collect();
    let each = 100.0 / series.samples().len().max(1) as f64;
    for sample in series.samples() {
        let index = place(sample.latency_ns as f64 / 1e3).max(0.0) as usize;
        if let Some(bin) = bins.get_mut(index.min(count.saturating_sub(1))) {
            bin.percent += each;
        }
    }
    bins
}

fn limit_place(limit_us: u64) -> Option<f64> {
    SHARE_LIMITS_US.iter().position(|us| *us == limit_us).map(|place| place as f64)
}

/// Whole percents, with a tenth near the ends.
fn percent_label(percent: f64) -> String {
    let is_near_an_end = (0.05..9.95).contains(&percent) || (99.0..99.95).contains(&percent);
    if is_near_an_end { format!("{percent:.1}") } else { format!("{percent:.0}") }
}

fn time_label(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", us / 1e6),
        us if us >= 1e3 => format!("{} ms", us / 1e3),
        us => format!("{us} µs"),
    }
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
