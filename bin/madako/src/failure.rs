//! Reports the failure of a command: one message on standard error, and an exit code.

use std::io;

use madako_console::{describe_error, is_closed_pipe};
use madako_domain::store::{StoreError, StoreErrorKind};
use madako_json::input::InputError;
use madako_supervisor::config::ConfigError;

/// The exit codes of every command, for the help and the reference.
pub(crate) const EXIT_CODES: [(u8, &str); 6] = [
    (0, "done, or nothing to do"),
    (
        1,
        "failed or refused: the store, the registry, the API or a node is unreachable or refuses the request, or the object \
         does not exist; work is left: a difference, a blocker, or a part that is not good (kube plan, kube status, ops diff, \
         resource status, resource diff, reboot-queue explain, reboot-queue forecast, images list); an invariant was violated \
         (demo, rehearse), or the system did not become calm (rehearse)",
    ),
    (
        2,
        "bad input: the command line, the configuration file or an input file is not valid, or names a machine, a node or a \
         setting that does not suit the command",
    ),
    (
        3,
        "a plan cannot be made (plan, what-if); the running system could not be copied, or a fault could not be injected \
         (rehearse)",
    ),
    (4, "there is no status (status)"),
    (5, "something needs attention (status --check, doctor)"),
];

#[derive(Debug)]
pub(crate) enum Failure {
    /// Something outside of the program failed or is missing.
    Failed(anyhow::Error),
    /// An argument or an input file is invalid. Nothing was done.
    BadInput(anyhow::Error),
    /// A plan is impossible; standard output has the reason.
    NoPlan,
    /// An input of a rehearsal could not be read, or not all of it could be played.
    NotRehearsed(anyhow::Error),
    /// The leader has left no status (ckecli's exit code).
    NoStatus,
    /// Something needs the operator's attention; standard output names it.
    NeedsAttention,
    /// A program that the command ran ended with this code, and printed the reason.
    Program(u8),
    /// Work is left, such as differences; standard output has it.
    Different,
}

impl Failure {
    pub(crate) fn failed(message: impl std::fmt::Display) -> Self {
        Self::Failed(anyhow::anyhow!("{message}"))
    }

    pub(crate) fn bad_input(message: impl std::fmt::Display) -> Self {
        Self::BadInput(anyhow::anyhow!("{message}"))
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            // A closed pipe means that its reader wants no more output.
            Self::Failed(error) if is_closed_pipe(error) => 0,
            Self::Failed(_) | Self::Different => 1,
            Self::BadInput(_) => 2,
            Self::NoPlan | Self::NotRehearsed(_) => 3,
            Self::NoStatus => 4,
            Self::NeedsAttention => 5,
            Self::Program(code) => *code,
        }
    }

    /// The message for standard error, if there is one.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Self::Failed(error) if is_closed_pipe(error) => None,
            Self::Failed(error) | Self::BadInput(error) | Self::NotRehearsed(error) => {
                Some(describe_error(error))
            }
            Self::NoPlan | Self::NeedsAttention | Self::Program(_) | Self::Different => None,
            Self::NoStatus => Some("no status".to_owned()),
        }
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Self {
        Self::BadInput(error.into())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Invalid(error) => Self::BadInput(error.into()),
            other => Self::BadInput(other.into()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        // A closed pipe during JSON output is a closed pipe, too.
        if error.is_io() { Self::Failed(io::Error::from(error).into()) } else { Self::Failed(error.into()) }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let hint = match error.kind {
            StoreErrorKind::Unavailable | StoreErrorKind::Deadline => {
                "; check the address in the configuration file and that the store runs: madako doctor checks both"
            }
            StoreErrorKind::Denied => "; the configuration file needs a user with this permission",
            _ => "",
        };
        Self::failed(format_args!("{error}{hint}"))
    }
}
