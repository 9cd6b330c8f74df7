//! Prints lists for people and for spreadsheets: columns with an order, coloured states, lines that fit the terminal.

mod layout;

use std::env;
use std::io::{IsTerminal as _, stdout};

use self::layout::{ColumnUse, GAP, INDENT, LastColumn, lay_out};
use crate::output::escape_unprintable;
use crate::wrap::{break_words, cut_to_width, push_wrapped};

/// Heading of the column of reasons, which is the last one of the wide form.
const REASONS: &str = "WHY";
/// Cell without a value.
const NOTHING: &str = "-";

/// The meaning of a cell, which a terminal shows as its colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Good,
    /// Yellow: the operator should check it.
    Notice,
    Bad,
}

impl Tone {
    /// The code of ECMA-48 that begins the colour.
    fn escape_code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Good => Some("32"),
            Self::Notice => Some("33"),
            Self::Bad => Some("31"),
        }
    }

    /// The text in the colour of the tone; `escapes`: the terminal shows colours.
    #[must_use]
    pub fn paint(self, text: &str, escapes: bool) -> String {
        match self.escape_code().filter(|_| escapes && !text.is_empty()) {
            Some(code) => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            None => text.to_owned(),
        }
    }
}

/// Numbers come before texts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum SortKey {
    Number(i64),
    Text(String),
}

/// A value of a line. Control characters, which could manipulate the terminal, are replaced.
#[derive(Debug, Clone)]
pub struct Cell {
    text: String,
    /// The text for spreadsheets, where it differs.
    exact: Option<String>,
    sort_key: SortKey,
    tone: Tone,
}

impl Cell {
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        let text = escape_unprintable(&text.into());
        let sort_key = SortKey::Text(text.clone());
        Self { text, exact: None, sort_key, tone: Tone::Plain }
    }

    /// The cell with a place among the lines of its column: the lowest is first.
    #[must_use]
    pub fn with_order(self, order: i64) -> Self {
        Self { sort_key: SortKey::Number(order), ..self }
    }

    /// The cell with a number's place among the lines of its column: the lowest is first.
    #[must_use]
    pub fn with_order_number(self, number: f64) -> Self {
        // The order of `f64::total_cmp`, as whole numbers.
        let bits = number.to_bits().cast_signed();
        self.with_order(bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed())
    }

    #[must_use]
    pub fn with_tone(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }

    fn has_value(&self) -> bool {
        !["", NOTHING].contains(&self.text.as_str())
    }

    /// The cell with another text for spreadsheets, such as a time instead of an age.
    #[must_use]
    pub fn with_exact_text(self, exact: impl Into<String>) -> Self {
        Self { exact: Some(exact.into()), ..self }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

/// The surroundings of a text: how wide it may be, and whether colours are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Surface {
    /// Columns of the terminal; `None`: as many as the text needs.
    pub width: Option<usize>,
    /// Lines of the terminal; `None`: as many as the text needs.
    pub height: Option<usize>,
    pub has_colours: bool,
    /// True if a newer text may take the place of an older one.
    pub is_terminal: bool,
}

impl Surface {
    /// The surroundings of standard output. `NO_COLOR` (no-color.org) and `TERM=dumb` switch colours off.
    #[must_use]
    pub fn for_output() -> Self {
        if !stdout().is_terminal() {
            return Self::default();
        }
        let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let size = rustix::termios::tcgetwinsize(stdout()).ok();
        Self {
            width: size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0),
            height: size.map(|size| usize::from(size.ws_row)).filter(|lines| *lines > 0),
            has_colours: !is_set("NO_COLOR") && !is_dumb,
            is_terminal: !is_dumb,
        }
    }
}

#[derive(Debug, Clone)]
pub struct List {
    /// Heading of each column, and whether only the wide form has it.
    columns: Vec<(String, bool)>,
    rows: Vec<Vec<Cell>>,
    /// The last column of the narrow form.
    last: LastColumn,
    /// Headings of columns that rows of one line may leave out.
    optional: Vec<String>,
}

impl List {
    /// A list without lines. `wide` columns are for the wide form and for spreadsheets.
    #[must_use]
    pub fn new<T: AsRef<str>>(columns: &[T], wide: &[T]) -> Self {
        let column = |is_wide| move |heading: &T| (heading.as_ref().to_owned(), is_wide);
        let columns = columns.iter().map(column(false)).chain(wide.iter().map(column(true)));
        let columns = columns.collect();
        Self { columns, rows: Vec::new(), last: LastColumn::Cut, optional: Vec::new() }
    }

