//! The obstacles that the leader notes, each with the time of its start.
//!
//! Guarantees: unchanged inputs give the noted obstacles, so that nothing is written (invariant I12).

use madako_domain::obstacle::{
    AUTO_REPAIR_DISABLED, INTEGRATION_DISABLED, NO_PLAN, Obstacle, Obstacles, REGISTRY_SILENT, REMOVAL_GUARD,
    REPAIR_QUEUE_DISABLED, UNUSABLE_VALUE,
};
use madako_domain::plan::PlanError;
use madako_domain::state::ClusterState;
use madako_protocol::event::PlanBlockedBy;
use time::OffsetDateTime;

/// Result of evaluating a plan's inputs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PlanningResult<'a> {
    Blocked {
        why: &'a PlanBlockedBy,
        /// Start of the registry's silence.
        silent: Option<OffsetDateTime>,
    },
    /// There is a plan, possibly an empty one.
    Planned,
    Failed(&'a PlanError),
}

/// All obstacles of a state. Noted ones keep their time; new ones begin now.
pub(crate) fn obstacles_to_planning(
    state: &ClusterState,
    result: PlanningResult<'_>,
    now: OffsetDateTime,
) -> Obstacles {
    let none = Obstacles::new();
    let noted = state.obstacles.as_ref().map_or(&none, |noted| &noted.value);
    let mut found = Obstacles::new();
    let mut add = |rule: &str, since: OffsetDateTime, why: &str| {
        let since = noted.get(rule).map_or(since, |noted| noted.since);
        found.insert(rule.to_owned(), Obstacle::new(since, why));
    };
    match result {
        PlanningResult::Planned => {}
        PlanningResult::Failed(error) => add(NO_PLAN, now, &error.to_string()),
        PlanningResult::Blocked { why: PlanBlockedBy::Disabled, .. } => add(INTEGRATION_DISABLED, now, ""),
        PlanningResult::Blocked { why: PlanBlockedBy::Unusable { key, why }, .. } => {
            add(UNUSABLE_VALUE, now, &format!("{key}: {why}"));
        }
        PlanningResult::Blocked { why: PlanBlockedBy::Held(_), .. } => add(REMOVAL_GUARD, now, ""),
        // Missing input of the operator is not an obstacle: planning was never requested.
        PlanningResult::Blocked {
            why: PlanBlockedBy::NoState | PlanBlockedBy::NoTemplate | PlanBlockedBy::NoUrl,
            ..
        } => {}
        PlanningResult::Blocked { silent: Some(since), .. } => add(REGISTRY_SILENT, since, ""),
        // The registry may still answer: until then the noted obstacles stay.
        PlanningResult::Blocked { silent: None, .. } => {
            for rule in [NO_PLAN, REGISTRY_SILENT, REMOVAL_GUARD] {
                if let Some(Obstacle { since, why }) = noted.get(rule) {
                    add(rule, *since, why);
                }
            }
        }
    }
    for (is_so, rule) in
        [(state.repair.disabled, REPAIR_QUEUE_DISABLED), (state.auto_repair_disabled, AUTO_REPAIR_DISABLED)]
    {
        if is_so {
            add(rule, now, "");
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use madako_domain::guard::GuardState;
    use madako_domain::plan::PlanErrorKind;
    use madako_domain::state::RevisedValue;
    use time::macros::datetime;

    use super::*;

    const THEN: OffsetDateTime = datetime!(2026-01-02 03:04:05 UTC);
    const NOW: OffsetDateTime = datetime!(2026-01-02 04:00:00.5 UTC);

    fn noted(value: &Obstacles) -> ClusterState {
        let obstacles = Some(RevisedValue { value: value.clone(), revision: 7 });
        ClusterState { obstacles, ..ClusterState::default() }
    }

    fn blocked(why: &PlanBlockedBy) -> PlanningResult<'_> {
        PlanningResult::Blocked { why, silent: None }
    }

    fn rules(found: &Obstacles) -> Vec<(&str, OffsetDateTime)> {
        found.iter().map(|(rule, obstacle)| (rule.as_str(), obstacle.since)).collect()
    }

    #[test]
    fn an_obstacle_keeps_its_time_until_it_ends() {
        let kind = PlanErrorKind::NotAvailable;
        let error = PlanError { kind, message: "too few machines".to_owned(), reasons: Vec::new() };
        let first = obstacles_to_planning(&ClusterState::default(), PlanningResult::Failed(&error), THEN);
        assert_eq!(rules(&first), [(NO_PLAN, THEN)]);
        assert!(first[NO_PLAN].why.contains("too few"), "{first:?}");
        assert_eq!(
            obstacles_to_planning(&noted(&first), PlanningResult::Failed(&error), NOW),
            first,
            "nothing new is written"
        );
        assert_eq!(obstacles_to_planning(&noted(&first), PlanningResult::Planned, NOW), Obstacles::new());
    }

    #[test]
    fn each_reason_that_stops_plans_is_an_obstacle_unless_nothing_is_requested() {
        let guard = GuardState::default();
        let unusable = PlanBlockedBy::Unusable { key: "constraints".into(), why: "not readable".into() };
        for (why, rule) in [
            (PlanBlockedBy::Disabled, Some(INTEGRATION_DISABLED)),
            (PlanBlockedBy::Held(guard), Some(REMOVAL_GUARD)),
            (unusable, Some(UNUSABLE_VALUE)),
            (PlanBlockedBy::NoTemplate, None),
            (PlanBlockedBy::NoUrl, None),
        ] {
            let found = obstacles_to_planning(&ClusterState::default(), blocked(&why), THEN);
            let expected: Vec<_> = rule.map(|rule| (rule, THEN)).into_iter().collect();
            assert_eq!(rules(&found), expected, "{why:?}");
        }
    }

    #[test]
    fn a_registry_is_silent_only_after_its_time_and_since_its_last_answer() {
        let stale = PlanBlockedBy::Stale { age: Duration::from_secs(200) };
        let state = ClusterState::default();
        assert_eq!(obstacles_to_planning(&state, blocked(&stale), NOW), Obstacles::new());
        let found =
            obstacles_to_planning(&state, PlanningResult::Blocked { why: &stale, silent: Some(THEN) }, NOW);
        assert_eq!(rules(&found), [(REGISTRY_SILENT, THEN)]);
        // A new leader has not asked for long enough to clear an obstacle.
        let begun = noted(&found);
        assert_eq!(obstacles_to_planning(&begun, blocked(&PlanBlockedBy::NoObservation), NOW), found);
        let since = PlanningResult::Blocked { why: &PlanBlockedBy::NoObservation, silent: Some(NOW) };
        assert_eq!(rules(&obstacles_to_planning(&begun, since, NOW)), [(REGISTRY_SILENT, THEN)]);
    }

    #[test]
    fn disabled_repairs_and_stopped_plans_are_separate_obstacles() {
        let state = ClusterState { auto_repair_disabled: true, ..ClusterState::default() };
        let found = obstacles_to_planning(&state, blocked(&PlanBlockedBy::Disabled), NOW);
        let whole = NOW.replace_nanosecond(0).unwrap();
        assert_eq!(rules(&found), [(AUTO_REPAIR_DISABLED, whole), (INTEGRATION_DISABLED, whole)]);
    }
}
