//! The section `repair` of the cluster configuration, typed (CKE's `docs/cluster.md` and `docs/repair.md`).
//!
//! Typed input was checked strictly before it was stored ([`madako_json::strict`]). This module reads leniently, like
//! Go. A time-out of 0, which means "no limit" in CKE, has a limit here: no command may block the queue for ever.

mod stored;

use std::time::Duration;

use crate::kubernetes::selector::SelectorError;
use crate::limits::LONGEST_SETTING;
pub use crate::limits::{
    COMMAND_TIMEOUT, EVICTION_TIMEOUT, HEALTH_CHECK_TIMEOUT, MAX_CONCURRENT_REPAIRS, SUCCESS_TIMEOUT,
};
use crate::repair::RepairQueueEntry;
use madako_json::go::RawJson;

pub(crate) use self::stored::Stored;
use self::stored::{StoredOperation, StoredProcedure, StoredStep};

/// The settings of repairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairConfig {
    /// The operations for each type of machine.
    pub procedures: Vec<RepairProcedure>,
    /// Maximum number of concurrent repairs; 0 starts none.
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

/// The operations for some types of machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairProcedure {
    /// The types of machines.
    pub machine_types: Vec<String>,
    /// The operations, each with its own name.
    pub operations: Vec<RepairOperation>,
}

/// The operation for one kind of failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairOperation {
    /// The name by which queue entries select it.
    pub name: String,
    /// The steps, tried one after another.
    pub steps: Vec<RepairStep>,
    /// The command that prints `true` for a healthy machine; without it no machine ever becomes healthy.
    pub health_check: Option<RepairCommand>,
    /// The command that runs once after the machine became healthy.
    pub success: Option<RepairCommand>,
}

/// A step of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairStep {
    /// The command; without it the step fails.
    pub command: Option<RepairCommand>,
    /// Maximum number of attempts at the command; at least 1.
    pub attempts: u32,
    /// Pause between attempts at the command.
    pub interval: Duration,
    /// True if a node of the cluster is drained first.
    pub need_drain: bool,
    /// Time during which the machine's health is watched after the command.
    pub watch: Duration,
}

/// A command, whose last argument is the machine's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairCommand {
    /// Program and arguments; never empty.
    pub words: Vec<String>,
    /// Time-out of one run; never zero.
    pub timeout: Duration,
}

impl RepairCommand {
    /// Program and arguments for the machine with this address.
    #[must_use]
    pub fn for_machine(&self, address: &str) -> Vec<String> {
        self.words.iter().cloned().chain([address.to_owned()]).collect()
    }
}

/// The reason why the section is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RepairConfigError {
    /// The section has another shape.
    #[error("the field `repair` of the cluster configuration cannot be read: {0}")]
    Shape(String),
    /// `protected_namespaces` is not a valid selector.
    #[error("the label selector in the field `repair.protected_namespaces` is invalid: {0}")]
    Selector(SelectorError),
}

/// A part that an entry needs and the configuration lacks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum MissingConfig {
    /// No procedure covers the machine's type.
    #[error("there is no repair procedure for machines of type {machine_type:?}")]
    Procedure {
        /// Type that the entry names for its machine.
        machine_type: String,
    },
    /// The procedure lacks the operation.
    #[error("the repair procedure for machines of type {machine_type:?} has no operation {operation:?}")]
    Operation {
        /// Type that the entry names for its machine.
        machine_type: String,
        /// Name of the missing operation.
        operation: String,
    },
}

impl RepairConfig {
    /// Reads the stored section.
    ///
    /// # Errors
    /// The section has another shape, or its selector is invalid.
    pub fn read(stored: &RawJson) -> Result<Self, RepairConfigError> {
        let stored: Stored = stored.parse().map_err(|error| RepairConfigError::Shape(error.to_string()))?;
        // CKE treats an absent selector as "every namespace" (docs/repair.md).
        let protected_namespaces = match &stored.protected_namespaces {
            None => String::new(),
            Some(selector) => selector.notation().map_err(RepairConfigError::Selector)?,
        };
        Ok(Self {
            procedures: stored.procedures.into_iter().map(RepairProcedure::from).collect(),
            max_concurrent: stored.max_concurrent.map_or(MAX_CONCURRENT_REPAIRS, to_count),
            protected_namespaces,
            evict_attempts: max_attempts(stored.evict_retries),
            evict_interval: pause_or_default(stored.evict_interval),
            eviction_timeout: timeout_or_default(stored.eviction_timeout, EVICTION_TIMEOUT),
        })
    }

