use madako_messages::placement::providers::FetchError;

use crate::breaker::Breaker;

fn error() -> FetchError {
    FetchError::Unreachable { address: "http://p".to_owned(), why: "refused".to_owned() }
}

/// In which of some rounds a provider is asked that fails each time.
fn asked(breaker: &mut Breaker, rounds: usize) -> Vec<bool> {
    let round = |_| {
        let asks = breaker.round();
        if asks {
            breaker.failed(error());
        }
        asks
    };
    (0..rounds).map(round).collect()
}

#[test]
fn what_fails_is_asked_in_fewer_rounds_but_at_least_in_every_fourth() {
    let mut breaker = Breaker::default();
    let expected = "yyy.y...y...y...y";
    let asked: String =
        asked(&mut breaker, expected.len()).into_iter().map(|y| if y { 'y' } else { '.' }).collect();
    assert_eq!(asked, expected);
}

#[test]
fn it_is_down_from_the_third_failure_until_it_answers() {
    let mut breaker = Breaker::default();
    assert_eq!([breaker.failed(error()), breaker.failed(error())], [false, false]);
    assert!(!breaker.is_down() && breaker.open().is_none());
    assert!(breaker.failed(error()), "that is news");
    assert!(!breaker.failed(error()), "that is none");
    assert!(breaker.is_down());
    assert_eq!(breaker.open(), Some(&error()));
    assert!(breaker.answered(), "that is news");
    assert!(!breaker.answered(), "that is none");
    assert!(!breaker.is_down() && breaker.open().is_none() && breaker.round());
}

#[test]
fn an_answer_begins_the_count_anew() {
    let mut breaker = Breaker::default();
    for _ in 0..10 {
        breaker.failed(error());
        breaker.failed(error());
        breaker.answered();
    }
    assert!(!breaker.is_down());
}
