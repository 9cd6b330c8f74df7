//! The demo's live view on the terminal. Drawing is a function of a [`Picture`] and the size of the terminal.
//!
//! Guarantees: text is never cut at a border but wrapped. A screen of 80 by 24 shows the keys that end the demo, and
//! its addresses. A list that does not fit shows its newest or most telling items, with the number of the others. A
//! screen without room for everything shows either the clusters, or the last plan with the legend, and the key that
//! switches between them.

mod places;
#[cfg(test)]
mod tests;
mod text;

use madako_domain::machine::MachineState;
use madako_domain::plan::{Outcome, Part, Reason};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use super::picture::{MachineCell, Picture};
use text::{flow, wrap_with_heading};

/// Columns of the panel of actors: the longest name, `back in 0.1 s`, and three digits of restarts.
const ACTORS_WIDTH: u16 = 46;
/// From this width on the plan and the events are side by side, each wide enough for a sentence in a line or two.
const WIDE: u16 = 110;
/// Below this height panels have a line above them instead of a frame, which saves a line each.
const HIGH: u16 = 32;
/// Lines that the last plan and the events need for a few sentences: one above the other, and side by side.
const FEW: (usize, usize) = (12, 6);
/// Marks a shortened sentence.
const AND_SO_ON: &str = " …";

pub(crate) fn draw(frame: &mut Frame<'_>, picture: &Picture) {
    let area = frame.area();
    let head = headline(picture, area.width);
    let legend = legend(picture, area.width);
    let framed = area.height >= HIGH;
    let rows = picture.racks.len().max(picture.actors.len()) + if framed { 2 } else { 1 };
    let shown = ShownPanels::of(picture, area, head.len() + rows + legend.len(), framed);
    let legend = if shown.plan { legend } else { Vec::new() };
    let [head_area, top, legend_area, bottom] = Layout::vertical([
        Constraint::Length(length(head.len())),
        Constraint::Length(length(rows)),
        Constraint::Length(length(legend.len())),
        Constraint::Min(0),
    ])
    .areas(area);
    let [left, right] =
        Layout::horizontal([Constraint::Min(30), Constraint::Length(ACTORS_WIDTH)]).areas(top);
    frame.render_widget(Paragraph::new(head), head_area);
    frame
        .render_widget(Paragraph::new(machines(picture)).block(block(machines_title(picture), framed)), left);
    frame.render_widget(Paragraph::new(actors(picture)).block(block(" actors ".to_owned(), framed)), right);
    frame.render_widget(Paragraph::new(legend), legend_area);

    let inside = |area: Rect| block(String::new(), framed).inner(area);
    let mut rest = bottom;
    if shown.clusters {
        let rows = length(places::lines(picture, area.width).len()) + if framed { 2 } else { 1 };
        let [clusters, below] =
            Layout::vertical([Constraint::Length(rows), Constraint::Min(0)]).areas(bottom);
        let title = places::title(picture, area.width, if shown.plan { "" } else { "; Tab: plan, signs" });
        let lines = places::lines(picture, inside(clusters).width);
        frame.render_widget(Paragraph::new(lines).block(block(title, framed)), clusters);
        rest = below;
    }
    let events = if shown.plan {
        let (plan, events) = below(picture, rest, framed);
        let reasons = last_plan(picture, inside(plan));
        let hint = if shown.clusters || picture.landscape.places.is_empty() { "" } else { "; Tab: clusters" };
        let title = plan_title(picture, hint);
        frame.render_widget(Paragraph::new(reasons).block(block(title, framed)), plan);
        events
    } else {
        rest
    };
    let happened = happenings(picture, inside(events));
    frame.render_widget(Paragraph::new(happened).block(block(" what happened ".to_owned(), framed)), events);
}

struct ShownPanels {
    clusters: bool,
    plan: bool,
}

impl ShownPanels {
    /// The panels that fit when `taken` lines are in use.
    fn of(picture: &Picture, area: Rect, taken: usize, framed: bool) -> Self {
        let clusters = places::lines(picture, area.width).len();
        if clusters == 0 {
            return Self { clusters: false, plan: true };
        }
        let needed = if area.width >= WIDE { FEW.1 } else { FEW.0 };
        let both = taken + clusters + if framed { 2 } else { 1 } + needed <= usize::from(area.height);
        Self { clusters: both || !picture.plan_first, plan: both || picture.plan_first }
    }
}

