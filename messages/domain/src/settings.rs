//! The leader's settings in etcd (`madako/settings`), for commands that plan beside the leader or depend on what it does.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::placement::fit::ComparedMetrics;
use crate::repair::hold::HoldSettings;

/// The settings that plans depend on. In JSON each time is a number of seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Interval between polls of the registry.
    #[serde(rename = "interval_seconds", with = "seconds")]
    pub interval: Duration,
    /// Time to live of the leader's lease.
    #[serde(rename = "session_ttl_seconds", with = "seconds")]
    pub session_ttl: Duration,
    /// Time that a worker must have been retired before its removal.
    #[serde(rename = "retire_wait_seconds", with = "seconds")]
    pub retire_wait: Duration,
    /// `None` if a leader of an earlier version stored the settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<RepairSettings>,
    /// `None` if the leader does not decide about placement, or has an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementSettings>,
    /// `None` if a leader of an earlier version stored the settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modes: Option<OperationModes>,
}

/// The modes of the leader's operations on nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationModes {
    /// The setting `operations.mode`: decide and act, or only decide.
    pub operations: OperationMode,
    /// `kubernetes.mode`, which counts only with operations.
    pub kubernetes: OperationMode,
}

/// A mode, with the words of the configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum OperationMode {
    /// Nothing is read or decided.
    Off,
    /// Due operations are shown, and none is carried out.
    Observe,
    /// Due operations are carried out.
    Act,
}

/// The settings of holding repairs back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairSettings {
    /// The condition under which failures in a rack count as one event; `None` never holds.
    pub hold: Option<HoldSettings>,
}

/// The settings of placement, without the TOSCA template for new clusters: the configuration file has that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementSettings {
    /// Interval between metrics rounds.
    #[serde(rename = "metrics_interval_seconds", with = "seconds")]
    pub metrics_interval: Duration,
    /// Maximum age of a usable metric value.
    #[serde(rename = "metric_max_age_seconds", with = "seconds")]
    pub metric_max_age: Duration,
    /// Minimum time of an application on its cluster before it may move.
    #[serde(rename = "reschedule_after_seconds", with = "seconds")]
    pub reschedule_after: Duration,
    /// Weight of the present cluster in a score.
    pub stickiness: f64,
    /// Time to collect changes before a reconcile pass.
    #[serde(rename = "debounce_seconds", with = "seconds")]
    pub debounce: Duration,
    /// The number that metric constraints compare.
    pub metric_constraints: ComparedMetrics,
    /// Percentage of all applications that may move within `reschedule_after`.
    pub max_moves_percent: u64,
    /// Number of applications that may move within `reschedule_after` in any case, whatever `max_moves_percent` says.
    pub max_moves_at_least: u64,
    /// Time that a created cluster without applications stays.
    #[serde(rename = "deletion_retention_seconds", with = "seconds")]
    pub deletion_retention: Duration,
    /// True if an application may only go to clusters of its own namespace.
    pub own_namespace_only: bool,
}

impl Settings {
    /// The settings of `madako serve` without flags, equal to CKE's.
    pub const DEFAULT: Self = Self {
        interval: Duration::from_secs(60),
        session_ttl: Duration::from_secs(60),
        retire_wait: Duration::from_secs(300),
        repair: None,
        placement: None,
        modes: None,
    };
}

pub(crate) mod seconds {
    use std::time::Duration;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_settings_survive_json() {
        let settings = Settings {
            repair: Some(RepairSettings { hold: Some(HoldSettings::default()) }),
            placement: Some(PlacementSettings {
                metrics_interval: Duration::from_secs(15),
                metric_max_age: Duration::from_secs(45),
                reschedule_after: Duration::from_secs(60),
                stickiness: 0.1,
                debounce: Duration::ZERO,
                metric_constraints: ComparedMetrics::Weighted,
                max_moves_percent: 10,
                max_moves_at_least: 3,
                deletion_retention: Duration::from_millis(1500),
                own_namespace_only: true,
            }),
            modes: Some(OperationModes {
                operations: OperationMode::Act,
                kubernetes: OperationMode::Observe,
            }),
            ..Settings::DEFAULT
        };
        let text = serde_json::to_string(&settings).unwrap();
        assert!(text.contains(r#""hold":{"label":"rack","count":3,"within_seconds":600.0}"#), "{text}");
        assert!(text.contains(r#""metric_constraints":"weighted""#), "{text}");
        assert!(text.contains(r#""modes":{"operations":"act","kubernetes":"observe"}"#), "{text}");
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
        let never = Settings { repair: Some(RepairSettings { hold: None }), ..Settings::DEFAULT };
        let text = serde_json::to_string(&never).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), never);
    }

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
