//! The page around the table and the plots.

use std::fmt::Write;

use super::contents::Report;
use super::error::ReportError;
use super::escape::escaped;
use super::plots::{self, CACHED_COLOR, PLAIN_COLOR, Plot};
use super::table::{Row, comparison};

/// Colours are variables; the plots' ink and grid follow them (see [`plots`]).
const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--grid:#d1d9e0;--paper:#ffffff;--band:#f6f8fa}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--grid:#3d444d;--paper:#0d1117;--band:#151b23}}\
body{margin:0 auto;max-width:62rem;padding:2rem 1rem;background:var(--paper);color:var(--ink);\
font:16px/1.5 system-ui,sans-serif}\
h1{font-size:1.6rem;line-height:1.2}h2{font-size:1.15rem;margin:2.5rem 0 .25rem}p{margin:.5rem 0}\
.soft,figcaption,th.paper,td.paper{color:var(--soft)}figcaption{font-size:.875rem}\
.scroll{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}\
th,td{padding:.3rem .8rem;border-bottom:1px solid var(--grid);text-align:right;white-space:nowrap}\
th:first-child,td:first-child{text-align:left}thead th{border-bottom:2px solid var(--ink)}\
tbody tr:nth-child(even){background:var(--band)}td.best{font-weight:600}\
figure{margin:0}svg{display:block;width:100%;height:auto}\
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1.5rem;margin:.25rem 0;font-size:.875rem}\
.legend i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}\
.legend i.paper{background:var(--soft);border:2px solid var(--ink);border-radius:50%;width:.5em;height:.5em}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1.5rem;font-size:.875rem}\
dd{margin:0}dt{color:var(--soft)}";

/// A note about the paper's columns.
const SOURCE: &str = "<p class=\"soft\">Paper: X. He, Q. Yang, M. Zhang, “A Caching Strategy to Improve iSCSI \
                      Performance”, section 3.3.2: another trace on other machines; what compares is the shape, not \
                      the digits. A dash: the paper does not say, or there are too few samples.</p>\n";

pub(super) fn html(report: &Report<'_>) -> Result<String, ReportError> {
    let mut page = String::new();
    let title = escaped(report.title);
    page.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    push(&mut page, format_args!("<title>{title}</title>\n<style>{STYLE}{}</style>\n</head>\n<body>\n", plots::STYLE));
    push(&mut page, format_args!("<h1>{title}</h1>\n<p>{}</p>\n", escaped(report.introduction)));
    push_table(&mut page, report);
    for plot in plots::all(&report.plain, &report.cached)? {
        push_plot(&mut page, report, &plot);
    }
    push_facts(&mut page, &report.facts);
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

fn push_table(page: &mut String, report: &Report<'_>) {
    let (plain, cached) = (escaped(report.plain.name), escaped(report.cached.name));
    page.push_str("<div class=\"scroll\"><table>\n<thead><tr><th></th>");
    push(page, format_args!("<th>{plain}</th><th>{cached}</th><th>gain</th>"));
    page.push_str(
        "<th class=\"paper\">paper: iSCSI</th><th class=\"paper\">paper: iCache</th></tr></thead>\n<tbody>\n",
    );
    for row in comparison(report.plain.measurement, report.cached.measurement) {
        let Row { name, plain, cached, gain, paper_plain, paper_cached } = row;
        push(page, format_args!("<tr><td>{name}</td><td>{plain}</td><td class=\"best\">{cached}</td><td>{gain}</td>"));
        push(
            page,
            format_args!("<td class=\"paper\">{paper_plain}</td><td class=\"paper\">{paper_cached}</td></tr>\n"),
        );
    }
    page.push_str("</tbody>\n</table></div>\n");
    page.push_str(SOURCE);
}

fn push_plot(page: &mut String, report: &Report<'_>, plot: &Plot) {
    push(page, format_args!("<figure>\n<h2>{}</h2>\n<div class=\"legend\">", plot.title));
    for (run, color) in [(&report.plain, PLAIN_COLOR), (&report.cached, CACHED_COLOR)] {
        let (red, green, blue) = color;
        let swatch = format!("<i style=\"background:rgb({red},{green},{blue})\"></i>");
        push(page, format_args!("<span>{swatch}{}</span>", escaped(run.name)));
    }
    if plot.has_paper_points {
        page.push_str("<span><i class=\"paper\"></i>the paper’s figures, in the colour of their counterpart</span>");
    }
    push(page, format_args!("</div>\n{}\n<figcaption>{}</figcaption>\n</figure>\n", plot.svg, escaped(&plot.caption)));
}

fn push_facts(page: &mut String, facts: &[(String, String)]) {
    if facts.is_empty() {
        return;
    }
    page.push_str("<h2>About this run</h2>\n<dl>\n");
    for (name, value) in facts {
        push(page, format_args!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(value)));
    }
    page.push_str("</dl>\n");
}

fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a string takes any text");
}
