//! The demo's live view on the terminal. Drawing is a function of a [`ScreenState`] and the size of the terminal.
//!
//! Guarantees: a screen of 80 by 24 shows the legend, the keys, and the addresses. Each event has a line, with an
//! ellipsis where it is too long; other text is wrapped. A list that does not fit shows its newest or most
//! telling items, with the number of the others. A screen without room for everything shows either the clusters or the
//! last plan, and the key that switches between them. No meaning is in a colour alone.

mod help;
mod places;
#[cfg(test)]
mod tests;
mod text;

use madako_console::cut_to_width;
use madako_domain::machine::MachineState;
use madako_domain::plan::{Outcome, Part, Reason};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use super::happenings::HappeningKind;
use super::picture::{MachineCell, ScreenState};
use text::{flow_spans, wrap_with_heading};

/// Columns of the panel of actors: the longest name, `back in 0.1 s`, and three digits of restarts.
const ACTORS_WIDTH: u16 = 46;
/// From this width on the plan and the events are side by side, each wide enough for a sentence in a line or two.
const WIDE: u16 = 110;
/// Below this height panels have a line above them instead of a frame, which saves a line each.
const HIGH: u16 = 32;
/// A screen below this width or height has room for one panel of names beside the events.
const SMALL: (u16, u16) = (60, 18);
/// Lines of the events on a small screen, with their heading.
const SMALL_EVENTS: u16 = 4;
/// Lines that the last plan and the events need for a few sentences: one above the other, and side by side.
const FEW: (usize, usize) = (10, 6);
/// Columns of a machine: its sign and the letter of its state, and on a wide screen up to this many.
const CELL: (usize, usize) = (2, 9);
/// Columns of the name of a rack.
const RACK: usize = 9;

pub(super) use help::most_scrolled;

/// The picture before the service has started.
pub(crate) fn draw_start(frame: &mut Frame<'_>) {
    let title = " madako demo: starts a store, a data center, metrics, and the service ";
    frame.render_widget(
        Paragraph::new(title).style(Style::new().add_modifier(Modifier::REVERSED)),
        frame.area(),
    );
}

pub(crate) fn draw(frame: &mut Frame<'_>, picture: &ScreenState) {
    let area = frame.area();
    if area.width < SMALL.0 || area.height < SMALL.1 {
        draw_small(frame, picture);
    } else {
        draw_panels(frame, picture);
    }
    if picture.shows_help {
        help::draw(frame, picture);
    }
}

/// The head, as many racks as fit, and the newest events. Tab shows the clusters instead of the racks; the help has the
/// legend.
fn draw_small(frame: &mut Frame<'_>, picture: &ScreenState) {
    let area = frame.area();
    let [head, top, events] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(SMALL_EVENTS.max(area.height / 3).min(area.height.saturating_sub(1))),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(draw_headline(picture, area.width)), head);
    let (title, lines) = match picture.plan_first {
        false => (machines_title(picture), draw_machines(picture, usize::from(area.width))),
        true => (places::draw_title(picture, area.width, ""), places::draw_clusters(picture, area.width)),
    };
    let hidden = lines.len().saturating_sub(usize::from(top.height.saturating_sub(1)));
    let title = if hidden > 0 { format!("{title}+{hidden} ") } else { title };
    frame.render_widget(Paragraph::new(lines).block(titled_block(title, false)), top);
    let block = titled_block(" ? help, Tab, q ends ".to_owned(), false);
    frame.render_widget(Paragraph::new(draw_happenings(picture, block.inner(events))).block(block), events);
}

fn draw_panels(frame: &mut Frame<'_>, picture: &ScreenState) {
    let area = frame.area();
    let head = draw_headline(picture, area.width);
    let legend = draw_legend(picture, area.width);
    let framed = area.height >= HIGH;
    let rows = picture.racks.len().max(picture.actors.len()) + if framed { 2 } else { 1 };
    let shown = ShownPanels::for_area(picture, area, head.len() + rows + legend.len(), framed);
    let [head_area, top, legend_area, bottom] = Layout::vertical([
        Constraint::Length(saturating_length(head.len())),
        Constraint::Length(saturating_length(rows)),
        Constraint::Length(saturating_length(legend.len())),
        Constraint::Min(0),
    ])
    .areas(area);
    let [left, right] =
        Layout::horizontal([Constraint::Min(30), Constraint::Length(ACTORS_WIDTH)]).areas(top);
    frame.render_widget(Paragraph::new(head), head_area);
    let inside = |area: Rect| titled_block(String::new(), framed).inner(area);
    let racks = draw_machines(picture, usize::from(inside(left).width));
    frame.render_widget(Paragraph::new(racks).block(titled_block(machines_title(picture), framed)), left);
    frame.render_widget(
        Paragraph::new(draw_actors(picture)).block(titled_block(" actors ".to_owned(), framed)),
        right,
    );
    frame.render_widget(Paragraph::new(legend), legend_area);

    let mut rest = bottom;
    if shown.clusters {
        let rows =
            saturating_length(places::draw_clusters(picture, area.width).len()) + if framed { 2 } else { 1 };
        let [clusters, below] =
            Layout::vertical([Constraint::Length(rows), Constraint::Min(0)]).areas(bottom);
        let title = places::draw_title(picture, area.width, if shown.plan { "" } else { "; Tab: plan" });
        let lines = places::draw_clusters(picture, inside(clusters).width);
        frame.render_widget(Paragraph::new(lines).block(titled_block(title, framed)), clusters);
        rest = below;
    }
    let events = if shown.plan {
        let (plan, events) = split_lower_half(picture, rest, framed);
        let reasons = last_plan(picture, inside(plan));
        let hint = if shown.clusters || picture.landscape.places.is_empty() { "" } else { "; Tab: clusters" };
        let title = plan_title(picture, hint);
        frame.render_widget(Paragraph::new(reasons).block(titled_block(title, framed)), plan);
        events
    } else {
        rest
    };
    let happened = draw_happenings(picture, inside(events));
    let title = happenings_title(picture, events.width);
    frame.render_widget(Paragraph::new(happened).block(titled_block(title, framed)), events);
}

