//! The live view: racks of machines, the last plan with its reasons, events, actors. Draws a picture,
//! knows nothing else.

use madako_messages::machine::MachineState;
use madako_messages::plan::{Outcome, Part, Reason};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

use super::picture::{Cell, Picture};

/// Draws a picture.
pub(crate) fn draw(frame: &mut Frame<'_>, picture: &Picture) {
    let racks = u16::try_from(picture.racks.len()).unwrap_or(u16::MAX).saturating_add(4);
    let [title, top, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(racks.max(9)), Constraint::Min(5)])
            .areas(frame.area());
    let [left, right] = Layout::horizontal([Constraint::Min(30), Constraint::Length(46)]).areas(top);
    let [plan, events] = Layout::horizontal([Constraint::Percentage(50); 2]).areas(bottom);
    frame.render_widget(headline(picture), title);
    frame.render_widget(machines(picture), left);
    frame.render_widget(actors(picture), right);
    frame.render_widget(last_plan(picture, plan), plan);
    frame.render_widget(happenings(picture, events), events);
}

fn headline(picture: &Picture) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let leads = match picture.epoch {
        Some(epoch) => Span::styled(format!("leads, epoch {epoch}"), Style::new().fg(Color::Green)),
        None => Span::styled("does not lead", Style::new().fg(Color::Yellow)),
    };
    Line::from(vec![
        Span::styled(" madako demo ", bold.add_modifier(Modifier::REVERSED)),
        Span::raw(format!(" {:>4} s  ", picture.elapsed.as_secs())),
        leads,
        Span::raw(format!(
            "  revision {}  http {}  etcd {}  Ctrl-C ends it",
            picture.revision, picture.http, picture.etcd
        )),
    ])
}

fn machines(picture: &Picture) -> Paragraph<'static> {
    let mut lines: Vec<Line<'_>> = picture
        .racks
        .iter()
        .map(|(rack, cells)| {
            let mut spans = vec![Span::raw(format!(" rack {rack:<2} "))];
            spans.extend(cells.iter().flat_map(|cell| [Span::raw(" "), symbol(cell)]));
            Line::from(spans)
        })
        .collect();
    let mut states = vec![Span::raw(" state: ")];
    for state in MachineState::ALL {
        states.push(Span::styled(format!("{} ", state.name().to_lowercase()), colour(state)));
    }
    lines.push(Line::from(" C control plane  c s g worker (compute, storage, gpu)  . unused  b boot"));
    lines.push(Line::from(states));
    let title = format!(" {} control plane nodes, {} workers ", picture.control_plane, picture.workers);
    Paragraph::new(lines).block(Block::bordered().title(title))
}

/// A control plane node is `C`, a worker its role's first letter, an unused machine a dot.
fn symbol(cell: &Cell) -> Span<'static> {
    let style = colour(cell.state);
    let role = cell.role.chars().next().unwrap_or('?').to_string();
    match cell.part {
        Some(Part::ControlPlane) => {
            Span::styled("C", style.add_modifier(Modifier::BOLD | Modifier::REVERSED))
        }
        Some(Part::Worker) => Span::styled(role, style.add_modifier(Modifier::BOLD)),
        None if cell.role == "boot" => Span::styled("b", Style::new().fg(Color::DarkGray)),
        None if cell.state == MachineState::Healthy => Span::styled(".", style),
        // A machine that is not in order is seen even when nobody uses it.
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

fn actors(picture: &Picture) -> Paragraph<'static> {
    let lines: Vec<Line<'_>> = picture
        .actors
        .iter()
        .map(|actor| {
            let style = if actor.state == "running" { Style::new() } else { Style::new().fg(Color::Red) };
            let name = format!("{}{}", "  ".repeat(actor.depth), actor.name);
            let restarts =
                if actor.restarts == 0 { String::new() } else { format!("{} restarts", actor.restarts) };
            Line::styled(format!(" {name:<20} {:<9} {restarts}", actor.state), style)
        })
        .collect();
    Paragraph::new(lines).block(Block::bordered().title(" actors "))
}

