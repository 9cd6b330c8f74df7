//! Finds the settings with which a running system plans: from flags, from the leader's copy in etcd, or defaults.

use std::fmt;
use std::time::Duration;

use madako_domain::keys;
use madako_domain::settings::Settings;
use madako_domain::state::ClusterState;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    /// The leader of the running system has stored it.
    RunningSystem,
    /// Neither a flag nor a stored value.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("as the flag says"),
            Self::RunningSystem => write!(f, "as the running system has it ({})", keys::SETTINGS),
            Self::Default => write!(f, "the default, since no leader has stored {}", keys::SETTINGS),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) value: Duration,
    pub(crate) origin: Origin,
}

/// # Errors
/// The stored settings cannot be read: the message names the key, the reason and the way out.
pub(crate) fn check_readable(state: &ClusterState) -> Result<(), String> {
    state.fault_of(keys::SETTINGS).map_or(Ok(()), |why| {
        Err(format!(
            "the settings of the running system, stored as {}, cannot be read: {why}; delete the key, and \
             the next leader writes it again",
            keys::SETTINGS
        ))
    })
}

/// The origin of settings without a flag: the leader's copy, or the configuration file.
pub(crate) fn settings_origin(is_kept: bool) -> String {
    match is_kept {
        true => Origin::RunningSystem.to_string(),
        false => {
            format!("as the configuration file has it, since no leader has stored it in {}", keys::SETTINGS)
        }
    }
}

/// The flag's value if given; otherwise the value that `of` selects from the settings.
///
/// # Errors
/// No flag is given, and the stored settings cannot be read; see [`check_readable`].
pub(crate) fn effective_setting(
    flag: Option<Duration>,
    state: &ClusterState,
    of: impl Fn(&Settings) -> Duration,
) -> Result<Setting, String> {
    if let Some(value) = flag {
        return Ok(Setting { value, origin: Origin::Flag });
    }
    check_readable(state)?;
    Ok(match &state.settings {
        Some(stored) => Setting { value: of(&stored.value), origin: Origin::RunningSystem },
        None => Setting { value: of(&Settings::DEFAULT), origin: Origin::Default },
    })
}
