//! Formats text of the demo's live view: items that flow into lines, and sentences with a hanging indent.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// Separates two items of a line.
const GAP: &str = "  ";

/// Items in as few lines as possible; an item is never broken.
pub(super) fn flow_spans(items: impl IntoIterator<Item = Span<'static>>, width: usize) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'static>> = Vec::new();
    for item in items {
        match lines.last_mut() {
            Some(line) if line.width() + GAP.len() + item.width() <= width => {
                line.push_span(GAP);
                line.push_span(item);
            }
            _ => lines.push(Line::from(item)),
        }
    }
    lines
}

/// A sentence behind its heading, with a hanging indent. A word longer than a line is broken.
pub(super) fn wrap_with_heading(
    heading: &str,
    sentence: &str,
    width: usize,
    style: Style,
) -> Vec<Line<'static>> {
    let indent = heading.chars().count();
    let room = width.saturating_sub(indent).max(1);
    let mut rows = vec![String::new()];
    for word in sentence.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        let last = rows.last_mut().expect("there is a row");
        let used = last.chars().count();
        if used > 0 && used + 1 + word.len() <= room {
            last.push(' ');
            last.extend(word);
            continue;
        }
        if used > 0 {
            rows.push(String::new());
        }
        while word.len() > room {
            let rest = word.split_off(room);
            rows.last_mut().expect("there is a row").extend(word);
            rows.push(String::new());
            word = rest;
        }
        rows.last_mut().expect("there is a row").extend(word);
    }
    let blank = " ".repeat(indent);
    rows.into_iter()
        .enumerate()
        .map(|(row, text)| Line::styled(format!("{}{text}", if row == 0 { heading } else { &blank }), style))
        .collect()
}