    /// The list with all of each reason, which is the last cell of a line: reasons have as many lines as they need.
    #[must_use]
    pub fn with_whole_reasons(self) -> Self {
        Self { last: LastColumn::Wraps, ..self }
    }

    /// The list with one line for each row: in a narrow terminal the optional columns, named as in the heading, are left out
    /// and reasons are cut. The wide form has everything.
    #[must_use]
    pub fn with_rows_of_one_line(self, optional: &[&str]) -> Self {
        let optional = optional.iter().map(|heading| (*heading).to_owned()).collect();
        Self { last: LastColumn::OneLine, optional, ..self }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a line with as many cells as there are columns, wide ones included.
    pub fn add(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a line has a cell for each column");
        self.rows.push(cells);
    }

    /// The names of all columns in options.
    #[must_use]
    pub fn column_names(&self) -> Vec<String> {
        self.columns.iter().map(|(heading, _)| option_name_of_heading(heading)).collect()
    }

    /// Orders the lines by a column, named as in its heading; equal ones keep their order.
    ///
    /// # Errors
    /// There is no such column: the error names all columns.
    pub fn sort_by(&mut self, name: &str) -> Result<(), String> {
        let names = self.column_names();
        let column = names
            .iter()
            .position(|it| *it == option_name_of_heading(name))
            .ok_or_else(|| format!("there is no column {name:?}: expected one of {}", names.join(", ")))?;
        self.rows.sort_by(|a, b| a[column].sort_key.cmp(&b[column].sort_key));
        Ok(())
    }

    /// The list with a line end after each line. Where lines are longer than the terminal is wide, columns without any value
    /// are left out, values of rare columns are at the beginning of the last column, the widest cells behind the first one are
    /// cut, and the last cell is below its line if it has too little room; the wide form has everything, with reasons at the end.
    #[must_use]
    pub fn to_text(&self, is_wide: bool, surface: Surface) -> String {
        let mut listed: Vec<usize> =
            (0..self.columns.len()).filter(|column| is_wide || !self.columns[*column].1).collect();
        listed.sort_by_key(|column| self.columns[*column].0 == REASONS);
        let uses: Vec<ColumnUse> = listed.iter().map(|column| self.column_use(*column)).collect();
        let layout = lay_out(&uses, self.rows.len(), surface.width.filter(|_| !is_wide), self.last);
        let shown: Vec<(usize, usize)> =
            layout.shown.iter().map(|(place, width)| (listed[*place], *width)).collect();
        let moved: Vec<usize> = layout.moved.iter().map(|place| listed[*place]).collect();
        let form = LineForm {
            widths: shown.iter().map(|(_, width)| *width).collect(),
            has_colours: surface.has_colours,
            wraps: self.last == LastColumn::Wraps && shown.last().map(|(column, _)| column) == listed.last(),
            is_below: layout.is_below,
        };
        let mut text = String::new();
        let heading = shown.iter().map(|(column, _)| Cell::new(self.columns[*column].0.as_str()));
        form.push_line(&mut text, &heading.collect::<Vec<_>>());
        for row in &self.rows {
            let mut cells: Vec<Cell> = shown.iter().map(|(column, _)| row[*column].clone()).collect();
            if let Some(last) = cells.last_mut() {
                let values = moved.iter().filter(|column| row[**column].has_value());
                let values: Vec<String> = values
                    .map(|column| format!("{} {}", self.columns[*column].0.to_lowercase(), row[*column].text))
                    .chain(last.has_value().then(|| last.text.clone()))
                    .collect();
                if !values.is_empty() {
                    last.text = values.join(", ");
                }
            }
            form.push_line(&mut text, &cells);
        }
        text
    }

    fn column_use(&self, column: usize) -> ColumnUse {
        let cells = || self.rows.iter().map(|row| &row[column]);
        ColumnUse {
            heading: self.columns[column].0.chars().count(),
            longest: cells().map(|cell| cell.text.chars().count()).max().unwrap_or(0),
            filled: cells().filter(|cell| cell.has_value()).count(),
            is_optional: self.optional.contains(&self.columns[column].0),
        }
    }

    /// All columns as comma-separated values (RFC 4180), with the lines' ends of Unix. A cell without a value is empty.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut text = self.column_names().join(",") + "\n";
        for row in &self.rows {
            let exact =
                |cell: &Cell| cell.exact.clone().or_else(|| cell.has_value().then(|| cell.text.clone()));
            let cells = row.iter().map(|cell| quote_value(&exact(cell).unwrap_or_default()));
            text.push_str(&cells.collect::<Vec<_>>().join(","));
            text.push('\n');
        }
        text
    }
}

