//! The section `reboot` of the cluster configuration, typed (CKE's `docs/cluster.md`). Reading is lenient, as in Go; a
//! time-out of 0 has a limit, as in [`crate::repair::config`].

use std::time::Duration;

use madako_json::go::RawJson;

pub(crate) use self::stored::StoredReboot;
use crate::kubernetes::selector::{LabelSelector, SelectorError};
use crate::limits::{COMMAND_TIMEOUT, EVICTION_TIMEOUT, HEALTH_CHECK_TIMEOUT, MAX_CONCURRENT_REBOOTS};
use crate::repair::config::{
    RepairCommand, max_attempts, pause_or_default, repair_command, timeout_or_default, to_count,
};

/// The settings of reboots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebootConfig {
    /// The command that reboots a node; without it no reboot begins, and no entry is removed.
    pub reboot: Option<RepairCommand>,
    /// Maximum number of attempts at the reboot command; at least 1.
    pub attempts: u32,
    /// Pause between attempts at the reboot command.
    pub interval: Duration,
    /// The command that prints `true` when a node has booted since a time; without it no reboot begins, and no entry is
    /// removed.
    pub boot_check: Option<RepairCommand>,
    /// Maximum number of workers that drain or reboot at once.
    pub max_concurrent: u32,
    /// Namespaces whose pods are evicted but never deleted, in the notation of the API; empty means all.
    pub protected_namespaces: String,
    /// Maximum number of attempts at an eviction; at least 1.
    pub evict_attempts: u32,
    /// Pause between attempts at an eviction.
    pub evict_interval: Duration,
    /// Time-out for pods to end.
    pub eviction_timeout: Duration,
}

/// The reason why the section is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RebootConfigError {
    /// The section has another shape.
    #[error("the field `reboot` of the cluster configuration cannot be read: {0}")]
    Shape(String),
    /// `protected_namespaces` is not a valid selector.
    #[error("the label selector in the field `reboot.protected_namespaces` is invalid: {0}")]
    Selector(SelectorError),
}

mod stored {
    #![allow(unreachable_pub, reason = "the macro makes public types")]

    use madako_json::go::go_object;
    use madako_json::strict::HasKind as _;
    use madako_json::strict::Kind::OmitEmpty;

    use super::LabelSelector;
    use crate::schema::{COUNT, POSITIVE_COUNT, POSITIVE_SECONDS, SECONDS};

    go_object! {
        #[derive(Debug, Clone, Default)]
        pub struct StoredReboot {
            pub reboot: Vec<String> = "reboot_command";
            pub boot_check: Vec<String> = "boot_check_command";
            pub max_concurrent: Option<i64> = "max_concurrent_reboots", is OmitEmpty(&POSITIVE_COUNT);
            pub eviction_timeout: Option<i64> = "eviction_timeout_seconds", is OmitEmpty(&POSITIVE_SECONDS);
            pub timeout: Option<i64> = "command_timeout_seconds", is OmitEmpty(&SECONDS);
            pub retries: Option<i64> = "command_retries", is COUNT;
            pub interval: Option<i64> = "command_interval", is SECONDS;
            pub evict_retries: Option<i64> = "evict_retries", is COUNT;
            pub evict_interval: Option<i64> = "evict_interval", is SECONDS;
            pub protected_namespaces: Option<LabelSelector> = "protected_namespaces", is OmitEmpty(&LabelSelector::KIND);
            ..drop typed
        }
    }
}

impl RebootConfig {
    /// Reads the stored section.
    ///
    /// # Errors
    /// The section has another shape, or its selector is invalid.
    pub fn read(stored: &RawJson) -> Result<Self, RebootConfigError> {
        let stored: StoredReboot =
            stored.parse().map_err(|error| RebootConfigError::Shape(error.to_string()))?;
        // CKE's nil selector selects every namespace.
        let protected_namespaces = match &stored.protected_namespaces {
            None => String::new(),
            Some(selector) => selector.notation().map_err(RebootConfigError::Selector)?,
        };
        Ok(Self {
            reboot: repair_command(stored.reboot, stored.timeout, COMMAND_TIMEOUT),
            attempts: max_attempts(stored.retries),
            interval: pause_or_default(stored.interval),
            boot_check: repair_command(stored.boot_check, stored.timeout, HEALTH_CHECK_TIMEOUT),
            max_concurrent: stored.max_concurrent.map_or(MAX_CONCURRENT_REBOOTS, to_count),
            protected_namespaces,
            evict_attempts: max_attempts(stored.evict_retries),
            evict_interval: pause_or_default(stored.evict_interval),
            eviction_timeout: timeout_or_default(stored.eviction_timeout, EVICTION_TIMEOUT),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<RebootConfig, RebootConfigError> {
        RebootConfig::read(&RawJson::from_text(json.to_owned()).unwrap())
    }

    #[test]
    fn everything_that_ckes_configuration_can_say_is_understood() {
        let config = read(
            r#"{"reboot_command": ["r", "-f"], "boot_check_command": ["b"], "max_concurrent_reboots": 3,
                "eviction_timeout_seconds": 90, "command_timeout_seconds": 7, "command_retries": 2,
                "command_interval": 5, "evict_retries": 4, "evict_interval": 6,
                "protected_namespaces": {"matchLabels": {"team": "a"}}}"#,
        )
        .unwrap();
        let seconds = Duration::from_secs;
        assert_eq!(config.reboot.as_ref().unwrap().for_machine("10.0.0.1"), ["r", "-f", "10.0.0.1"]);
        assert_eq!(config.boot_check.as_ref().unwrap().timeout, seconds(7));
        assert_eq!((config.attempts, config.interval, config.max_concurrent), (3, seconds(5), 3));
        assert_eq!((config.evict_attempts, config.evict_interval), (5, seconds(6)));
        assert_eq!((config.eviction_timeout, &*config.protected_namespaces), (seconds(90), "team=a"));
    }

    #[test]
    fn absent_reboot_settings_have_ckes_defaults() {
        for absent in ["{}", "null"] {
            let config = read(absent).unwrap();
            assert_eq!((&config.reboot, &config.boot_check), (&None, &None), "{absent}");
            assert_eq!((config.max_concurrent, config.attempts, config.evict_attempts), (1, 1, 1));
            assert_eq!((config.eviction_timeout, &*config.protected_namespaces), (EVICTION_TIMEOUT, ""));
        }
        let unlimited = read(r#"{"reboot_command": ["r"], "command_timeout_seconds": 0}"#).unwrap();
        assert_eq!(unlimited.reboot.unwrap().timeout, COMMAND_TIMEOUT);
    }

    #[test]
    fn a_reboot_section_of_another_shape_is_an_error() {
        assert!(matches!(read("[]"), Err(RebootConfigError::Shape(_))));
        let odd = r#"{"protected_namespaces":{"matchExpressions":[{"key":"a","operator":"Like"}]}}"#;
        assert!(matches!(read(odd), Err(RebootConfigError::Selector(_))));
    }
}