fn last_plan(picture: &Picture, area: Rect) -> Paragraph<'static> {
    let Some(plan) = &picture.last_plan else {
        return Paragraph::new(" none yet").block(Block::bordered().title(" last plan "));
    };
    let room = usize::from(area.height.saturating_sub(2));
    let mut reasons: Vec<&Reason> = plan.reasons.iter().collect();
    // What was done first, then why the other rules did not fire.
    reasons.sort_by_key(|reason| reason.outcome != Outcome::Fired);
    let lines: Vec<Line<'_>> = reasons
        .iter()
        .take(room)
        .map(|reason| {
            let style = match reason.outcome {
                Outcome::Fired => Style::new(),
                Outcome::NotFired => Style::new().fg(Color::DarkGray),
                Outcome::Failed => Style::new().fg(Color::Red),
            };
            let address = reason.address.as_ref().map_or_else(String::new, |address| format!("{address}: "));
            Line::styled(format!(" {}: {address}{}", reason.rule.name(), reason.why), style)
        })
        .collect();
    let title = format!(
        " last plan: {}, {} changes ",
        plan.action.map_or("nothing", |action| action.name()),
        plan.changes.len()
    );
    Paragraph::new(lines).block(Block::bordered().title(title))
}

fn happenings(picture: &Picture, area: Rect) -> Paragraph<'static> {
    let room = usize::from(area.height.saturating_sub(2));
    let skipped = picture.events.len().saturating_sub(room);
    let lines: Vec<Line<'_>> = picture
        .events
        .iter()
        .skip(skipped)
        .map(|(at, what)| Line::from(format!(" {:>4} s  {what}", at.as_secs())))
        .collect();
    Paragraph::new(lines).block(Block::bordered().title(" what happened "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::picture::ActorLine;
    use super::*;

    fn cell(role: &str, state: MachineState, part: Option<Part>) -> Cell {
        Cell { role: role.to_owned(), state, part }
    }

    #[test]
    fn racks_parts_actors_and_events_are_on_the_screen() {
        let mut picture = Picture {
            elapsed: Duration::from_secs(12),
            http: "127.0.0.1:10180".to_owned(),
            etcd: "127.0.0.1:2379".to_owned(),
            epoch: Some(3),
            revision: 9,
            control_plane: 1,
            workers: 2,
            ..Picture::default()
        };
        picture.racks.insert(
            0,
            vec![
                cell("boot", MachineState::Healthy, None),
                cell("compute", MachineState::Healthy, Some(Part::ControlPlane)),
                cell("storage", MachineState::Unhealthy, Some(Part::Worker)),
                cell("gpu", MachineState::Healthy, Some(Part::Worker)),
                cell("compute", MachineState::Healthy, None),
                cell("compute", MachineState::Retired, None),
            ],
        );
        picture.actors.push(ActorLine {
            name: "leader".to_owned(),
            depth: 0,
            state: "running".to_owned(),
            restarts: 2,
        });
        picture.events.push_back((Duration::from_secs(7), "leads (epoch 3)".to_owned()));
        let mut terminal = Terminal::new(TestBackend::new(110, 20)).unwrap();
        terminal.draw(|frame| draw(frame, &picture)).unwrap();
        let screen = terminal.backend().to_string();
        for expected in [
            "12 s  leads, epoch 3  revision 9",
            "1 control plane nodes, 2 workers",
            "rack 0   b C s g . ,",
            "leader               running   2 restarts",
            "last plan",
            "7 s  leads (epoch 3)",
        ] {
            assert!(screen.contains(expected), "no {expected:?} on\n{screen}");
        }
    }

    #[test]
    fn a_small_screen_is_no_reason_to_fail() {
        for (width, height) in [(1, 1), (20, 5), (40, 3)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &Picture::default())).unwrap();
        }
    }
}