/// The name of a column in options and spreadsheets.
fn option_name_of_heading(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

fn quote_value(value: &str) -> String {
    match value.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", value.replace('"', "\"\"")),
        false => value.to_owned(),
    }
}

/// The form of all lines of a list.
struct LineForm {
    widths: Vec<usize>,
    has_colours: bool,
    /// The last cell has as many lines as it needs.
    wraps: bool,
    /// The last cell is below the others.
    is_below: bool,
}

impl LineForm {
    fn push_line(&self, text: &mut String, cells: &[Cell]) {
        let begin = text.len();
        let indent = match self.is_below {
            true => INDENT,
            false => self.widths.iter().rev().skip(1).map(|width| width + GAP).sum::<usize>(),
        };
        for (index, (cell, width)) in cells.iter().zip(&self.widths).enumerate() {
            let is_last = index + 1 == self.widths.len();
            if is_last && self.is_below {
                text.truncate(begin + text[begin..].trim_end().len());
                if !cell.has_value() {
                    break;
                }
                text.push('\n');
                text.push_str(&" ".repeat(INDENT));
            } else if index > 0 {
                text.push_str(&" ".repeat(GAP));
            }
            if is_last && self.wraps {
                let mut lines = String::new();
                push_wrapped(&mut lines, "", &break_words(&cell.text, *width), 0, *width);
                let lines: Vec<String> =
                    lines.lines().map(|line| cell.tone.paint(line, self.has_colours)).collect();
                text.push_str(&lines.join(&format!("\n{}", " ".repeat(indent))));
                continue;
            }
            let length = cell.text.chars().count();
            text.push_str(&cell.tone.paint(&cut_to_width(&cell.text, *width), self.has_colours));
            text.push_str(&" ".repeat(width.saturating_sub(length)));
        }
        text.truncate(begin + text[begin..].trim_end().len());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> List {
        let mut list = List::new(&["NAME", "AGE", "WHY"], &["HOST KEY"]);
        for (name, age, seconds, why) in [
            ("b", "2d3h", 183_600, "a reason, which is long and has a \"quote\""),
            ("a", "10s", 10, "short"),
            ("c\u{1b}[31m", "1m0s", 60, ""),
        ] {
            list.add(vec![
                name.into(),
                Cell::new(age).with_order(seconds).with_exact_text("2026-01-01T00:00:00Z"),
                Cell::new(why).with_tone(Tone::Bad),
                "key".into(),
            ]);
        }
        list
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let text = list().to_text(false, Surface::default());
        let first = "b       2d3h  a reason, which is long and has a \"quote\"";
        assert_eq!(text, format!("NAME    AGE   WHY\n{first}\na       10s   short\nc\u{fffd}[31m  1m0s\n"));
        let wide = list().to_text(true, Surface { width: Some(20), ..Surface::default() });
        assert!(wide.lines().next().unwrap().ends_with("AGE   HOST KEY  WHY"), "{wide}");
    }

    #[test]
    fn lines_fit_the_terminal_and_colours_do_not_count() {
        let plain = Surface { width: Some(40), is_terminal: true, ..Surface::default() };
        let text = list().to_text(false, plain);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.contains("a reason, which is long a…\n"), "{text}");
        let colours = list().to_text(false, Surface { has_colours: true, ..plain });
        assert!(colours.contains("\u{1b}[31ma reason, which is long a…\u{1b}[0m\n"), "{colours:?}");
        assert!(!colours.contains("[31m\u{1b}[0m"), "an empty cell has no colour: {colours:?}");
        // A terminal that is too narrow for all columns keeps the addresses.
        let at = |width| list().to_text(false, Surface { width: Some(width), ..plain });
        assert!(at(29).contains("b       2d3h  a reason, whic…\n"), "{}", at(29));
        assert!(at(24).contains("b       2d3h  a reason,…\n"), "{}", at(24));
        assert!(at(20).contains("b       2d3h\n"), "{}", at(20));
        assert!(at(5).contains("b       2d3h\n"), "{}", at(5));
    }

    #[test]
    fn a_column_without_values_leaves_its_room_to_the_others() {
        let mut list = List::new(&["NAME", "REPAIR", "WHY"], &[]);
        list.add(vec!["a".into(), "-".into(), "a reason, which is long".into()]);
        let text = |width| list.to_text(false, Surface { width: Some(width), ..Surface::default() });
        assert_eq!(text(29), "NAME  WHY\na     a reason, which is long\n");
        assert!(text(40).starts_with("NAME  REPAIR  WHY\n"), "there is room");
    }

