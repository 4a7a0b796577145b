//! Outcomes as one HTML page.

use crate::error::LabError;
use crate::figure::{color, draw, series};
use crate::outcome::Outcome;

const STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;background:#fff;color:#1f2329}\
table{border-collapse:collapse;font-size:14px}td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #d1d9e1}\
td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}svg{max-width:100%;height:auto}i{display:inline-block;width:1em;height:.7em;margin:0 .4em 0 1em}";

/// The page.
///
/// # Errors
/// Errors of the drawing.
pub fn page(outcomes: &[Outcome]) -> Result<String, LabError> {
    let mut page =
        format!("<!doctype html>\n<meta charset=\"utf-8\">\n<title>forebay lab</title>\n<style>{STYLE}</style>\n");
    page.push_str("<h1>The papers’ experiments</h1>\n<p>Black bars and crosses are the paper’s numbers.</p>\n");
    for outcome in outcomes {
        push_outcome(&mut page, outcome)?;
    }
    Ok(page)
}

fn push_outcome(page: &mut String, outcome: &Outcome) -> Result<(), LabError> {
    let Outcome { name, source, found, clock, unit, .. } = outcome;
    page.push_str(&format!("<h2>{}, {} clock</h2>\n", escaped(name), clock.as_str()));
    page.push_str(&format!("<p>{}. The paper: {}. In {}.</p>\n", escaped(source), escaped(found), escaped(unit)));
    outcome.panels().into_iter().try_for_each(|panel| push_chart(page, outcome, panel))?;
    page.push_str("<table>\n<tr>");
    for (column, heading) in Outcome::HEADINGS.into_iter().enumerate() {
        let heading = if column == 2 { &outcome.across } else { heading };
        page.push_str(&format!("<th>{}</th>", escaped(heading)));
    }
    page.push_str("</tr>\n");
    for row in &outcome.rows {
        let cells = row.cells().map(|cell| format!("<td>{}</td>", escaped(&cell)));
        page.push_str(&format!("<tr>{}</tr>\n", cells.concat()));
    }
    page.push_str("</table>\n<ul>\n");
    outcome.notes.iter().for_each(|note| page.push_str(&format!("<li>{}</li>\n", escaped(note))));
    page.push_str("</ul>\n");
    Ok(())
}

fn push_chart(page: &mut String, outcome: &Outcome, panel: &str) -> Result<(), LabError> {
    let figure = draw(outcome, panel);
    let figure = figure.map_err(|error| LabError::Other(format!("the figure cannot be drawn: {error}")))?;
    if !panel.is_empty() {
        page.push_str(&format!("<h3>{}</h3>\n", escaped(panel)));
    }
    for (index, name) in series(outcome, panel).into_iter().enumerate() {
        let plotters::style::RGBColor(red, green, blue) = color(index);
        page.push_str(&format!("<i style=\"background:rgb({red},{green},{blue})\"></i>{}", escaped(name)));
    }
    page.push_str(&format!("\n{figure}\n"));
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
