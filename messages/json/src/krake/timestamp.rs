//! Points in time in Krake's notation, which keep their original text.
//!
//! Guarantees: every text that Krake's reader accepts is accepted: ISO 8601 with a space or `T`, fields of one or two
//! digits, with or without seconds, fraction (digits after the sixth are cut) and offset (without one it is UTC). A
//! read text is written back byte for byte; times of this service are UTC with microseconds and `+00:00`.

use std::cmp::Ordering;

use serde::ser::{Serialize, Serializer};
use serde_json::value::RawValue;
use time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time, UtcOffset};

use super::reader::{Field, Reader};
use super::schema::Shape;
use crate::limits::MAX_TIMESTAMP_TEXT;
use crate::strict::walk::Path;

/// A point in time. Two are equal if they are the same instant, in whatever notation.
#[derive(Debug, Clone)]
pub struct Timestamp {
    instant: OffsetDateTime,
    text: Box<str>,
}

impl Timestamp {
    /// An instant in the notation of this service: UTC, cut to microseconds.
    #[must_use]
    pub fn new(instant: OffsetDateTime) -> Self {
        let utc = instant.to_offset(UtcOffset::UTC);
        let instant = utc.replace_microsecond(utc.microsecond()).unwrap_or(utc);
        let text = format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}+00:00",
            instant.year(),
            u8::from(instant.month()),
            instant.day(),
            instant.hour(),
            instant.minute(),
            instant.second(),
            instant.microsecond()
        );
        Self { instant, text: text.into() }
    }

    /// Reads a text; `None` if it is not a valid time.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let instant = parse_instant(text)?;
        Some(Self { instant, text: text.into() })
    }

    /// The instant, in UTC.
    #[must_use]
    pub fn instant(&self) -> OffsetDateTime {
        self.instant
    }

    /// The text as it was read, so that it is written back unchanged.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The value of a field whose time is not known yet.
    pub fn placeholder() -> Self {
        Self::new(OffsetDateTime::UNIX_EPOCH)
    }
}

impl PartialEq for Timestamp {
    fn eq(&self, other: &Self) -> bool {
        self.instant == other.instant
    }
}

impl Eq for Timestamp {}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> Ordering {
        self.instant.cmp(&other.instant)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl Field for Timestamp {
    const SHAPE: Shape = Shape::Time;

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        let text: Option<String> = serde_json::from_str(raw.get()).ok();
        let value = text.and_then(|text| Self::parse(&text));
        if value.is_none() {
            reader.add_problem(path, raw, Self::SHAPE.expected());
        }
        value
    }
}

/// The unread part of a text.
struct UnreadText<'a>(&'a str);

impl UnreadText<'_> {
    /// Takes between `least` and `most` digits.
    fn take_digits(&mut self, least: usize, most: usize) -> Option<u32> {
        let count = self.0.bytes().take(most).take_while(u8::is_ascii_digit).count();
        if count < least {
            return None;
        }
        let (digits, rest) = self.0.split_at(count);
        self.0 = rest;
        digits.parse().ok()
    }

    /// Takes a character if it is in the list.
    fn take_character(&mut self, characters: &[char]) -> Option<char> {
        let rest = self.0.strip_prefix(characters)?;
        let taken = self.0.chars().next();
        self.0 = rest;
        taken
    }
}

fn parse_instant(text: &str) -> Option<OffsetDateTime> {
    if text.len() > MAX_TIMESTAMP_TEXT {
        return None;
    }
    let mut rest = UnreadText(text);
    let year = i32::try_from(rest.take_digits(4, 4)?).ok()?;
    rest.take_character(&['-'])?;
    let month = to_small_number(rest.take_digits(1, 2)?)?;
    rest.take_character(&['-'])?;
    let day = to_small_number(rest.take_digits(1, 2)?)?;
    rest.take_character(&['T', ' '])?;
    let hour = to_small_number(rest.take_digits(1, 2)?)?;
    rest.take_character(&[':'])?;
    let minute = to_small_number(rest.take_digits(1, 2)?)?;
    let (mut second, mut microsecond) = (0, 0);
    if rest.take_character(&[':']).is_some() {
        second = to_small_number(rest.take_digits(1, 2)?)?;
        if rest.take_character(&['.']).is_some() {
            microsecond = parse_fraction(&mut rest)?;
        }
    }
    let offset = parse_offset(&mut rest)?;
    // Python's years begin at 1.
    if !rest.0.is_empty() || year == 0 {
        return None;
    }
    let date = Date::from_calendar_date(year, Month::try_from(month).ok()?, day).ok()?;
    let time = Time::from_hms_micro(hour, minute, second, microsecond).ok()?;
    PrimitiveDateTime::new(date, time).assume_offset(offset).checked_to_offset(UtcOffset::UTC)
}

