//! The drawing of an outcome: a line for each series, and the paper's numbers as bars and crosses.

use plotters::prelude::*;

use crate::outcome::{Outcome, Row, Span};

const SIZE: (u32, u32) = (900, 420);
/// Colours that the colour-blind can tell apart, readable on white.
const COLORS: [RGBColor; 6] = [
    RGBColor(37, 130, 235),
    RGBColor(217, 119, 6),
    RGBColor(5, 150, 105),
    RGBColor(190, 24, 93),
    RGBColor(109, 40, 217),
    RGBColor(100, 116, 139),
];

/// The series of a chart in the order in which they come first.
pub(crate) fn series<'a>(outcome: &'a Outcome, panel: &str) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for row in outcome.rows.iter().filter(|row| row.panel == panel) {
        if !names.contains(&row.series.as_str()) {
            names.push(&row.series);
        }
    }
    names
}

/// The colour of the series of that number.
pub(crate) fn color(index: usize) -> RGBColor {
    COLORS[index % COLORS.len()]
}

/// One chart as SVG. All charts of an outcome have the same scales, so that they can be compared.
///
/// # Errors
/// Errors of the drawing library.
pub(crate) fn draw(outcome: &Outcome, panel: &str) -> Result<String, Box<dyn std::error::Error>> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let across = outcome.rows.iter().map(|row| row.at).fold(0.0, f64::max).max(1e-3);
        let paper_top = outcome.rows.iter().filter_map(|row| row.paper).map(|paper| paper.to).fold(0.0, f64::max);
        let top = outcome.rows.iter().map(|row| row.ours).fold(paper_top, f64::max).max(1e-3);
        let mut chart = ChartBuilder::on(&area)
            .margin(14)
            .x_label_area_size(46)
            .y_label_area_size(76)
            .build_cartesian_2d(0.0..across * 1.04, 0.0..top * 1.08)?;
        chart.configure_mesh().x_desc(outcome.across.as_str()).y_desc(outcome.unit.as_str()).draw()?;
        for (index, name) in series(outcome, panel).into_iter().enumerate() {
            let color = color(index);
            let rows: Vec<&Row> = outcome.rows.iter().filter(|row| row.panel == panel && row.series == name).collect();
            chart.draw_series(LineSeries::new(rows.iter().map(|row| (row.at, row.ours)), color.stroke_width(2)))?;
            chart.draw_series(rows.iter().map(|row| Circle::new((row.at, row.ours), 3, color.filled())))?;
            let papers = rows.iter().filter_map(|row| Some((row.at, row.paper?)));
            for (at, Span { from, to }) in papers {
                chart.draw_series(LineSeries::new([(at, from), (at, to)], BLACK.stroke_width(5)))?;
                chart.draw_series([Cross::new((at, f64::midpoint(from, to)), 6, BLACK.stroke_width(2))])?;
            }
        }
        area.present()?;
    }
    Ok(svg)
}
