//! The results of a run.

use serde::{Deserialize, Serialize};

/// The clock that an experiment runs by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Models of the paper's machines, in virtual time.
    Virtual,
    /// This machine.
    Real,
}

impl Clock {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Virtual => "virtual",
            Self::Real => "real",
        }
    }
}

/// A number of a paper, or a range of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The smallest number.
    pub from: f64,
    /// The largest number.
    pub to: f64,
}

impl Span {
    /// One number.
    pub const fn exactly(value: f64) -> Self {
        Self { from: value, to: value }
    }

    /// From one number to another.
    pub const fn between(from: f64, to: f64) -> Self {
        Self { from, to }
    }

    /// The middle of the range, which our number is compared with.
    pub fn middle(self) -> f64 {
        f64::midpoint(self.from, self.to)
    }
}

/// One point of a figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The chart of the figure; empty where there is one only.
    #[serde(default)]
    pub panel: String,
    /// The line of the chart.
    pub series: String,
    /// The value on the horizontal axis.
    pub at: f64,
    /// The paper's value there, if it gives one.
    pub paper: Option<Span>,
    /// Our value.
    pub ours: f64,
    /// Microseconds of processor an operation at the initiator.
    pub client_cpu_us: Option<f64>,
    /// Microseconds of processor an operation at the target.
    pub server_cpu_us: Option<f64>,
}

/// A whole experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The experiment's name.
    pub name: String,
    /// Paper and figure.
    pub source: String,
    /// The paper's result, in words.
    pub found: String,
    /// The clock that it ran by.
    pub clock: Clock,
    /// The meaning of the horizontal axis.
    pub across: String,
    /// Unit of the values.
    pub unit: String,
    /// The points, by series.
    pub rows: Vec<Row>,
    /// How it was run, which parts were left out and why, and the parameters of the models.
    pub notes: Vec<String>,
}

impl Row {
    /// Our value divided by the middle of the paper's.
    pub fn ratio(&self) -> Option<f64> {
        self.paper.map(Span::middle).filter(|paper| *paper > 0.0).map(|paper| self.ours / paper)
    }

    /// The cells of the row, in the order of [`Outcome::HEADINGS`].
    pub fn cells(&self) -> [String; 8] {
        let paper = match self.paper {
            Some(Span { from, to }) if from == to => number(from),
            Some(Span { from, to }) => format!("{}-{}", number(from), number(to)),
            None => "-".to_owned(),
        };
        let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        [
            self.panel.clone(),
            self.series.clone(),
            number(self.at),
            paper,
            number(self.ours),
            self.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            optional(self.client_cpu_us),
            optional(self.server_cpu_us),
        ]
    }
}

impl Outcome {
    /// The headings of a row's cells; the third is [`Outcome::across`], and the fourth and fifth
    /// are in [`Outcome::unit`].
    pub const HEADINGS: [&'static str; 8] =
        ["chart", "series", "at", "paper", "ours", "ratio", "CPU us/op initiator", "CPU us/op target"];

    /// The charts in the order in which they come first.
    pub fn panels(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.panel.as_str()) {
                names.push(&row.panel);
            }
        }
        names
    }

    /// The rows as text, in columns.
    pub fn table(&self) -> String {
        let mut lines = vec![Self::HEADINGS.map(str::to_owned)];
        lines[0][2].clone_from(&self.across);
        lines.extend(self.rows.iter().map(Row::cells));
        let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..Self::HEADINGS.len()).map(width).collect();
        let mut text = format!("{} ({}), {} clock, {}\n", self.name, self.source, self.clock.as_str(), self.unit);
        text.push_str(&format!("paper: {}\n", self.found));
        for line in &lines {
            let cells = line.iter().zip(&widths).enumerate();
            let padded = cells.map(|(column, (cell, &width))| match column {
                0 | 1 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            text.push_str(padded.collect::<Vec<_>>().join("  ").trim());
            text.push('\n');
        }
        self.notes.iter().for_each(|note| text.push_str(&format!("- {note}\n")));
        text
    }
}

/// The value with three digits, or with all its digits if it is large.
fn number(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Rows and notes of a run.
pub(crate) type Found = (Vec<Row>, Vec<String>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_compared_with_the_middle_of_the_papers() {
        let row = Row {
            panel: "cubic".into(),
            series: "RAM".into(),
            at: 1500.0,
            paper: Some(Span::between(70.0, 80.0)),
            ours: 150.0,
            client_cpu_us: None,
            server_cpu_us: Some(2.345),
        };
        assert_eq!(row.ratio(), Some(2.0));
        assert_eq!(row.cells(), ["cubic", "RAM", "1500", "70-80", "150", "2.00", "-", "2.35"].map(str::to_owned));
        assert_eq!(Row { paper: None, ..row }.ratio(), None);
    }
}
