//! The timeline of a chaos run: leaders, faults, failed calls, commits.

use std::fmt::Write as _;

use super::{Observations, is_commit};
use crate::check::drains::cordon_spans;
use crate::history::{Call, Event, Micros};

/// Width of the image, and of the names at its left, in pixels.
const WIDTH: f64 = 1200.0;
const LEFT: f64 = 190.0;
/// Height of a lane in pixels.
const LANE: f64 = 20.0;
/// Lanes of faults: the image is not readable with more.
const MOST_FAULTS: usize = 60;
/// Number of times along the top.
const TICKS: u64 = 8;

struct TimelineDrawing {
    svg: String,
    from: Micros,
    to: Micros,
    lanes: u32,
}

impl TimelineDrawing {
    fn x_of_time(&self, at: Micros) -> f64 {
        let at = at.clamp(self.from, self.to) - self.from;
        #[expect(clippy::cast_precision_loss, reason = "spans of hours, in microseconds")]
        let part = at as f64 / (self.to - self.from).max(1) as f64;
        LEFT + part * (WIDTH - LEFT - 10.0)
    }

    fn y_of_lane(&self) -> f64 {
        f64::from(self.lanes) * LANE
    }

    fn draw_lane(&mut self, name: &str) {
        self.lanes += 1;
        let y = self.y_of_lane();
        let _ = writeln!(
            self.svg,
            "<text x=\"4\" y=\"{:.0}\">{}</text><line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{:.0}\" y2=\"{:.0}\" \
             stroke=\"#eee\"/>",
            y + 14.0,
            escape_text(name),
            y + LANE,
            y + LANE,
        );
    }

    fn draw_bar(&mut self, from: Micros, to: Micros, color: &str, title: &str) {
        let (left, right) = (self.x_of_time(from), self.x_of_time(to));
        let _ = writeln!(
            self.svg,
            "<rect x=\"{left:.1}\" y=\"{:.0}\" width=\"{:.1}\" height=\"12\" fill=\"{color}\"><title>{}</title></rect>",
            self.y_of_lane() + 4.0,
            (right - left).max(1.5),
            escape_text(title),
        );
    }
}

pub(super) fn draw_timeline(observations: &Observations, calls: &[&Call]) -> String {
    let last = observations.revisions.iter().map(|revision| revision.at);
    let to = last.chain([observations.ended]).max().unwrap_or(observations.ended).max(observations.began + 1);
    let mut picture = TimelineDrawing { svg: String::new(), from: observations.began, to, lanes: 0 };
    for tick in 0..=TICKS {
        let at = picture.from + (picture.to - picture.from) * tick / TICKS;
        let x = picture.x_of_time(at);
        let seconds = (at - picture.from) / 1_000_000;
        let _ = writeln!(picture.svg, "<text x=\"{x:.0}\" y=\"14\" fill=\"#666\">{seconds} s</text>");
    }
    draw_leaders(&mut picture, observations);
    for (injection, one) in observations.schedule.injections.iter().enumerate().take(MOST_FAULTS) {
        let times: Vec<Micros> = observations
            .events
            .iter()
            .filter(|(_, event)| matches!(event, Event::Fault { injection: of, .. } if *of == injection))
            .map(|(at, _)| *at)
            .collect();
        let Some(first) = times.first() else { continue };
        let name = format!("{} {}", one.act, one.target);
        picture.draw_lane(&name);
        let skipped = observations.skipped.contains_key(&injection);
        let color = if skipped { "#bbb" } else { "#d9822b" };
        picture.draw_bar(*first, times.last().copied().unwrap_or(*first), color, &name);
    }
    picture.draw_lane("calls that failed");
    for call in calls.iter().filter(|call| call.has_failed()) {
        picture.draw_bar(call.called, call.returned, "#c23030", &call.object);
    }
    picture.draw_lane("writes acknowledged");
    for call in calls.iter().filter(|call| call.written_revision().is_some()) {
        picture.draw_bar(call.returned, call.returned, "#0d8050", &call.object);
    }
    picture.draw_lane("commits of the leader");
    for revision in observations.revisions.iter().filter(|revision| is_commit(revision)) {
        picture.draw_bar(revision.at, revision.at, "#106ba3", &format!("revision {}", revision.revision));
    }
    picture.draw_lane("nodes cordoned");
    for (node, from, until) in cordon_spans(&observations.kubernetes) {
        picture.draw_bar(from, until.unwrap_or(to), "#7157d9", node);
    }
    let height = picture.y_of_lane() + LANE + 8.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n",
        picture.svg
    )
}

fn draw_leaders(picture: &mut TimelineDrawing, observations: &Observations) {
    for instance in 1..=observations.scenario.world.instances {
        picture.draw_lane(&format!("instance={instance} leads"));
        for (index, (at, epoch)) in observations.leading.iter().enumerate() {
            let Some(epoch) = epoch.filter(|epoch| observations.epochs.get(epoch) == Some(&instance)) else {
                continue;
            };
            let until = observations.leading.get(index + 1).map_or(picture.to, |(at, _)| *at);
            if until >= picture.from {
                picture.draw_bar(*at, until, "#4a7fb5", &format!("epoch {epoch}"));
            }
        }
    }
}

fn escape_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
