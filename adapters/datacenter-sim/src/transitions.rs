//! State transitions of machines: sabakan's rules (its `docs/lifecycle.md`).

use madako_domain::machine::MachineState;

/// States that a machine may enter from `from`. Staying is always allowed and changes nothing.
#[must_use]
pub fn permitted_states(from: MachineState) -> &'static [MachineState] {
    use MachineState::{Healthy, Retired, Retiring, Unhealthy, Uninitialized, Unreachable, Updating};
    match from {
        Uninitialized => &[Healthy, Retiring],
        Healthy => &[Unhealthy, Unreachable, Updating, Retiring],
        Unhealthy => &[Healthy, Unreachable, Updating, Retiring],
        Unreachable => &[Healthy, Unhealthy, Updating, Retiring],
        Updating => &[Uninitialized],
        Retiring => &[Retired],
        Retired => &[Uninitialized],
    }
}

/// The reason to refuse a new state of a machine. The texts are sabakan's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetStateError {
    #[error("not found")]
    NotFound,
    /// sabakan has no transition between these states.
    #[error("transition from [ {} ] to [ {} ] is forbidden", lowercase_name(*from), lowercase_name(*to))]
    Forbidden { from: MachineState, to: MachineState },
    /// A machine with disk encryption keys cannot be retired.
    #[error("encryption key exists")]
    EncryptionKeyExists,
}

impl SetStateError {
    #[must_use]
    pub fn error_code(&self) -> &'static str {
        match self {
            Self::NotFound => "MACHINE_NOT_FOUND",
            Self::Forbidden { .. } => "INVALID_STATE_TRANSITION",
            Self::EncryptionKeyExists => "ENCRYPTION_KEY_EXISTS",
        }
    }
}

/// Checks a transition by sabakan's rules.
pub(crate) fn check_transition(from: MachineState, to: MachineState) -> Result<(), SetStateError> {
    if from == to || permitted_states(from).contains(&to) {
        Ok(())
    } else {
        Err(SetStateError::Forbidden { from, to })
    }
}

fn lowercase_name(state: MachineState) -> String {
    state.name().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of states, by sabakan's `docs/lifecycle.md`: `+` permitted, `-` forbidden, `=` the same.
    #[test]
    fn state_transitions_equal_those_of_sabakan() {
        #[rustfmt::skip]
        let table = [
            // to:  UNI HEA UNH UNR UPD ING RED
            ("UNINITIALIZED", "= + - - - + -"),
            ("HEALTHY",       "- = + + + + -"),
            ("UNHEALTHY",     "- + = + + + -"),
            ("UNREACHABLE",   "- + + = + + -"),
            ("UPDATING",      "+ - - - = - -"),
            ("RETIRING",      "- - - - - = +"),
            ("RETIRED",       "+ - - - - - ="),
        ];
        let mut pairs = 0;
        for (from, (name, row)) in MachineState::ALL.iter().copied().zip(table) {
            assert_eq!(from.name(), name, "the table has sabakan's order");
            for (to, cell) in MachineState::ALL.iter().copied().zip(row.split(' ')) {
                assert_eq!(check_transition(from, to).is_ok(), cell != "-", "{from:?} to {to:?}");
                assert_eq!(permitted_states(from).contains(&to), cell == "+", "{from:?} to {to:?}");
                pairs += 1;
            }
        }
        assert_eq!(pairs, 49);
    }

    #[test]
    fn forbidden_transition_has_the_error_text_of_sabakan() {
        let error =
            check_transition(MachineState::Healthy, MachineState::Uninitialized).expect_err("forbidden");
        assert_eq!(error.to_string(), "transition from [ healthy ] to [ uninitialized ] is forbidden");
        assert_eq!(error.error_code(), "INVALID_STATE_TRANSITION");
    }
}
