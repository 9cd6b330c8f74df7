//! The panel of clusters in the demo's live view: a line for each, with state, score, metrics and applications.

use std::time::Duration;

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::super::picture::ScreenState;
use super::super::placement::{BoundApplication, ClusterView};

/// From this width on there is more room than the names of applications need.
const ROOMY: usize = 100;
/// Time that an application is highlighted after a binding or a move.
const FRESH: Duration = Duration::from_secs(8);

/// The panel's title: numbers, and the settings that differ from `madako serve`.
pub(super) fn draw_title(picture: &ScreenState, width: u16, hint: &str) -> String {
    let (clusters, applications) = (picture.landscape.places.len(), picture.landscape.count_applications());
    let (stay, round) = (picture.reschedule_after.as_secs(), picture.metrics_interval.as_secs());
    if usize::from(width) < ROOMY {
        return format!(
            " {clusters} clusters, {applications} applications: stay {stay} s, metrics every {round} s{hint} "
        );
    }
    format!(
        " {clusters} clusters, {applications} applications; one stays {stay} s at least, one with * for ever; \
         metrics every {round} s{hint} "
    )
}

/// A line for each cluster, and one for unbound applications, if there are any.
pub(super) fn draw_clusters(picture: &ScreenState, width: u16) -> Vec<Line<'static>> {
    let width = usize::from(width);
    let landscape = &picture.landscape;
    let longest = |text: fn(&ClusterView) -> usize| landscape.places.iter().map(text).max().unwrap_or(0);
    let columns = Columns {
        name: longest(|place| place.name.chars().count()),
        location: longest(|place| place.location.chars().count()),
        state: longest(|place| place.state.chars().count()),
        metrics: longest(|place| describe_metrics(place).chars().count()),
        width,
    };
    let mut lines: Vec<Line<'static>> =
        landscape.places.iter().map(|place| draw_cluster(picture, place, &columns)).collect();
    if !landscape.unbound.is_empty() {
        let yellow = Style::new().fg(Color::Yellow);
        let mut spans = vec![Span::styled(" bound to none: ", yellow)];
        let room = width.saturating_sub(spans[0].width());
        spans.extend(draw_applications(picture, &landscape.unbound, room));
        lines.push(Line::from(spans));
    }
    lines
}

struct Columns {
    name: usize,
    location: usize,
    state: usize,
    metrics: usize,
    width: usize,
}

fn draw_cluster(picture: &ScreenState, place: &ClusterView, columns: &Columns) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let state = Style::new().fg(match place.state.as_str() {
        "ONLINE" => Color::Green,
        "OFFLINE" => Color::Red,
        _ => Color::Yellow,
    });
    let score = place.score.map_or_else(|| "   -".to_owned(), |score| format!("{score:.2}"));
    let mut spans = vec![Span::styled(format!(" {:<1$}  ", place.name, columns.name), bold)];
    if columns.width >= ROOMY {
        spans.push(Span::raw(format!("{:<1$}  ", place.location, columns.location)));
    }
    spans.push(Span::styled(format!("{:<1$}  ", place.state.to_lowercase(), columns.state), state));
    spans.push(Span::styled(format!("{score}  "), bold));
    spans.push(Span::styled(
        format!("{:<1$}  ", describe_metrics(place), columns.metrics),
        Style::new().fg(Color::DarkGray),
    ));
    let room = columns.width.saturating_sub(spans.iter().map(Span::width).sum());
    spans.extend(draw_applications(picture, &place.applications, room));
    Line::from(spans)
}

fn describe_metrics(place: &ClusterView) -> String {
    let metric = |(name, value): &(String, Option<f64>)| match value {
        Some(value) => format!("{name} {value:>2.0}"),
        None => format!("{name}  -"),
    };
    place.metrics.iter().map(metric).collect::<Vec<_>>().join(" ")
}

/// As many names as fit, and the number of the others. Applications that were just bound or moved are highlighted.
fn draw_applications(picture: &ScreenState, guests: &[BoundApplication], room: usize) -> Vec<Span<'static>> {
    let mut spans: Vec<Span<'static>> = Vec::new();
    let mut used = 0;
    for (place, guest) in guests.iter().enumerate() {
        let rest = guests.len() - place;
        let name = format!("{}{}", guest.name, if guest.settled { "*" } else { "" });
        let gap = usize::from(place > 0);
        // Room for the number of the others, unless this is the last name.
        let kept = if rest > 1 { format!(" +{}", rest - 1).chars().count() } else { 0 };
        if used + gap + name.chars().count() + kept > room {
            spans.push(Span::raw(format!("{}+{rest}", if gap > 0 { " " } else { "" })));
            break;
        }
        used += gap + name.chars().count();
        let fresh =
            picture.placed.get(&guest.name).is_some_and(|at| picture.elapsed.saturating_sub(*at) < FRESH);
        let style =
            if fresh { Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD) } else { Style::new() };
        if gap > 0 {
            spans.push(Span::raw(" "));
        }
        spans.push(Span::styled(name, style));
    }
    spans
}