    /// The operation for machines of a type. As in CKE, the first procedure with the type counts.
    ///
    /// # Errors
    /// The configuration lacks the procedure or the operation.
    pub fn find_operation(
        &self,
        machine_type: &str,
        operation: &str,
    ) -> Result<&RepairOperation, MissingConfig> {
        let named =
            |procedure: &&RepairProcedure| procedure.machine_types.iter().any(|known| known == machine_type);
        let procedure = self
            .procedures
            .iter()
            .find(named)
            .ok_or_else(|| MissingConfig::Procedure { machine_type: machine_type.to_owned() })?;
        procedure.operations.iter().find(|known| known.name == operation).ok_or_else(|| {
            MissingConfig::Operation {
                machine_type: machine_type.to_owned(),
                operation: operation.to_owned(),
            }
        })
    }

    /// The operation of an entry.
    ///
    /// # Errors
    /// The configuration lacks the procedure or the operation.
    pub fn operation_for(&self, entry: &RepairQueueEntry) -> Result<&RepairOperation, MissingConfig> {
        self.find_operation(&entry.machine_type, &entry.operation)
    }
}

impl RepairOperation {
    /// The step with this number; `None` beyond the last.
    #[must_use]
    pub fn step(&self, number: u32) -> Option<&RepairStep> {
        self.steps.get(usize::try_from(number).ok()?)
    }
}

impl From<StoredProcedure> for RepairProcedure {
    fn from(stored: StoredProcedure) -> Self {
        Self {
            machine_types: stored.machine_types,
            operations: stored.operations.into_iter().map(RepairOperation::from).collect(),
        }
    }
}

impl From<StoredOperation> for RepairOperation {
    fn from(stored: StoredOperation) -> Self {
        Self {
            name: stored.name,
            steps: stored.steps.into_iter().map(RepairStep::from).collect(),
            health_check: repair_command(stored.health_check, stored.timeout, HEALTH_CHECK_TIMEOUT),
            success: repair_command(stored.success, stored.success_timeout, SUCCESS_TIMEOUT),
        }
    }
}

impl From<StoredStep> for RepairStep {
    fn from(stored: StoredStep) -> Self {
        Self {
            command: repair_command(stored.command, stored.timeout, COMMAND_TIMEOUT),
            attempts: max_attempts(stored.retries),
            interval: pause_or_default(stored.interval),
            need_drain: stored.need_drain,
            watch: pause_or_default(stored.watch),
        }
    }
}

pub(crate) fn repair_command(
    words: Vec<String>,
    seconds: Option<i64>,
    default: Duration,
) -> Option<RepairCommand> {
    (!words.is_empty()).then(|| RepairCommand { words, timeout: timeout_or_default(seconds, default) })
}