    #[test]
    fn values_of_a_rare_column_are_shown_with_the_reason() {
        let mut list = List::new(&["ADDRESS", "NEXT", "WHY"], &[]);
        for address in ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"] {
            let (next, why) = if address.ends_with('3') { ("remove", "retired") } else { ("-", "") };
            list.add(vec![address.into(), next.into(), why.into()]);
        }
        let text = |width| list.to_text(false, Surface { width: Some(width), ..Surface::default() });
        let narrow = "ADDRESS   WHY\n10.0.0.1\n10.0.0.2\n10.0.0.3  next remove, …\n10.0.0.4\n";
        assert_eq!(text(24), narrow);
        assert!(text(80).starts_with("ADDRESS   NEXT    WHY\n10.0.0.1  -\n"), "{}", text(80));
    }

    #[test]
    fn a_reason_without_room_beside_its_line_is_below() {
        let mut list = List::new(&["ADDRESS", "STATE", "WHY"], &[]);
        list.add(vec!["a".repeat(30).into(), "b".repeat(25).into(), "reason ".repeat(12).into()]);
        list.add(vec!["a".into(), "b".into(), "-".into()]);
        let text = list.to_text(false, Surface { width: Some(70), ..Surface::default() });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert_eq!((lines[1], lines[4].split_whitespace().count()), ("    WHY", 2), "{text}");
        assert!(lines[3].starts_with("    reason reason") && lines[3].ends_with('…'), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 70), "{text}");
    }

    #[test]
    fn whole_reasons_continue_below_their_first_line() {
        let mut list = List::new(&["KEY", "WHY"], &["MORE"]).with_whole_reasons();
        list.add(vec![
            "Namespace/a".into(),
            Cell::new("a reason of many words and more").with_tone(Tone::Bad),
            "".into(),
        ]);
        let surface = Surface { width: Some(36), ..Surface::default() };
        let expected = "KEY          WHY\nNamespace/a  a reason of many words\n             and more\n";
        assert_eq!(list.to_text(false, surface), expected);
        let coloured = list.to_text(false, Surface { has_colours: true, ..surface });
        assert!(
            coloured.ends_with("words\u{1b}[0m\n             \u{1b}[31mand more\u{1b}[0m\n"),
            "{coloured:?}"
        );
        assert!(list.to_text(true, surface).contains("a reason of many words and more\n"));
    }

    #[test]
    fn a_column_orders_the_lines_by_its_values() {
        let first = |name: &str| {
            let mut list = list();
            list.sort_by(name).unwrap();
            list.rows[0][0].text.clone()
        };
        assert_eq!(
            (first("name"), first("AGE"), first("why")),
            ("a".into(), "a".into(), "c\u{fffd}[31m".into())
        );
        let message = list().sort_by("size").unwrap_err();
        assert_eq!(message, "there is no column \"size\": expected one of name, age, why, host-key");
    }

    #[test]
    fn numbers_are_ordered_by_their_values() {
        let mut list = List::new(&["SCORE"], &[]);
        for number in [0.5, -2.0, 10.0, -0.25, 2.0] {
            list.add(vec![Cell::new(number.to_string()).with_order_number(number)]);
        }
        list.sort_by("score").unwrap();
        assert_eq!(list.to_csv(), "score\n-2\n-0.25\n0.5\n2\n10\n");
    }

    #[test]
    fn rows_of_one_line_fit_a_narrow_terminal() {
        let mut list =
            List::new(&["ADDRESS", "ROLE", "PART", "WHY"], &["SERIAL"]).with_rows_of_one_line(&["ROLE"]);
        list.add(
            ["10.0.0.1", "compute", "control-plane", "chosen as control plane node", "s"]
                .map(Cell::from)
                .to_vec(),
        );
        let text = list.to_text(false, Surface { width: Some(48), ..Surface::default() });
        let expected = "ADDRESS   PART           WHY\n10.0.0.1  control-plane  chosen as control plan…\n";
        assert_eq!(text, expected);
        assert!(
            list.to_text(true, Surface { width: Some(48), ..Surface::default() }).contains("  compute  ")
        );
    }

    #[test]
    fn a_missing_value_is_an_empty_string_for_spreadsheets() {
        let mut list = List::new(&["NAME", "SINCE", "PART"], &[]);
        list.add(vec!["a".into(), Cell::new("-").with_exact_text(""), "-".into()]);
        assert_eq!(list.to_csv(), "name,since,part\na,,\n");
    }

    #[test]
    fn spreadsheets_get_all_columns_and_exact_times() {
        let csv = list().to_csv();
        assert_eq!(
            csv.lines().take(2).collect::<Vec<_>>(),
            [
                "name,age,why,host-key",
                "b,2026-01-01T00:00:00Z,\"a reason, which is long and has a \"\"quote\"\"\",key"
            ]
        );
    }
}
