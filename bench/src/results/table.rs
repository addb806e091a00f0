//! Tables for the terminal and in Markdown.

use std::fmt::Write as _;

/// Titles, and rows of cells. A title that begins with `<` makes its column left-aligned.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<S: ToString>(titles: impl IntoIterator<Item = S>) -> Self {
        Self { titles: titles.into_iter().map(|title| title.to_string()).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the table as text, with columns as wide as their cells.
    pub(crate) fn text(&self) -> String {
        let titles = self.titles.iter().map(|title| title.trim_start_matches('<').to_owned()).collect();
        let lines: Vec<&Vec<String>> = [&titles].into_iter().chain(&self.rows).collect();
        let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or_default();
        let mut text = String::new();
        for line in &lines {
            let mut written = String::new();
            for (at, (cell, title)) in line.iter().zip(&self.titles).enumerate() {
                let width = width(at);
                // Writing to a string does not fail.
                let _ = match title.starts_with('<') {
                    true => write!(written, "  {cell:<width$}"),
                    false => write!(written, "  {cell:>width$}"),
                };
            }
            let _ = writeln!(text, "{}", written.trim_end());
        }
        text
    }

    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let titles: Vec<_> =
            self.titles.iter().map(|title| title.trim_start_matches('<').to_owned()).collect();
        let align = |title: &String| if title.starts_with('<') { "---|" } else { "---:|" };
        let rule = self.titles.iter().map(align).collect::<String>();
        let rows = self.rows.iter().map(|row| line(row)).collect::<String>();
        format!("{}|{rule}\n{rows}", line(&titles))
    }
}

/// Returns the text, or `-` if the value is unknown.
pub(crate) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Formats nanoseconds in microseconds.
pub(crate) fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_in_text_and_in_markdown() {
        let mut table = Table::new(["<name", "µs"]);
        table.row(["a".to_owned(), "10.5".to_owned()]);
        table.row(["long".to_owned(), or_dash(None)]);
        assert_eq!(table.text(), "  name    µs\n  a     10.5\n  long     -\n");
        assert_eq!(table.markdown(), "| name | µs |\n|---|---:|\n| a | 10.5 |\n| long | - |\n");
    }
}
