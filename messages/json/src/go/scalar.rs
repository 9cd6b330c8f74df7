//! Go's notation of single values: integers as strings, times in RFC 3339 with nanoseconds.

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};
use time::{Date, Month, OffsetDateTime};

/// Go's zero time, 0001-01-01T00:00:00Z. CKE writes it for "never".
pub const ZERO_TIME: OffsetDateTime = match Date::from_calendar_date(1, Month::January, 1) {
    Ok(date) => date.midnight().assume_utc(),
    Err(_) => panic!("the first day of year 1 exists"),
};

/// An integer that is a decimal string in JSON (Go's `,string`).
#[derive(Default)]
pub struct Decimal(i64);

impl From<i64> for Decimal {
    fn from(value: i64) -> Self {
        Self(value)
    }
}

impl From<Decimal> for i64 {
    fn from(value: Decimal) -> Self {
        value.0
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map(Self)
            .map_err(|_| D::Error::custom(format_args!("{text:?} is not a decimal integer")))
    }
}

/// A time in RFC 3339 as Go writes it. It keeps its original offset.
pub struct Time(OffsetDateTime);

impl Default for Time {
    fn default() -> Self {
        Self(ZERO_TIME)
    }
}

impl From<OffsetDateTime> for Time {
    fn from(value: OffsetDateTime) -> Self {
        Self(value)
    }
}

impl From<Time> for OffsetDateTime {
    fn from(value: Time) -> Self {
        value.0
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        time::serde::rfc3339::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        time::serde::rfc3339::deserialize(deserializer).map(Self)
    }
}

/// A time or `None` for "never", which Go writes as its zero time.
#[derive(Default)]
pub struct OptionalTime(Option<OffsetDateTime>);

impl From<Option<OffsetDateTime>> for OptionalTime {
    fn from(value: Option<OffsetDateTime>) -> Self {
        Self(value)
    }
}

impl From<OptionalTime> for Option<OffsetDateTime> {
    fn from(value: OptionalTime) -> Self {
        value.0
    }
}

impl Serialize for OptionalTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Time(self.0.unwrap_or(ZERO_TIME)).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for OptionalTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let time = Time::deserialize(deserializer)?.0;
        Ok(Self((time != ZERO_TIME).then_some(time)))
    }
}

/// True if Go's `omitempty` leaves the count out.
pub fn is_zero(count: &u32) -> bool {
    *count == 0
}
