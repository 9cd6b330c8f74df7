//! Durations in Go's notation (`2s`, `1m30s`, `1.5h`), which CKE's file and flags use.
//!
//! [`parse`] accepts what Go's `time.ParseDuration` accepts, to the nanosecond, but refuses negative durations: no
//! setting has a use for them.

use std::time::Duration;

use crate::limits::MAX_DURATION_TEXT;

/// Units with their length in nanoseconds. Both signs for micro are in use: U+00B5 and U+03BC.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// The text is not a duration. The message names the expected notation and leaves the text out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the text is not a duration: expected one such as 2s, 1m30s or 1.5h")]
pub struct NotADuration;

/// Reads a duration.
///
/// # Errors
/// The text is not a duration, is negative, or exceeds Go's maximum (292 years).
pub fn parse(text: &str) -> Result<Duration, NotADuration> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.is_empty() || text.len() > MAX_DURATION_TEXT {
        return Err(NotADuration);
    }
    let mut rest = text;
    let mut nanoseconds: u128 = 0;
    while !rest.is_empty() {
        let (part, after) = split_first_part(rest)?;
        // Each part is below 2^63 by the check in `one_part`, so the sum of a few cannot overflow.
        nanoseconds += part;
        rest = after;
    }
    let nanoseconds = i64::try_from(nanoseconds).map_err(|_| NotADuration)?;
    Ok(Duration::from_nanos(nanoseconds.unsigned_abs()))
}

/// The nanoseconds of the first number with its unit, and the rest of the text.
fn split_first_part(text: &str) -> Result<(u128, &str), NotADuration> {
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole, rest) = text.split_at(digits(text));
    let (fraction, rest) = match rest.strip_prefix('.') {
        None => ("", rest),
        Some(rest) => rest.split_at(digits(rest)),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(NotADuration);
    }
    let end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
    let (name, after) = rest.split_at(end);
    let unit = UNITS.iter().find(|(unit, _)| *unit == name).ok_or(NotADuration)?.1;

    let number = |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<u128>() };
    let whole = number(whole).map_err(|_| NotADuration)?.checked_mul(unit).ok_or(NotADuration)?;
    // Digits below a nanosecond of an hour add nothing.
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| NotADuration)?);
    let part = whole + number(fraction).map_err(|_| NotADuration)? * unit / scale;
    if part > u128::from(i64::MAX.unsigned_abs()) { Err(NotADuration) } else { Ok((part, after)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_go_are_parsed() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("+0", 0),
            ("2s", 2_000_000_000),
            ("+5s", 5_000_000_000),
            ("1m", 60_000_000_000),
            ("1h", 3_600_000_000_000),
            ("1m30s", 90_000_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("100ms", 100_000_000),
            ("7us", 7_000),
            ("7\u{b5}s", 7_000),
            ("7\u{3bc}s", 7_000),
            ("1h0m0.5s", 3_600_500_000_000),
            ("1s1s", 2_000_000_000),
            ("0.3333333333333333333h", 1_200_000_000_000 - 1),
            ("2562047h47m16.854775807s", i64::MAX.unsigned_abs()),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanoseconds)), "{text:?}");
        }
    }

    #[test]
    fn invalid_and_negative_durations_are_refused() {
        for text in [
            "",
            "+",
            "2",
            "2 s",
            " 2s",
            "2s ",
            "-1s",
            "s",
            ".s",
            "1d",
            "1S",
            "1.2.3s",
            "1e3s",
            "2562047h47m16.854775808s",
            "99999999999999999999999999999999999999999999999999h",
            "\u{b5}s",
            "1s\u{b5}",
        ] {
            assert_eq!(parse(text), Err(NotADuration), "{text:?}");
        }
        assert_eq!(parse(&"1s".repeat(MAX_DURATION_TEXT)), Err(NotADuration));
    }
}
