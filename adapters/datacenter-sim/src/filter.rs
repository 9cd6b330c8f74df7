//! Evaluates the search conditions `having` and `notHaving` of a registry query by sabakan's rules.
//!
//! A search returns a machine if it matches every field of `having` and no field of `notHaving`. A list of racks, roles
//! or states matches a machine that has one of its values. For labels the two differ: `having` requires all labels,
//! `notHaving` matches if any one is present. A missing or empty field is not a condition.

use madako_domain::machine::{Machine, MachineLabel, MachineParams};
use time::OffsetDateTime;

/// True if a search at time `now` returns the machine.
#[must_use]
pub fn matches_search(
    machine: &Machine,
    having: Option<&MachineParams>,
    not_having: Option<&MachineParams>,
    now: OffsetDateTime,
) -> bool {
    // Whole days, truncated towards zero.
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

/// `None` if the list is missing or empty, that is not a condition.
fn is_one_of<T: PartialEq>(list: Option<&[T]>, value: &T) -> Option<bool> {
    list.filter(|list| !list.is_empty()).map(|list| list.contains(value))
}

#[cfg(test)]
mod tests {
    use madako_domain::machine::{Bmc, MachineSpec, MachineState, MachineStatus};
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2018-11-26 00:00 UTC);

    fn params(change: impl FnOnce(&mut MachineParams)) -> MachineParams {
        let mut params = MachineParams::default();
        change(&mut params);
        params
    }

    fn labels(pairs: &[(&str, &str)]) -> Vec<MachineLabel> {
        pairs
            .iter()
            .map(|(name, value)| MachineLabel { name: (*name).into(), value: (*value).into() })
            .collect()
    }

    fn machine() -> Machine {
        Machine {
            spec: MachineSpec {
                serial: "s".to_owned(),
                labels: labels(&[("a", "1"), ("b", "2")]),
                rack: 2,
                index_in_rack: 4,
                role: "worker".to_owned(),
                ipv4: Vec::new(),
                register_date: NOW,
                retire_date: NOW + time::Duration::days(60),
                bmc: Bmc::default(),
            },
            status: MachineStatus { state: MachineState::Healthy, duration: 0.0 },
        }
    }

    /// Each row: the condition, its result as `having`, its result as `notHaving`. The expectations come from the
    /// answers of a real sabakan to the same requests.
    #[test]
    fn each_condition_has_the_meaning_of_sabakan() {
        use MachineState::{Healthy, Uninitialized};
        let rows: Vec<(&str, MachineParams, bool, bool)> = vec![
            ("nothing", MachineParams::default(), true, true),
            ("no labels", params(|p| p.labels = Some(vec![])), true, true),
            ("a label", params(|p| p.labels = Some(labels(&[("a", "1")]))), true, false),
            ("another value", params(|p| p.labels = Some(labels(&[("a", "2")]))), false, true),
            ("another label", params(|p| p.labels = Some(labels(&[("c", "1")]))), false, true),
            ("both labels", params(|p| p.labels = Some(labels(&[("a", "1"), ("b", "2")]))), true, false),
            (
                "one label of two",
                params(|p| p.labels = Some(labels(&[("a", "1"), ("c", "3")]))),
                false,
                false,
            ),
            ("no racks", params(|p| p.racks = Some(vec![])), true, true),
            ("its rack", params(|p| p.racks = Some(vec![0, 2])), true, false),
            ("other racks", params(|p| p.racks = Some(vec![0, 1])), false, true),
            ("no roles", params(|p| p.roles = Some(vec![])), true, true),
            ("its role", params(|p| p.roles = Some(vec!["boot".into(), "worker".into()])), true, false),
            ("another role", params(|p| p.roles = Some(vec!["boot".into()])), false, true),
            ("no states", params(|p| p.states = Some(vec![])), true, true),
            ("its state", params(|p| p.states = Some(vec![Uninitialized, Healthy])), true, false),
            ("another state", params(|p| p.states = Some(vec![Uninitialized])), false, true),
            ("fewer days", params(|p| p.min_days_before_retire = Some(50)), true, false),
            ("as many days", params(|p| p.min_days_before_retire = Some(60)), true, false),
            ("more days", params(|p| p.min_days_before_retire = Some(61)), false, true),
            // Fields of `having` are joined by "and", fields of `notHaving` by "or".
            (
                "its rack and another role",
                params(|p| {
                    p.racks = Some(vec![2]);
                    p.roles = Some(vec!["boot".into()]);
                }),
                false,
                false,
            ),
        ];
        for (name, params, having, not_having) in rows {
            assert_eq!(matches_search(&machine(), Some(&params), None, NOW), having, "having {name}");
            assert_eq!(matches_search(&machine(), None, Some(&params), NOW), not_having, "notHaving {name}");
        }
        assert!(matches_search(&machine(), None, None, NOW));
    }

    #[test]
    fn days_before_retirement_are_whole_and_cut_towards_zero() {
        let at_least = |days| params(|p| p.min_days_before_retire = Some(days));
        let chosen = |days, now| matches_search(&machine(), Some(&at_least(days)), None, now);
        let almost = NOW + time::Duration::seconds(1);
        assert!(!chosen(60, almost) && chosen(59, almost), "59 days and some hours are 59");
        let after = NOW + time::Duration::days(60) + time::Duration::hours(23);
        assert!(chosen(0, after), "23 hours too late are 0 days");
        let day_after = after + time::Duration::hours(1);
        assert!(!chosen(0, day_after) && chosen(-1, day_after));
    }

    #[test]
    fn a_machine_must_meet_having_and_must_not_meet_not_having() {
        let having = params(|p| p.roles = Some(vec!["worker".into()]));
        let not_having = params(|p| p.states = Some(vec![MachineState::Healthy]));
        assert!(matches_search(&machine(), Some(&having), None, NOW));
        assert!(!matches_search(&machine(), Some(&having), Some(&not_having), NOW));
    }
}