pub(crate) fn to_count(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

pub(crate) fn max_attempts(retries: Option<i64>) -> u32 {
    to_count(retries.unwrap_or(0)).saturating_add(1)
}

pub(crate) fn pause_or_default(seconds: Option<i64>) -> Duration {
    Duration::from_secs(u64::try_from(seconds.unwrap_or(0)).unwrap_or(0)).min(LONGEST_SETTING)
}

pub(crate) fn timeout_or_default(seconds: Option<i64>, default: Duration) -> Duration {
    match seconds {
        None => default,
        Some(seconds) if seconds <= 0 => COMMAND_TIMEOUT,
        seconds => pause_or_default(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<RepairConfig, RepairConfigError> {
        RepairConfig::read(&RawJson::from_text(json.to_owned()).unwrap())
    }

    const FULL: &str = r#"{
        "max_concurrent_repairs": 2, "evict_retries": 3, "evict_interval": 5, "eviction_timeout_seconds": 90,
        "protected_namespaces": {"matchLabels": {"team": "a"}},
        "repair_procedures": [{"machine_types": ["t1", "t2"], "repair_operations": [{
            "operation": "unreachable", "health_check_command": ["check"], "command_timeout_seconds": 7,
            "success_command": ["done", "-v"], "success_command_timeout": 8,
            "repair_steps": [
                {"repair_command": ["power", "cycle"], "command_timeout_seconds": 60, "command_retries": 2,
                 "command_interval": 3, "need_drain": true, "watch_seconds": 600},
                {"repair_command": ["reinstall"]}
            ]}]},
            {"machine_types": ["t2"], "repair_operations": [{"operation": "unhealthy"}]}]}"#;

    #[test]
    fn everything_that_ckes_configuration_can_say_is_understood() {
        let config = read(FULL).unwrap();
        assert_eq!((config.max_concurrent, config.evict_attempts), (2, 4));
        assert_eq!(config.evict_interval, Duration::from_secs(5));
        assert_eq!(config.eviction_timeout, Duration::from_secs(90));
        assert_eq!(config.protected_namespaces, "team=a");
        let operation = config.find_operation("t1", "unreachable").unwrap();
        assert_eq!(operation.health_check.as_ref().unwrap().timeout, Duration::from_secs(7));
        let success = operation.success.as_ref().unwrap();
        assert_eq!(success.for_machine("10.0.0.1"), ["done", "-v", "10.0.0.1"]);
        assert_eq!(success.timeout, Duration::from_secs(8));
        let step = operation.step(0).unwrap();
        assert!(step.need_drain);
        assert_eq!((step.attempts, step.interval, step.watch), (3, Duration::from_secs(3), COMMAND_TIMEOUT));
        assert_eq!(step.command.as_ref().unwrap().timeout, Duration::from_secs(60));
        let step = operation.step(1).unwrap();
        assert_eq!((step.attempts, step.watch, step.need_drain), (1, Duration::ZERO, false));
        assert_eq!(
            step.command.as_ref().unwrap().timeout,
            COMMAND_TIMEOUT,
            "a hung command ends at its time limit"
        );
        assert_eq!(operation.step(2), None);
    }

    #[test]
    fn absent_repair_settings_have_ckes_defaults() {
        for absent in ["{}", "null", r#"{"repair_procedures": null, "max_concurrent_repairs": null}"#] {
            let config = read(absent).unwrap();
            assert_eq!((config.max_concurrent, config.evict_attempts), (1, 1), "{absent}");
            assert_eq!(config.eviction_timeout, EVICTION_TIMEOUT);
            assert_eq!(config.protected_namespaces, "", "all are protected");
        }
        assert_eq!(RepairConfig::read(&RawJson::default()), read("{}"));
    }

    #[test]
    fn a_time_out_of_0_means_the_default_limit() {
        let config = read(
            r#"{"repair_procedures":[{"machine_types":["t"],"repair_operations":[{"operation":"o",
                "health_check_command":["c"],"command_timeout_seconds":0,"success_command":["s"],
                "success_command_timeout":0,"repair_steps":[{"repair_command":["r"],"command_timeout_seconds":0,
                "watch_seconds":9223372036854775807,"command_retries":9223372036854775807}]}]}]}"#,
        )
        .unwrap();
        let operation = config.find_operation("t", "o").unwrap();
        for command in [&operation.health_check, &operation.success, &operation.steps[0].command] {
            assert_eq!(command.as_ref().unwrap().timeout, COMMAND_TIMEOUT);
        }
        assert_eq!((operation.steps[0].watch, operation.steps[0].attempts), (LONGEST_SETTING, u32::MAX));
    }

    #[test]
    fn first_procedure_for_a_type_applies_and_a_missing_operation_is_named() {
        let config = read(FULL).unwrap();
        assert_eq!(
            config.find_operation("t3", "unreachable"),
            Err(MissingConfig::Procedure { machine_type: "t3".to_owned() })
        );
        let error = config.find_operation("t2", "unhealthy").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the repair procedure for machines of type \"t2\" has no operation \"unhealthy\""
        );
    }

    #[test]
    fn a_reboot_section_of_another_shape_is_an_error() {
        assert!(matches!(read("[]"), Err(RepairConfigError::Shape(_))));
        assert!(matches!(read(r#"{"evict_retries": "3"}"#), Err(RepairConfigError::Shape(_))));
        let odd = r#"{"protected_namespaces":{"matchExpressions":[{"key":"a","operator":"Like"}]}}"#;
        assert!(matches!(read(odd), Err(RepairConfigError::Selector(_))));
    }
}
