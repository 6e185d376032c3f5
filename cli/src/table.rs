//! Aligned columns. A cell may have a tone, shown as a colour where there is one.

use std::fmt;

/// Where a column's cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Words.
    Left(&'static str),
    /// Numbers.
    Right(&'static str),
}

/// How a cell is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    #[default]
    Plain,
    /// All is well.
    Good,
    /// Worth a look.
    Warning,
    /// Something is wrong.
    Bad,
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    tone: Tone,
}

/// Rows under a line of headings.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    indent: usize,
}

impl Table {
    /// An empty table; without a heading in any column it has no line for them.
    pub fn new(columns: &[Column]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
            indent: 0,
        }
    }

    /// Moves it to the right.
    pub fn indented(mut self, indent: usize) -> Self {
        self.indent = indent;
        self
    }

    /// Adds a row, a cell for each column.
    pub fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.into());
    }

    fn line(&self, cells: &[Cell], widths: &[usize], colour: bool) -> String {
        let mut line = " ".repeat(self.indent);
        for (index, (cell, column)) in cells.iter().zip(&self.columns).enumerate() {
            let space = " ".repeat(widths[index] - cell.width());
            let text = cell.tone.paint(&cell.text, colour);
            match column {
                Column::Left(_) => line += &(text + &space),
                Column::Right(_) => line += &(space + &text),
            }
            line += "  ";
        }
        line.trim_end().to_owned()
    }
}

impl Column {
    fn heading(self) -> &'static str {
        match self {
            Self::Left(heading) | Self::Right(heading) => heading,
        }
    }
}

impl Tone {
    /// The text in this tone's colour.
    pub fn paint(self, text: &str, colour: bool) -> String {
        let code = match self {
            Self::Plain => return text.to_owned(),
            _ if !colour => return text.to_owned(),
            Self::Good => 32,
            Self::Warning => 33,
            Self::Bad => 31,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// A cell in this tone.
    pub fn cell(self, text: impl Into<String>) -> Cell {
        Cell {
            text: text.into(),
            tone: self,
        }
    }
}

impl Cell {
    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: fmt::Display> From<T> for Cell {
    fn from(text: T) -> Self {
        Tone::Plain.cell(text.to_string())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings: Vec<Cell> = self.columns.iter().map(|c| c.heading().into()).collect();
        let shown = self.columns.iter().any(|c| !c.heading().is_empty());
        let lines = || shown.then_some(&headings).into_iter().chain(&self.rows);
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| lines().map(|row| row[column].width()).max().unwrap_or(0))
            .collect();
        for row in lines() {
            writeln!(f, "{}", self.line(row, &widths, f.alternate()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[Column::Left("name"), Column::Right("count")]).indented(2);
        table.row(["b1".into(), 7.into()]);
        table.row([Tone::Bad.cell("b2-long"), 123_456.into()]);
        table
    }

    #[test]
    fn words_stand_left_and_numbers_right() {
        assert_eq!(
            table().to_string(),
            "  name      count\n  b1            7\n  b2-long  123456\n"
        );
    }

    #[test]
    fn colour_takes_no_room() {
        let coloured = format!("{:#}", table());
        assert!(coloured.ends_with("  \x1b[31mb2-long\x1b[0m  123456\n"));
    }

    #[test]
    fn without_headings_there_is_no_line_of_them() {
        let mut table = Table::new(&[Column::Left(""), Column::Left("")]);
        table.row(["a".into(), "".into()]);
        assert_eq!(table.to_string(), "a\n");
    }
}
