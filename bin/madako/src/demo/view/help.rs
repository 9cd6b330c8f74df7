//! Draws the help of the demo over its live view.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::kind_style;
use crate::demo::happenings::HappeningKind;
use crate::demo::picture::ScreenState;

/// Columns and lines of the help with its frame.
const SIZE: (u16, u16) = (76, 22);

pub(super) fn draw(frame: &mut Frame<'_>, picture: &ScreenState) {
    let whole = frame.area();
    let (width, height) = (SIZE.0.min(whole.width), SIZE.1.min(whole.height));
    let (x, y) = ((whole.width - width) / 2, (whole.height - height) / 2);
    let area = Rect { x: whole.x + x, y: whole.y + y, width, height };
    let help = Paragraph::new(draw_help(picture))
        .wrap(Wrap { trim: false })
        .block(Block::bordered().title(" help: ? closes it "));
    frame.render_widget(Clear, area);
    frame.render_widget(help, area);
}

fn draw_help(picture: &ScreenState) -> Vec<Line<'static>> {
    let keys = [
        " k       cuts the power of a rack for a while; its repairs wait",
        " b       breaks a worker, which is then repaired",
        " l       stops the leader; after its session another term begins",
        " f       lets every command of the next repair fail",
        " space   stops the picture; the service goes on",
        " up down PgUp PgDn End   scroll what happened",
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