struct ShownPanels {
    clusters: bool,
    plan: bool,
}

impl ShownPanels {
    /// The panels that fit when `taken` lines are in use.
    fn for_area(picture: &ScreenState, area: Rect, taken: usize, framed: bool) -> Self {
        let clusters = places::draw_clusters(picture, area.width).len();
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
fn split_lower_half(picture: &ScreenState, area: Rect, framed: bool) -> (Rect, Rect) {
    if area.width >= WIDE {
        let [plan, events] = Layout::horizontal([Constraint::Percentage(50); 2]).areas(area);
        return (plan, events);
    }
    let inside = titled_block(String::new(), framed).inner(area);
    let edges = area.height - inside.height;
    let all = last_plan(picture, Rect { height: u16::MAX, ..inside });
    let wanted = saturating_length(all.len()).saturating_add(edges);
    let [plan, events] =
        Layout::vertical([Constraint::Length(wanted.min(area.height.div_ceil(2))), Constraint::Min(0)])
            .areas(area);
    (plan, events)
}

fn saturating_length(lines: usize) -> u16 {
    u16::try_from(lines).unwrap_or(u16::MAX)
}

fn titled_block(title: String, framed: bool) -> Block<'static> {
    Block::new().borders(if framed { Borders::ALL } else { Borders::TOP }).title(title)
}

fn draw_headline(picture: &ScreenState, width: u16) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let leads = match picture.epoch {
        Some(epoch) => {
            let number = picture.tally.elections.max(1);
            let leader_text = format!("leader {number} since the start (epoch {epoch})");
            Span::styled(leader_text, Style::new().fg(Color::Green))
        }
        None => Span::styled("no leader", Style::new().fg(Color::Yellow)),
    };
    let name = match picture.is_paused {
        true => Span::styled(" madako demo, PAUSED ", bold.add_modifier(Modifier::REVERSED)),
        false => Span::styled(" madako demo ", bold.add_modifier(Modifier::REVERSED)),
    };
    let (succeeded, failed) = picture.tally.count_repairs();
    let items = [
        name,
        Span::raw(format!("{:>4} s", picture.elapsed.as_secs())),
        leads,
        Span::raw(format!("revision {}", picture.revision)),
        Span::raw(format!("http {}", picture.http)),
        Span::raw(format!("etcd {}", picture.etcd)),
        Span::raw(format!("seed {}", picture.seed)),
        Span::raw(format!("repairs {succeeded} good, {failed} failed")),
    ];
    let apart = picture.placement != picture.http && !picture.placement.is_empty();
    let placement = apart.then(|| Span::raw(format!("placement API {}", picture.placement)));
    flow_spans(items.into_iter().chain(placement), usize::from(width))
}

fn machines_title(picture: &ScreenState) -> String {
    format!(" {} control plane, {} workers ", picture.control_plane, picture.workers)
}

/// A line for each rack. Machines have as much room as the widest rack allows.
fn draw_machines(picture: &ScreenState, width: usize) -> Vec<Line<'static>> {
    let most = picture.racks.values().map(Vec::len).max().unwrap_or(0).max(1);
    let room = (width.saturating_sub(RACK) / most).clamp(CELL.0, CELL.1);
    let rack = |(rack, cells): (&i64, &Vec<MachineCell>)| {
        let mut spans = vec![Span::raw(format!(" rack {rack:<3}"))];
        spans.extend(cells.iter().flat_map(|cell| {
            let letter = Span::styled(state_letter(cell.state).to_string(), style_of_state(cell.state));
            [sign(cell), letter, Span::raw(" ".repeat(room - CELL.0))]
        }));
        Line::from(spans)
    };
    picture.racks.iter().map(rack).collect()
}