fn to_small_number(number: u32) -> Option<u8> {
    u8::try_from(number).ok()
}

/// Microseconds from one to twelve digits; digits after the sixth are cut.
fn parse_fraction(rest: &mut UnreadText<'_>) -> Option<u32> {
    let before = rest.0.len();
    let mut value = rest.take_digits(1, 6)?;
    for _ in before - rest.0.len()..6 {
        value *= 10;
    }
    rest.take_digits(0, 6).or(Some(0))?;
    Some(value)
}

/// `Z`, or hours with optional minutes; nothing means UTC.
fn parse_offset(rest: &mut UnreadText<'_>) -> Option<UtcOffset> {
    match rest.take_character(&['Z', '+', '-']) {
        None | Some('Z') => Some(UtcOffset::UTC),
        Some(sign) => {
            let hours = i32::try_from(rest.take_digits(2, 2)?).ok()?;
            let colon = rest.take_character(&[':']).is_some();
            let minutes =
                if colon || !rest.0.is_empty() { i32::try_from(rest.take_digits(2, 2)?).ok()? } else { 0 };
            let seconds = (hours * 60 + minutes) * 60;
            // Python's offsets are shorter than a day.
            let valid = seconds < 24 * 3600;
            let seconds = if sign == '-' { -seconds } else { seconds };
            if valid { UtcOffset::from_whole_seconds(seconds).ok() } else { None }
        }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn timestamps_of_krake_are_parsed_and_written_back_unchanged() {
        for (text, instant) in [
            ("2026-01-31T12:00:00.123456+00:00", datetime!(2026-01-31 12:00:00.123456 UTC)),
            ("2026-01-31T12:00:00+00:00", datetime!(2026-01-31 12:00 UTC)),
            ("2026-01-31T12:00:00.12", datetime!(2026-01-31 12:00:00.12 UTC)),
            ("2026-01-31T12:00:00.123456789Z", datetime!(2026-01-31 12:00:00.123456 UTC)),
            ("2026-01-31 12:00:00", datetime!(2026-01-31 12:00 UTC)),
            ("2026-1-3T1:2", datetime!(2026-01-03 01:02 UTC)),
            ("2026-01-31T12:00:00+02:30", datetime!(2026-01-31 09:30 UTC)),
            ("2026-01-31T12:00:00-0800", datetime!(2026-01-31 20:00 UTC)),
            ("2026-01-31T12:00:00+09", datetime!(2026-01-31 03:00 UTC)),
        ] {
            let read = Timestamp::parse(text).unwrap();
            assert_eq!(read.instant(), instant, "{text}");
            assert_eq!(serde_json::to_value(&read).unwrap(), text);
        }
    }

    #[test]
    fn malformed_timestamps_are_refused() {
        for text in [
            "",
            "yesterday",
            "2026-01-31",
            "2026-01-31T",
            "2026-01-31T12",
            "2026-13-01T00:00:00",
            "2026-02-30T00:00:00",
            "2026-01-31T24:00:00",
            "2026-01-31T12:60:00",
            "2026-01-31T12:00:60",
            "0000-01-01T00:00:00",
            "12026-01-01T00:00:00",
            "2026-01-31T12:00:00.",
            "2026-01-31T12:00:00+2",
            "2026-01-31T12:00:00+24:00",
            "2026-01-31T12:00:00+02:3",
            "2026-01-31T12:00:00Z ",
            " 2026-01-31T12:00:00Z",
            "2026-01-31t12:00:00z",
            "2026-01-31T12:00:00.1234567890123",
            "\u{662}026-01-31T12:00:00Z",
        ] {
            assert!(Timestamp::parse(text).is_none(), "{text}");
        }
        // An offset may move the first and last times out of the valid range.
        for text in ["0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00"] {
            let _ = Timestamp::parse(text);
        }
    }

    #[test]
    fn own_timestamps_are_utc_with_microseconds() {
        for (instant, text) in [
            (datetime!(2026-01-31 12:00:00.123456789 +9), "2026-01-31T03:00:00.123456+00:00"),
            (datetime!(2026-01-31 12:00 UTC), "2026-01-31T12:00:00.000000+00:00"),
        ] {
            let ours = Timestamp::new(instant);
            assert_eq!(ours.text(), text);
            assert_eq!(Timestamp::parse(text), Some(ours));
        }
    }

    #[test]
    fn instants_are_compared_not_texts() {
        let parse = |text| Timestamp::parse(text).unwrap();
        assert_eq!(parse("2026-01-31T12:00:00Z"), parse("2026-01-31T13:00+01:00"));
        assert!(parse("2026-01-31T12:00:00-01:00") > parse("2026-01-31T12:30:00Z"));
    }
}
