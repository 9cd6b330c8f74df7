//! Draws the help of the demo over its live view. On a small screen the help scrolls.

use madako_console::count_with_noun;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};

use super::kind_style;
use super::text::wrap_with_heading;
use crate::demo::happenings::HappeningKind;
use crate::demo::picture::ScreenState;

/// Columns and lines of the help with its frame.
const SIZE: (u16, u16) = (76, 22);

pub(super) fn draw(frame: &mut Frame<'_>, picture: &ScreenState) {
    let area = help_area(frame.area());
    let lines = help_lines(picture, area);
    let above = picture.help_scrolled.min(hidden_lines(&lines, area));
    let below = hidden_lines(&lines, area) - above;
    let title = if above + below == 0 { " help: ? closes it " } else { " help: arrows, ? closes " };
    let mut block = Block::bordered().title(title);
    if below > 0 {
        let below = count_with_noun(u64::try_from(below).unwrap_or(u64::MAX), "more line", "more lines");
        block = block.title_bottom(format!(" {below} below "));
    }
    let shown: Vec<Line<'static>> = lines.into_iter().skip(above).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(shown).block(block), area);
}

/// Lines for which the help has no room on a screen: so many can be above the first shown one.
pub(in crate::demo) fn most_scrolled(picture: &ScreenState, screen: Rect) -> usize {
    let area = help_area(screen);
    hidden_lines(&help_lines(picture, area), area)
}

fn help_area(whole: Rect) -> Rect {
    let (width, height) = (SIZE.0.min(whole.width), SIZE.1.min(whole.height));
    let (x, y) = ((whole.width - width) / 2, (whole.height - height) / 2);
    Rect { x: whole.x + x, y: whole.y + y, width, height }
}

fn hidden_lines(lines: &[Line<'static>], area: Rect) -> usize {
    lines.len().saturating_sub(usize::from(area.height.saturating_sub(2)))
}

/// The help in lines that fit within its frame.
fn help_lines(picture: &ScreenState, area: Rect) -> Vec<Line<'static>> {
    let width = usize::from(area.width.saturating_sub(2));
    let wrap = |line: Line<'static>| {
        let text = line.to_string();
        let words = text.trim_start();
        let begin = &text[..text.len() - words.len()];
        match line.width() <= width {
            true => vec![line],
            false => wrap_with_heading(begin, words, width, line.style),
        }
    };
    draw_help(picture).into_iter().flat_map(wrap).collect()
}

fn draw_help(picture: &ScreenState) -> Vec<Line<'static>> {
    let keys = [
        " k       cuts the power of a rack for a while; its repairs wait",
        " b       breaks a worker, which is then repaired",
        " l       stops the leader; after its session another epoch begins",
        " f       lets every command of the next repair fail",
        " space   stops the picture; the service goes on",
        " up down PgUp PgDn End   scroll what happened, and this help",
        " Tab     shows the clusters or the last plan, where only one fits",
        " q, Ctrl-C   end the demo, with a summary; so does Esc without this help",
        "",
        " A machine is C (control plane), c, s or g (worker: compute, storage,",
        " gpu), b (boot server) or . (unused), with the letter of its state.",
        "",
        " Colours of what happened:",
    ];
    let kinds = [
        (HappeningKind::Plan, "   plans and commits of the cluster"),
        (HappeningKind::Repair, "   repairs"),
        (HappeningKind::Placement, "   applications and their clusters"),
        (HappeningKind::Failure, "   failures"),
        (HappeningKind::Injected, "   faults by the demo and by you"),
    ];
    let rates = format!(
        " An application stays {} s at least, one with * for ever.",
        picture.reschedule_after.as_secs()
    );
    let mut lines: Vec<Line<'static>> = keys.into_iter().map(Line::raw).collect();
    lines.extend(kinds.map(|(kind, text)| Line::styled(text, kind_style(kind))));
    lines.extend([Line::raw(""), Line::raw(rates)]);
    lines
}
