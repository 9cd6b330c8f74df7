//! Annotated CSV, the answer format of InfluxDB: consecutive tables, each with rows of annotations (`#datatype`,
//! `#group`, `#default`) and its own header; or one table with an error.
//!
//! Guarantees: quoting by RFC 4180; an empty cell has its column's default; every row has as many cells as its header.
//! Assumes that the request asked for annotations.

use csv::{ReaderBuilder, StringRecord};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CsvError {
    #[error("line {line} of the annotated CSV is malformed: {why}")]
    Malformed {
        /// Line number, from 1.
        line: u64,
        why: String,
    },
    /// The answer contains an error of the server.
    #[error("{message}")]
    Refused { message: String },
}

#[derive(Debug, Default)]
struct Columns {
    datatypes: StringRecord,
    defaults: StringRecord,
    names: StringRecord,
}

#[derive(Debug)]
pub struct CsvRow<'a> {
    columns: &'a Columns,
    cells: &'a StringRecord,
}

impl<'a> CsvRow<'a> {
    pub fn named_cells(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        // The first column belongs to the annotations.
        (1..self.columns.names.len()).map(|at| (&self.columns.names[at], self.cell_or_default(at)))
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        Some(self.cell_or_default(self.column_index(name)?))
    }

    #[must_use]
    pub fn datatype_of(&self, name: &str) -> Option<&'a str> {
        self.columns.datatypes.get(self.column_index(name)?)
    }

    fn column_index(&self, name: &str) -> Option<usize> {
        (1..self.columns.names.len()).find(|at| &self.columns.names[*at] == name)
    }

    fn cell_or_default(&self, at: usize) -> &'a str {
        let cell = &self.cells[at];
        if cell.is_empty() { self.columns.defaults.get(at).unwrap_or("") } else { cell }
    }
}

/// Reads every row of every table.
///
/// # Errors
/// The answer is malformed, `take` fails, or the answer contains an error.
pub fn read_rows(
    body: &[u8],
    mut take: impl FnMut(CsvRow<'_>) -> Result<(), String>,
) -> Result<(), CsvError> {
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(body);
    let mut columns = Columns::default();
    let mut annotating = false;
    let mut cells = StringRecord::new();
    loop {
        let line = reader.position().line();
        let malformed = |why: String| CsvError::Malformed { line, why };
        let more = reader.read_record(&mut cells);
        if !more.map_err(|_| malformed("it is not UTF-8".to_owned()))? {
            return if annotating { Err(malformed("a table has no header".to_owned())) } else { Ok(()) };
        }
        let first = cells.get(0).unwrap_or("");
        if first.starts_with('#') {
            if !annotating {
                (annotating, columns) = (true, Columns::default());
            }
            match first {
                "#datatype" => columns.datatypes.clone_from(&cells),
                "#default" => columns.defaults.clone_from(&cells),
                _ => {}
            }
        } else if annotating {
            annotating = false;
            if columns.datatypes.len() != cells.len() {
                return Err(malformed(format!(
                    "the header of a table has {} types and {} names",
                    columns.datatypes.len(),
                    cells.len()
                )));
            }
            columns.names.clone_from(&cells);
        } else if columns.names.is_empty() {
            return Err(malformed("a table has no annotations".to_owned()));
        } else if columns.names.len() != cells.len() {
            return Err(malformed(format!(
                "a row has {} cells, and its table {} columns",
                cells.len(),
                columns.names.len()
            )));
        } else {
            let row = CsvRow { columns: &columns, cells: &cells };
            if let Some(message) = row.get("error").filter(|_| row.get("_value").is_none()) {
                return Err(CsvError::Refused { message: message.to_owned() });
            }
            take(row).map_err(malformed)?;
        }
    }
}
