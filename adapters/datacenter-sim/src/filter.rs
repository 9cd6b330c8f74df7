//! Which machines a search chooses: sabakan's meaning of `having` and `notHaving`.
//!
//! A machine is chosen if it meets every field of `having` and no field of `notHaving`. Within a field, a
//! machine meets a list of racks, roles or states if it is one of them. For labels the two differ: `having`
//! wants all of them, `notHaving` is met by any one. A missing or empty field of either means nothing.

use madako_messages::machine::{Machine, MachineLabel, MachineParams};
use time::OffsetDateTime;

/// Whether a search at the time `now` chooses the machine.
#[must_use]
pub fn chooses(
    machine: &Machine,
    having: Option<&MachineParams>,
    not_having: Option<&MachineParams>,
    now: OffsetDateTime,
) -> bool {
    // Whole days, cut towards zero.
    let days = (machine.spec.retire_date - now).whole_days();
    let wanted = having.is_none_or(|params| {
        let labels = params.labels.as_deref().unwrap_or_default();
        labels.iter().all(|label| has_label(machine, label))
            && is_one_of(params.racks.as_deref(), &machine.spec.rack) != Some(false)
            && is_one_of(params.roles.as_deref(), &machine.spec.role) != Some(false)
            && is_one_of(params.states.as_deref(), &machine.status.state) != Some(false)
            && params.min_days_before_retire.is_none_or(|min| days >= min)
    });
    let unwanted = not_having.is_some_and(|params| {
        let labels = params.labels.as_deref().unwrap_or_default();
        labels.iter().any(|label| has_label(machine, label))
            || is_one_of(params.racks.as_deref(), &machine.spec.rack) == Some(true)
            || is_one_of(params.roles.as_deref(), &machine.spec.role) == Some(true)
            || is_one_of(params.states.as_deref(), &machine.status.state) == Some(true)
            || params.min_days_before_retire.is_some_and(|min| days >= min)
    });
    wanted && !unwanted
}

fn has_label(machine: &Machine, label: &MachineLabel) -> bool {
    machine.spec.labels.contains(label)
}

/// `None` if the list says nothing.
fn is_one_of<T: PartialEq>(list: Option<&[T]>, value: &T) -> Option<bool> {
    list.filter(|list| !list.is_empty()).map(|list| list.contains(value))
}
