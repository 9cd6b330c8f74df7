//! Durations in the scenario language: `30s`, `2h`, `30d`, or several parts, as in `1d12h` and `1m30.5s`.

use std::fmt::{self, Write as _};
use std::ops::Add;
use std::time::Duration;

use madako_json::duration;
use serde::{Serialize, Serializer};

/// The form of a duration, for messages.
pub const WRITTEN: &str = "a duration such as 30s, 2h or 30d";

const DAY: u64 = 24 * 3600;

/// A duration in whole milliseconds, the resolution of all times of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Duration);

impl Span {
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    #[must_use]
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    #[must_use]
    pub const fn from_days(days: u64) -> Self {
        Self::from_seconds(days * DAY)
    }

    /// Reads days, if any, then a duration of Go. `None` if the text has another form, or is finer than a millisecond.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (days, rest) = match text.split_once('d') {
            None => (0, text),
            Some((days, rest)) if days.bytes().all(|digit| digit.is_ascii_digit()) => {
                (days.parse::<u64>().ok()?.checked_mul(DAY)?, rest)
            }
            Some(_) => return None,
        };
        let below = match rest {
            "" if text.ends_with('d') => Duration::ZERO,
            // Go accepts a bare 0 and a sign; here every amount has its unit.
            "0" => return None,
            rest if rest.starts_with('+') => return None,
            rest => duration::parse(rest).ok()?,
        };
        let whole = Duration::from_secs(days).checked_add(below)?;
        whole.subsec_nanos().is_multiple_of(1_000_000).then_some(Self(whole))
    }

    /// [`Span::parse`] for an option of a command line.
    ///
    /// # Errors
    /// The text is not a duration; the message describes the expected form.
    pub fn parse_argument(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| format!("expected {WRITTEN}"))
    }

    #[must_use]
    pub const fn duration(self) -> Duration {
        self.0
    }

    /// Whole milliseconds. A parsed span is far below the maximum.
    pub(crate) fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Saturates at the maximum.
impl Add for Span {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0.as_secs(), self.0.subsec_millis());
        let mut text = String::new();
        for (amount, unit) in [(seconds / DAY, 'd'), (seconds % DAY / 3600, 'h'), (seconds % 3600 / 60, 'm')]
        {
            if amount > 0 {
                write!(text, "{amount}{unit}")?;
            }
        }
        match (seconds % 60, millis) {
            (0, 0) if !text.is_empty() => {}
            (seconds, 0) => write!(text, "{seconds}s")?,
            (seconds, millis) => {
                let fraction = format!("{millis:03}");
                write!(text, "{seconds}.{}s", fraction.trim_end_matches('0'))?;
            }
        }
        f.pad(&text)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::Span;

    #[test]
    fn spans_are_read_and_printed() {
        for (text, millis, printed) in [
            ("30s", 30_000, "30s"),
            ("2h", 7_200_000, "2h"),
            ("30d", 2_592_000_000, "30d"),
            ("1d12h", 129_600_000, "1d12h"),
            ("36h", 129_600_000, "1d12h"),
            ("1m30.5s", 90_500, "1m30.5s"),
            ("90s", 90_000, "1m30s"),
            ("250ms", 250, "0.25s"),
            ("0s", 0, "0s"),
            ("0d", 0, "0s"),
            ("0.5h", 1_800_000, "30m"),
        ] {
            let span = Span::parse(text).unwrap_or_else(|| panic!("{text:?} is not read"));
            assert_eq!(span, Span::from_millis(millis), "{text:?}");
            assert_eq!(span.to_string(), printed, "{text:?}");
            assert_eq!(Span::parse(printed), Some(span), "{printed:?}");
        }
    }

    #[test]
    fn malformed_spans_are_refused() {
        let texts = [
            "",
            "0",
            "+0",
            "+0s",
            "30",
            "+30s",
            "-30s",
            "d",
            "1.5d",
            "1d1d",
            "12h1d",
            "1h 30m",
            " 30s",
            "1us",
            "0.1ms",
            "30 d",
            "213503982334602d",
            "99999999999999999999d",
            "1w",
            "d12h",
        ];
        for text in texts {
            assert_eq!(Span::parse(text), None, "{text:?}");
        }
    }
}
