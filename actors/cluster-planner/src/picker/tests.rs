use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Id, score, number of candidates, runner-up.
type Picked = (MachineId, i64, usize, Option<(MachineId, i64)>);

/// CKE's document, literally: score all remaining machines, take the best, count it, repeat.
fn by_hand(mut left: Vec<Candidate>, mut nodes: BTreeMap<i64, u64>, leaving: bool) -> Vec<Picked> {
    let mut picks = Vec::new();
    while !left.is_empty() {
        let count = |rack: i64| i64::try_from(nodes.get(&rack).copied().unwrap_or(0)).unwrap();
        let mut scored: Vec<(MachineId, i64)> = left
            .iter()
            .map(|candidate| (candidate.id, (100 - count(candidate.rack)) * 10 + candidate.points.0))
            .collect();
        scored.sort_by_key(|(id, score)| (if leaving { *score } else { -score }, *id));
        picks.push((scored[0].0, scored[0].1, left.len(), scored.get(1).copied()));
        let index = left.iter().position(|candidate| candidate.id == scored[0].0).unwrap();
        let rack = nodes.entry(left.remove(index).rack).or_insert(0);
        *rack = if leaving { *rack - 1 } else { *rack + 1 };
    }
    picks
}

fn picked(mut picker: Picker) -> Vec<Picked> {
    std::iter::from_fn(|| picker.pick())
        .map(|pick| (pick.id, pick.score, pick.considered, pick.runner_up))
        .collect()
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let candidate = (0..5_i64, prop_oneof![-3..=3_i64, 997..=1_003_i64]);
    prop::collection::vec(candidate, 0..30).prop_map(|candidates| {
        let candidate = |(id, (rack, points))| Candidate { rack, points: Reverse(points), id };
        candidates.into_iter().enumerate().map(candidate).collect()
    })
}

#[test]
fn passed_over_candidate_is_not_offered_again_and_scores_nothing() {
    let candidate = |id, rack, points| Candidate { rack, points: Reverse(points), id };
    let mut picker =
        Picker::to_leave(vec![candidate(0, 1, 0), candidate(1, 1, 3), candidate(2, 2, 1_000)], |rack| {
            if rack == 1 { 2 } else { 1 }
        });
    assert_eq!(picker.peek(), Some(0));
    picker.pass_over();
    let pick = picker.pick().unwrap();
    assert_eq!((pick.id, pick.score, pick.points, pick.considered), (1, 983, 3, 2));
    assert_eq!(pick.runner_up, Some((2, 1_990)));
    picker.pass_over();
    assert_eq!((picker.peek(), picker.pick()), (None, None));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn joining_picks_as_scoring_everything_anew_would(
        candidates in candidates(),
        nodes in prop::collection::btree_map(0..5_i64, 0..120_u64, 0..5),
    ) {
        let racks = nodes.clone();
        let picker = Picker::to_join(candidates.clone(), |rack| racks.get(&rack).copied().unwrap_or(0));
        prop_assert_eq!(picked(picker), by_hand(candidates, nodes, false));
    }

    #[test]
    fn leaving_picks_as_scoring_everything_anew_would(candidates in candidates()) {
        let mut nodes = BTreeMap::new();
        for candidate in &candidates {
            *nodes.entry(candidate.rack).or_insert(0) += 1;
        }
        let racks = nodes.clone();
        let picker = Picker::to_leave(candidates.clone(), |rack| racks.get(&rack).copied().unwrap_or(0));
        prop_assert_eq!(picked(picker), by_hand(candidates, nodes, true));
    }
}