/// The legend of signs and letters, and the setting that differs from `madako serve`.
fn draw_legend(picture: &ScreenState, width: u16) -> Vec<Line<'static>> {
    let signs = [" C control plane", "c s g worker", ". unused", "b boot"].map(Span::raw);
    let states = MachineState::ALL.iter().filter(|state| **state != MachineState::Healthy).map(|&state| {
        let mut text = format!("{} {}", state_letter(state), state.name().to_lowercase());
        if state == MachineState::Retired {
            text += &format!(" (worker leaves after {} s)", picture.retire_wait.as_secs());
        }
        Span::styled(text, style_of_state(state))
    });
    flow_spans(signs.into_iter().chain(states), usize::from(width))
}

/// A control plane node is `C`, a worker its role's first letter, an unused machine a dot.
fn sign(cell: &MachineCell) -> Span<'static> {
    let style = style_of_state(cell.state);
    let role = cell.role.chars().next().unwrap_or('?').to_string();
    match cell.part {
        Some(Part::ControlPlane) => {
            Span::styled("C", style.add_modifier(Modifier::BOLD | Modifier::REVERSED))
        }
        Some(Part::Worker) => Span::styled(role, style.add_modifier(Modifier::BOLD)),
        None if cell.role == "boot" => Span::styled("b", Style::new().fg(Color::DarkGray)),
        None => Span::styled(".", style),
    }
}

/// The letter of a state, beside the sign of its machine; healthy machines have none.
fn state_letter(state: MachineState) -> char {
    match state {
        MachineState::Healthy => ' ',
        MachineState::Unhealthy => 'u',
        MachineState::Unreachable => 'x',
        MachineState::Updating => 'p',
        MachineState::Uninitialized => 'i',
        MachineState::Retiring => 't',
        MachineState::Retired => 'r',
    }
}

fn style_of_state(state: MachineState) -> Style {
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

fn draw_actors(picture: &ScreenState) -> Vec<Line<'static>> {
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

fn plan_title(picture: &ScreenState, hint: &str) -> String {
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
fn last_plan(picture: &ScreenState, area: Rect) -> Vec<Line<'static>> {
    let (width, room) = (usize::from(area.width), usize::from(area.height));
    let Some(plan) = &picture.last_plan else { return vec![Line::raw(" none yet")] };
    let reasons_text = |fired: bool| -> Vec<Vec<Line<'static>>> {
        let chosen = plan.reasons.iter().filter(|reason| (reason.outcome != Outcome::NotFired) == fired);
        chosen.map(|reason| reason_lines(reason, width)).collect()
    };
    let count = |reasons: &[Vec<Line<'_>>]| reasons.iter().map(Vec::len).sum::<usize>();
    let (fired, others) = (reasons_text(true), reasons_text(false));
    if count(&fired) + count(&others) <= room {
        return [fired.concat(), others.concat()].concat();
    }
    // A line is reserved for the number of omitted reasons.
    let room = room.saturating_sub(1);
    let all = fired.len() + others.len();
    let for_others = count(&others).min((room / 2).max(room.saturating_sub(count(&fired))));
    let mut lines = Vec::new();
    let mut shown = add_whole_reasons(&mut lines, fired, room - for_others);
    shown += add_whole_reasons(&mut lines, others, room);
    lines.push(Line::styled(format!(" and {} more reasons", all - shown), Style::new().fg(Color::DarkGray)));
    lines
}

/// Adds reasons while they fit as a whole. Returns their number.
fn add_whole_reasons(lines: &mut Vec<Line<'static>>, reasons: Vec<Vec<Line<'static>>>, room: usize) -> usize {
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

fn happenings_title(picture: &ScreenState, width: u16) -> String {
    let older = match picture.scrolled_to {
        Some(to) => format!(", {} newer below, space goes on", picture.happenings.count() - to),
        None => String::new(),
    };
    let keys = "; ? help, space pauses, arrows scroll, k b l f break, q ends";
    let long = format!(" what happened{older}{keys} ");
    match long.chars().count() <= usize::from(width) {
        true => long,
        false => format!(" what happened{older}; ? help, q ends "),
    }
}

/// A line for each thing that happened, the newest at the bottom.
fn draw_happenings(picture: &ScreenState, area: Rect) -> Vec<Line<'static>> {
    let (width, room) = (usize::from(area.width), usize::from(area.height));
    let end = picture.scrolled_to.unwrap_or_else(|| picture.happenings.count());
    let mut lines: Vec<Line<'static>> = picture
        .happenings
        .lines_before(end)
        .take(room)
        .map(|happened| {
            let time = format!(" {:>4} s  ", happened.at.as_secs());
            let text = happened.shorten_to(width.saturating_sub(time.len()));
            Line::styled(cut_to_width(&(time + &text), width), kind_style(happened.kind))
        })
        .collect();
    lines.reverse();
    lines
}

fn kind_style(kind: HappeningKind) -> Style {
    match kind {
        HappeningKind::Other => Style::new(),
        HappeningKind::Plan => Style::new().fg(Color::Green),
        HappeningKind::Repair => Style::new().fg(Color::Yellow),
        HappeningKind::Placement => Style::new().fg(Color::Cyan),
        HappeningKind::Leader => Style::new().add_modifier(Modifier::BOLD),
        HappeningKind::Failure => Style::new().fg(Color::Red),
        HappeningKind::Injected => Style::new().fg(Color::Magenta),
    }
}
