use crate::breaker::Breaker;

/// For each round, whether a provider that always fails is fetched.
fn requested(breaker: &mut Breaker, rounds: usize) -> Vec<bool> {
    let round = |_| {
        let asks = breaker.begin_round();
        if asks {
            breaker.record_failure();
        }
        asks
    };
    (0..rounds).map(round).collect()
}

#[test]
fn failing_provider_is_asked_in_fewer_passes_but_at_least_in_every_fourth() {
    let mut breaker = Breaker::default();
    let expected = "yyy.y...y...y...y";
    let requested: String =
        requested(&mut breaker, expected.len()).into_iter().map(|y| if y { 'y' } else { '.' }).collect();
    assert_eq!(requested, expected);
}

#[test]
fn a_provider_is_down_from_its_third_failure_until_its_next_answer() {
    let mut breaker = Breaker::default();
    assert_eq!([breaker.record_failure(), breaker.record_failure()], [false, false]);
    assert!(!breaker.is_down() && breaker.failures() == 2);
    assert!(breaker.record_failure(), "that is news");
    assert!(!breaker.record_failure(), "that is none");
    assert!(breaker.is_down());
    assert!(breaker.record_answer(), "that is news");
    assert!(!breaker.record_answer(), "that is none");
    assert!(!breaker.is_down() && breaker.failures() == 0 && breaker.begin_round());
}

#[test]
fn answer_resets_the_count_of_failures() {
    let mut breaker = Breaker::default();
    for _ in 0..10 {
        breaker.record_failure();
        breaker.record_failure();
        breaker.record_answer();
    }
    assert!(!breaker.is_down());
}