/// Areas of the plan and the events: side by side, or, on a narrow screen, one above the other; then a short plan
/// leaves its room to the events.
fn below(picture: &Picture, area: Rect, framed: bool) -> (Rect, Rect) {
    if area.width >= WIDE {
        let [plan, events] = Layout::horizontal([Constraint::Percentage(50); 2]).areas(area);
        return (plan, events);
    }
    let inside = block(String::new(), framed).inner(area);
    let edges = area.height - inside.height;
    let all = last_plan(picture, Rect { height: u16::MAX, ..inside });
    let wanted = length(all.len()).saturating_add(edges);
    let [plan, events] =
        Layout::vertical([Constraint::Length(wanted.min(area.height.div_ceil(2))), Constraint::Min(0)])
            .areas(area);
    (plan, events)
}

fn length(lines: usize) -> u16 {
    u16::try_from(lines).unwrap_or(u16::MAX)
}

fn block(title: String, framed: bool) -> Block<'static> {
    Block::new().borders(if framed { Borders::ALL } else { Borders::TOP }).title(title)
}

fn headline(picture: &Picture, width: u16) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let leads = match picture.epoch {
        Some(epoch) => Span::styled(format!("leads, epoch {epoch}"), Style::new().fg(Color::Green)),
        None => Span::styled("does not lead", Style::new().fg(Color::Yellow)),
    };
    let items = [
        Span::styled(" madako demo ", bold.add_modifier(Modifier::REVERSED)),
        Span::raw(format!("{:>4} s", picture.elapsed.as_secs())),
        leads,
        Span::raw(format!("revision {}", picture.revision)),
        Span::raw("Ctrl-C ends it"),
        Span::raw(format!("http {}", picture.http)),
        Span::raw(format!("etcd {}", picture.etcd)),
        Span::raw(format!("seed {}", picture.seed)),
    ];
    let apart = picture.placement != picture.http && !picture.placement.is_empty();
    let placement = apart.then(|| Span::raw(format!("placement API {}", picture.placement)));
    flow(items.into_iter().chain(placement), usize::from(width))
}

fn machines_title(picture: &Picture) -> String {
    format!(" {} control plane, {} workers ", picture.control_plane, picture.workers)
}

fn machines(picture: &Picture) -> Vec<Line<'static>> {
    let rack = |(rack, cells): (&i64, &Vec<MachineCell>)| {
        let mut spans = vec![Span::raw(format!(" rack {rack:<2} "))];
        spans.extend(cells.iter().flat_map(|cell| [Span::raw(" "), symbol(cell)]));
        Line::from(spans)
    };
    picture.racks.iter().map(rack).collect()
}

/// The legend of signs and colours, and the settings that differ from `madako serve`.
fn legend(picture: &Picture, width: u16) -> Vec<Line<'static>> {
    let signs = [
        " C control plane",
        "c s g worker (compute, storage, gpu)",
        ". unused",
        ", unused, not in order",
        "b boot",
    ];
    let states = MachineState::ALL
        .iter()
        .map(|&state| Span::styled(state.name().to_lowercase(), colour(state)))
        .collect::<Vec<_>>();
    let wait = format!("a retired worker leaves after {} s", picture.retire_wait.as_secs());
    flow(signs.map(Span::raw).into_iter().chain(states).chain([Span::raw(wait)]), usize::from(width))
}

/// A control plane node is `C`, a worker its role's first letter, an unused machine a dot.
fn symbol(cell: &MachineCell) -> Span<'static> {
    let style = colour(cell.state);
    let role = cell.role.chars().next().unwrap_or('?').to_string();
    match cell.part {
        Some(Part::ControlPlane) => {
            Span::styled("C", style.add_modifier(Modifier::BOLD | Modifier::REVERSED))
        }
        Some(Part::Worker) => Span::styled(role, style.add_modifier(Modifier::BOLD)),
        None if cell.role == "boot" => Span::styled("b", Style::new().fg(Color::DarkGray)),
        None if cell.state == MachineState::Healthy => Span::styled(".", style),
        // An unhealthy machine is visible even when it is unused.
        None => Span::styled(",", style),
    }
}

fn colour(state: MachineState) -> Style {
    Style::new().fg(match state {
        MachineState::Healthy => Color::Green,
        MachineState::Unhealthy => Color::Red,
        MachineState::Unreachable => Color::Magenta,
        MachineState::Updating => Color::Cyan,
        MachineState::Uninitialized => Color::Blue,
        MachineState::Retiring => Color::Yellow,
        MachineState::Retired => Color::DarkGray,
    })
}

