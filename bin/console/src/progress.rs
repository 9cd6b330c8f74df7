//! The progress of a long command on standard error: a bar on a terminal, elsewhere a line now and then.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use crate::message::print_note;
use crate::stopwatch::Stopwatch;
use crate::wrap::{USUAL_WIDTH, cut_to_width};

/// Time between two pictures of the bar: often enough to look alive.
const PICTURE: Duration = Duration::from_millis(200);
/// Time between two lines where there is no terminal.
const LINE: Duration = Duration::from_secs(2);
/// Most characters of the bar itself, and the fewest of a bar that is of use.
const BAR: u64 = 20;
const LEAST_BAR: u64 = 5;
/// The brackets of the bar, and the space behind it.
const AROUND_BAR: usize = 3;
/// Moves the cursor to the beginning of the line, and erases the line (ECMA-48).
const ERASE: &str = "\r\u{1b}[K";

/// The progress of one command. The bar goes with it.
#[derive(Debug)]
pub struct Progress {
    program: &'static str,
    what: String,
    unit: &'static str,
    began: Stopwatch,
    shown: Stopwatch,
    is_terminal: bool,
    has_bar: bool,
}

impl Progress {
    /// `what` happens, counted in `unit`.
    #[must_use]
    pub fn start(program: &'static str, what: impl Into<String>, unit: &'static str) -> Self {
        let began = Stopwatch::start();
        let is_terminal = io::stderr().is_terminal();
        Self { program, what: what.into(), unit, began, shown: began, is_terminal, has_bar: false }
    }

    /// Shows that so many of all are done, unless the last picture is recent. `None`: the number of all is unknown.
    pub fn advance(&mut self, done: u64, all: Option<u64>) {
        if self.shown.elapsed() < if self.is_terminal { PICTURE } else { LINE } {
            return;
        }
        self.shown = Stopwatch::start();
        let text = format!("{}: {}", self.what, describe_rate(done, all, self.unit, self.began.elapsed()));
        if self.is_terminal {
            self.has_bar = true;
            // A full line would begin another one.
            let line = fit_bar(done, all, &text, terminal_columns().saturating_sub(1));
            // A failure cannot be reported anywhere.
            let _ = write!(io::stderr().lock(), "{ERASE}{line}");
            let _ = io::stderr().lock().flush();
        } else {
            print_note(self.program, text);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.has_bar {
            let _ = write!(io::stderr().lock(), "{ERASE}");
        }
    }
}

/// Columns of the terminal of standard error.
fn terminal_columns() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(USUAL_WIDTH)
}

/// The bar with its text in at most `columns`: the bar is shorter where the text needs the room, and goes before the text is
/// cut.
fn fit_bar(done: u64, all: Option<u64>, text: &str, columns: usize) -> String {
    let room = columns.saturating_sub(text.chars().count() + AROUND_BAR);
    let cells = u64::try_from(room).unwrap_or(BAR).min(BAR);
    match all.filter(|_| cells >= LEAST_BAR) {
        Some(all) => format!("{} {text}", draw_bar(done, all, cells)),
        None => cut_to_width(text, columns),
    }
}

fn draw_bar(done: u64, all: u64, cells: u64) -> String {
    let full = done.min(all).saturating_mul(cells).checked_div(all).unwrap_or(0);
    let part = |sign: &str, length: u64| sign.repeat(usize::try_from(length).unwrap_or(0));
    format!("[{}{}]", part("#", full), part("-", cells - full))
}

/// The finished part, the rate, and the time that is left at that rate.
fn describe_rate(done: u64, all: Option<u64>, unit: &str, elapsed: Duration) -> String {
    let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = done.saturating_mul(1000) / milliseconds;
    let Some(all) = all else { return format!("{done} {unit}, {rate} a second") };
    let percent = done.min(all).saturating_mul(100).checked_div(all).unwrap_or(0);
    let mut text = format!("{done} of {all} {unit} ({percent} %), {rate} a second");
    if done > 0 && done < all {
        let left = (all - done).saturating_mul(milliseconds) / done / 1000;
        text += &format!(", {} left", format_duration_in_words(left));
    }
    text
}

/// Seconds in their two largest units, such as `3d4h`.
#[must_use]
pub fn format_duration_in_words(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, ..) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_its_two_largest_units() {
        let words = [59, 61, 3_660, 90_000, 86_400 * 400].map(format_duration_in_words);
        assert_eq!(words, ["59s", "1m1s", "1h1m", "1d1h", "400d0h"]);
    }

    #[test]
    fn the_time_left_follows_from_the_rate() {
        let text = |done, all, seconds| describe_rate(done, Some(all), "s", Duration::from_secs(seconds));
        assert_eq!(text(1800, 7200, 30), "1800 of 7200 s (25 %), 60 a second, 1m30s left");
        assert_eq!(text(0, 7200, 1), "0 of 7200 s (0 %), 0 a second", "nothing is known yet");
        assert_eq!(text(7200, 7200, 120), "7200 of 7200 s (100 %), 60 a second");
        assert_eq!(
            text(8000, 7200, 0),
            "8000 of 7200 s (100 %), 8000000 a second",
            "more than was announced"
        );
        assert_eq!(text(0, 0, 0), "0 of 0 s (0 %), 0 a second");
        assert_eq!(describe_rate(12, None, "plans", Duration::from_secs(3)), "12 plans, 4 a second");
    }

    #[test]
    fn the_bar_is_as_full_as_the_work_is_done() {
        assert_eq!(draw_bar(1, 4, 20), "[#####---------------]");
        assert_eq!(
            (draw_bar(0, 0, 20), draw_bar(9, 4, 20)),
            (format!("[{}]", "-".repeat(20)), format!("[{}]", "#".repeat(20)))
        );
    }

    #[test]
    fn the_bar_leaves_its_room_to_the_time_that_is_left() {
        let text = "repairs: 1800 of 7200 s (25 %), 60 a second, 1m30s left";
        let at = |columns| fit_bar(1, Some(4), text, columns);
        assert_eq!(at(79), format!("[#####---------------] {text}"));
        assert_eq!(at(66), format!("[##------] {text}"));
        assert_eq!(at(60), text);
        assert_eq!(at(10), "repairs: …");
        assert_eq!(fit_bar(1, None, text, 79), text);
    }
}
