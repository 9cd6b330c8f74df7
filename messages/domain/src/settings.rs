//! Settings of the leader, kept in etcd (`madako/settings`) for commands that plan beside it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The settings that plans depend on. In JSON each is a number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Time between polls of the registry.
    #[serde(rename = "interval_seconds", with = "seconds")]
    pub interval: Duration,
    /// Time to live of the leader's session.
    #[serde(rename = "session_ttl_seconds", with = "seconds")]
    pub session_ttl: Duration,
    /// How long a worker must have been retired before it is removed.
    #[serde(rename = "retire_wait_seconds", with = "seconds")]
    pub retire_wait: Duration,
}

impl Settings {
    /// Those of `madako serve` without flags: CKE's.
    pub const DEFAULT: Self = Self {
        interval: Duration::from_secs(60),
        session_ttl: Duration::from_secs(60),
        retire_wait: Duration::from_secs(300),
    };
}

mod seconds {
    use std::time::Duration;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_json_and_negative_times_are_refused() {
        let text = serde_json::to_string(&Settings::DEFAULT).unwrap();
        assert_eq!(
            text,
            r#"{"interval_seconds":60.0,"session_ttl_seconds":60.0,"retire_wait_seconds":300.0}"#
        );
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), Settings::DEFAULT);
        assert!(serde_json::from_str::<Settings>(&text.replace("300", "-1")).is_err());
        let newer = text.replace('}', r#","later":1}"#);
        assert_eq!(serde_json::from_str::<Settings>(&newer).unwrap(), Settings::DEFAULT);
    }
}