fn actors(picture: &Picture) -> Vec<Line<'static>> {
    picture
        .actors
        .iter()
        .map(|actor| {
            let style = if actor.state == "running" { Style::new() } else { Style::new().fg(Color::Red) };
            let name = format!("{}{}", "  ".repeat(actor.depth), actor.name);
            let restarts = match actor.restarts {
                0 => String::new(),
                1 => "1 restart".to_owned(),
                more => format!("{more} restarts"),
            };
            Line::styled(format!(" {name:<18} {:<13} {restarts}", actor.state), style)
        })
        .collect()
}

fn plan_title(picture: &Picture, hint: &str) -> String {
    match &picture.last_plan {
        None => format!(" last plan{hint} "),
        Some(plan) => {
            let action = plan.action.map_or("nothing", |action| action.name());
            let changes = if plan.changes.len() == 1 { "change" } else { "changes" };
            format!(" last plan: {action}, {} {changes}{hint} ", plan.changes.len())
        }
    }
}

/// The actions first, then the reasons why other rules did not fire. If space is short, the reasons have up to half of
/// it: they are as telling as the thirtieth chosen machine.
fn last_plan(picture: &Picture, area: Rect) -> Vec<Line<'static>> {
    let (width, room) = (usize::from(area.width), usize::from(area.height));
    let Some(plan) = &picture.last_plan else { return vec![Line::raw(" none yet")] };
    let told = |fired: bool| -> Vec<Vec<Line<'static>>> {
        let chosen = plan.reasons.iter().filter(|reason| (reason.outcome != Outcome::NotFired) == fired);
        chosen.map(|reason| reason_lines(reason, width)).collect()
    };
    let count = |reasons: &[Vec<Line<'_>>]| reasons.iter().map(Vec::len).sum::<usize>();
    let (fired, others) = (told(true), told(false));
    if count(&fired) + count(&others) <= room {
        return [fired.concat(), others.concat()].concat();
    }
    // A line is reserved for the number of omitted reasons.
    let room = room.saturating_sub(1);
    let all = fired.len() + others.len();
    let for_others = count(&others).min((room / 2).max(room.saturating_sub(count(&fired))));
    let mut lines = Vec::new();
    let mut shown = whole(&mut lines, fired, room - for_others);
    shown += whole(&mut lines, others, room);
    lines.push(Line::styled(format!(" and {} more reasons", all - shown), Style::new().fg(Color::DarkGray)));
    lines
}

/// Adds reasons while they fit as a whole. Returns their number.
fn whole(lines: &mut Vec<Line<'static>>, reasons: Vec<Vec<Line<'static>>>, room: usize) -> usize {
    let mut added = 0;
    for reason in reasons {
        if lines.len() + reason.len() > room {
            break;
        }
        lines.extend(reason);
        added += 1;
    }
    added
}

fn reason_lines(reason: &Reason, width: usize) -> Vec<Line<'static>> {
    let style = match reason.outcome {
        Outcome::Fired => Style::new().fg(Color::Green),
        Outcome::NotFired => Style::new().fg(Color::DarkGray),
        Outcome::Failed => Style::new().fg(Color::Red),
    };
    let address = reason.address.as_ref().map_or_else(String::new, |address| format!("{address}: "));
    let text = format!("{}: {address}{}", reason.rule.name(), reason.why);
    wrap_with_heading(&format!(" {:<9} ", reason.outcome.name()), &text, width, style)
}

/// The newest event is at the bottom; the oldest one may be shortened.
fn happenings(picture: &Picture, area: Rect) -> Vec<Line<'static>> {
    let (width, room) = (usize::from(area.width), usize::from(area.height));
    let mut newest_first: Vec<Line<'static>> = Vec::new();
    for (at, what) in picture.events.iter().rev() {
        let told = |width| wrap_with_heading(&format!(" {:>4} s  ", at.as_secs()), what, width, Style::new());
        let left = room - newest_first.len();
        let mut lines = told(width);
        if lines.len() > left {
            lines = told(width.saturating_sub(AND_SO_ON.chars().count()));
            lines.truncate(left);
            if let Some(last) = lines.last_mut() {
                last.push_span(AND_SO_ON);
            }
        }
        newest_first.extend(lines.into_iter().rev());
        if newest_first.len() == room {
            break;
        }
    }
    newest_first.reverse();
    newest_first
}
