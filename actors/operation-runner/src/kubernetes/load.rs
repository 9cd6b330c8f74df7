//! The load of an API server, by the time that it takes for a list of namespaces.

use std::time::Duration;

use crate::limits::{LEAST_SAMPLES, LOAD_HISTORY, LOAD_PRESENT, NEVER_SLOW, SLOW_FACTOR};

/// An answer to the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListAnswer {
    Took(Duration),
    /// Status 429: the server asks for fewer requests.
    TooMany,
}

/// A load for which the next wave of restarts is smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    TooMany,
    /// The server takes longer than it took before.
    Slow {
        present: Duration,
        usual: Duration,
    },
}

/// Judges the answers of an API server by their ages: those of the last minute against those of the hour before it. Without
/// such a history, the minute before is enough; without that, nothing is judged. A refusal counts since the present wave began,
/// or for a minute. `wave` is the age of the wave.
pub(crate) fn evaluate_load(answers: &[(Duration, ListAnswer)], wave: Duration) -> Option<Load> {
    let (mut present, mut usual) = (Vec::new(), Vec::new());
    for (age, answer) in answers {
        match answer {
            ListAnswer::TooMany if *age <= LOAD_PRESENT.max(wave) => return Some(Load::TooMany),
            ListAnswer::Took(took) if *age <= LOAD_PRESENT => present.push(*took),
            ListAnswer::Took(took) if *age <= LOAD_PRESENT + LOAD_HISTORY => usual.push(*took),
            ListAnswer::Took(_) | ListAnswer::TooMany => {}
        }
    }
    let (present, usual) = (median(present)?, median(usual)?);
    let is_slow = present > NEVER_SLOW && present > usual * SLOW_FACTOR;
    is_slow.then_some(Load::Slow { present, usual })
}

/// The median of times; `None` if they are too few to distinguish a median from an outlier.
fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    (times.len() >= LEAST_SAMPLES).then(|| times[times.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// An answer every ten seconds, the newest one first, by the milliseconds that they took.
    fn judge(took: &[u64]) -> Option<Load> {
        let answer = |(number, took): (u32, &u64)| {
            (Duration::from_secs(10) * number, ListAnswer::Took(milliseconds(*took)))
        };
        evaluate_load(&(0..).zip(took).map(answer).collect::<Vec<_>>(), Duration::ZERO)
    }

    #[test]
    fn a_server_is_slow_above_four_times_its_usual_time() {
        let hour = |present: u64, usual: u64| [vec![present; 7], vec![usual; 360]].concat();
        let slow =
            |present, usual| Some(Load::Slow { present: milliseconds(present), usual: milliseconds(usual) });
        assert_eq!(judge(&hour(401, 100)), slow(401, 100));
        assert_eq!(judge(&hour(400, 100)), None);
        assert_eq!(judge(&hour(49, 2)), None, "an answer within 50 ms is never slow");
        let mut outlier = hour(100, 100);
        outlier[3] = 5000;
        assert_eq!(judge(&outlier), None, "one answer is not a load");
        // Slow for a part of the minute.
        outlier[..4].fill(5000);
        assert_eq!(judge(&outlier), slow(5000, 100));
        let mut long = hour(401, 100);
        long.extend([10; 1000]);
        assert_eq!(judge(&long), slow(401, 100), "older answers do not count");
    }

    #[test]
    fn without_a_history_the_minute_before_is_the_usual_time() {
        assert!(judge(&[[401; 7], [100; 7]].concat()).is_some());
        assert_eq!(judge(&[401; 7]), None, "a new leader knows no usual time");
        assert_eq!(judge(&[&[401; 7][..], &[100; 2]].concat()), None);
        assert_eq!(judge(&[]), None);
    }

    #[test]
    fn an_answer_of_the_last_minute_or_of_the_wave_that_asks_for_fewer_requests_is_load() {
        let seconds = Duration::from_secs;
        let load = |age, wave| evaluate_load(&[(seconds(age), ListAnswer::TooMany)], seconds(wave));
        assert_eq!(load(60, 0), Some(Load::TooMany));
        assert_eq!(load(61, 60), None);
        assert_eq!(load(61, 61), Some(Load::TooMany));
    }
}
