//! The exemptions of the judges: one table, with a reason and bounds for each, and counts of their uses.
//!
//! A run that uses an exemption more often, or for longer, than its bound does not pass.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

macro_rules! exemptions {
    ($($exemption:ident, $longest:expr, $most:expr, $why:literal;)+) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr, strum::VariantArray)]
        #[strum(serialize_all = "kebab-case")]
        pub enum Exemption {
            $(#[doc = $why] $exemption,)+
        }

        impl Exemption {
            #[must_use]
            pub fn reason(self) -> &'static str {
                match self { $(Self::$exemption => $why,)+ }
            }

            /// Maximum time that one use may cover. `None`: a use covers a moment.
            #[must_use]
            pub const fn longest_use(self) -> Option<Duration> {
                match self { $(Self::$exemption => $longest,)+ }
            }

            /// Maximum uses per hour of a run.
            #[must_use]
            pub fn max_per_hour(self) -> u64 {
                match self { $(Self::$exemption => $most,)+ }
            }
        }
    };
}

const fn from_minutes(count: u64) -> Option<Duration> {
    Some(Duration::from_secs(60 * count))
}

exemptions! {
    UnderWay, from_minutes(10), 60, "A write or command that was decided before a fault of the leader, of the store or of a node may arrive after it.";
    LateCommit, from_minutes(12), 10, "A plan may be on its way to the store while its leader or the store is cut off: the check uses the observation that the planner used.";
    ByUser, None, 120, "A violation that the write of a user causes by itself, such as a second repair of a machine, does not count.";
    Standing, from_minutes(60), 60, "A violation in the stored queue, such as a user's second repair of a machine, counts once: it stays while later revisions add nothing to it.";
    Deposed, from_minutes(1), 30, "An instance whose leader key a user deletes may not notice this until its lease would have ended.";
    WrongClock, from_minutes(70), 60, "Times from the leader or the registry are unreliable while its clock is wrong, and durations if its clock was wrong meanwhile.";
    OlderValue, from_minutes(2), 60, "A binding may be based on a value that a provider gave before its last one.";
    Unheard, Some(Duration::from_secs(2)), 20, "A scheduler may not have received a change of a cluster's state that the store already has.";
    HeldBack, from_minutes(10), 300, "A request to Kubernetes or to the registry that a fault held back counts from when the fault began: its sender led then, its node was drained then, or the integration was enabled then.";
    Bunched, from_minutes(10), 600, "Polls and health checks that a fault held back arrive together when it ends: they may come more often until then.";
    UnseenCheck, from_minutes(10), 60, "Health checks are not observable while a fault hides the hosts: a repair may begin after a check that no observer saw.";
    ForgottenReports, from_minutes(70), 30, "A repair queue of a new leader, one that failed, or one whose automatic requests were switched, does not know the registry's earlier answers: it need not hold a rack because of these.";
    UncertainFailures, None, 30, "The times at which machines failed are uncertain by a minute, and unknown if answers differ on them: a rack need not be held because of these.";
    LateDrain, from_minutes(20), 60, "A drain may end after its time limit: a new leader resumes it, or its command waits for another command or for operations on nodes.";
    Restarted, from_minutes(20), 900, "The limit of a reaction begins again after a fault, after a change of its inputs, and when the reaction is impossible.";
    Unjudged, from_minutes(60), 900, "While a place has a fault, or no instance leads, promises on the intervals and reactions that depend on it are not judged.";
    FullDisk, from_minutes(30), 10, "A member of the store may end, or not start, while its disk is full.";
    KilledCommand, None, 39, "To the service a command that a test kills has failed, whether it reached its machine or not. The test kills 13 commands, and each may break three promises once.";
}

madako_json::named!(Exemption all);

impl Exemption {
    /// Texts of the longest use and of its bound, for a report.
    #[must_use]
    pub fn format_durations(self, used: ExemptionUse) -> [String; 2] {
        match self.longest_use() {
            Some(longest) => {
                [used.longest_seconds.unwrap_or(0), longest.as_secs()].map(|seconds| format!("{seconds} s"))
            }
            None => ["-", "-"].map(str::to_owned),
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ExemptionUse {
    pub uses: u64,
    /// Duration of the longest use, in seconds, rounded up; `None` for an exemption whose uses are moments.
    pub longest_seconds: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exemptions(BTreeMap<Exemption, ExemptionUse>);

impl Exemptions {
    /// Counts a use that covers the time `lasted`.
    ///
    /// # Panics
    /// A use of this exemption is a moment, so no bound would judge its duration.
    pub fn record_use(&mut self, exemption: Exemption, lasted: Duration) {
        assert!(exemption.longest_use().is_some(), "{} has no longest duration", exemption.name());
        let used = self.0.entry(exemption).or_default();
        used.uses += 1;
        let seconds = u64::try_from(lasted.as_millis().div_ceil(1000)).unwrap_or(u64::MAX);
        used.longest_seconds = used.longest_seconds.max(Some(seconds));
    }

    /// Counts a use that is a moment.
    ///
    /// # Panics
    /// A use of this exemption has a duration, which its bound judges.
    pub fn used_once(&mut self, exemption: Exemption) {
        assert!(exemption.longest_use().is_none(), "a use of {} has a duration", exemption.name());
        self.0.entry(exemption).or_default().uses += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (exemption, used) in &other.0 {
            let all = self.0.entry(*exemption).or_default();
            all.uses += used.uses;
            all.longest_seconds = all.longest_seconds.max(used.longest_seconds);
        }
    }

    #[must_use]
    pub fn list_uses(&self) -> Vec<(Exemption, ExemptionUse)> {
        let used = |exemption: &Exemption| self.0.get(exemption).copied().unwrap_or_default();
        Exemption::ALL.iter().map(|exemption| (*exemption, used(exemption))).collect()
    }

    /// The bounds that a run of this length broke, as text.
    #[must_use]
    pub fn exceeded_bounds(&self, length: Duration) -> Vec<String> {
        let hours = length.as_secs().div_ceil(3600).max(1);
        let mut beyond = Vec::new();
        for (exemption, used) in self.list_uses() {
            let most = exemption.max_per_hour() * hours;
            if used.uses > most {
                beyond.push(format!("{} was used {} times, at most {most}", exemption.name(), used.uses));
            }
            let longest = exemption.longest_use().map(|longest| longest.as_secs());
            if let (Some(lasted), Some(longest)) = (used.longest_seconds, longest)
                && lasted > longest
            {
                beyond.push(format!("{} lasted {lasted} s, at most {longest} s", exemption.name()));
            }
        }
        beyond
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn run_beyond_a_bound_is_reported() {
        let mut exemptions = Exemptions::default();
        for _ in 0..Exemption::UnderWay.max_per_hour() {
            exemptions.record_use(Exemption::UnderWay, Duration::from_secs(1));
        }
        assert_eq!(exemptions.exceeded_bounds(HOUR), [""; 0]);
        exemptions.record_use(Exemption::UnderWay, Duration::from_secs(1));
        assert_eq!(exemptions.exceeded_bounds(HOUR).len(), 1);
        assert_eq!(exemptions.exceeded_bounds(2 * HOUR), [""; 0]);
    }

    #[test]
    fn each_exemption_has_a_bound_that_can_be_broken() {
        for exemption in Exemption::ALL {
            let mut long = Exemptions::default();
            if let Some(longest) = exemption.longest_use() {
                long.record_use(*exemption, longest);
                assert_eq!(long.exceeded_bounds(HOUR), [""; 0], "{exemption:?}");
                long.record_use(*exemption, longest + Duration::from_millis(1));
                assert_eq!(long.exceeded_bounds(HOUR).len(), 1, "{exemption:?}");
            }
            let mut often = Exemptions::default();
            for _ in 0..=exemption.max_per_hour() {
                match exemption.longest_use() {
                    Some(longest) => often.record_use(*exemption, longest),
                    None => often.used_once(*exemption),
                }
            }
            assert_eq!(often.exceeded_bounds(HOUR).len(), 1, "{exemption:?}");
        }
    }

    #[test]
    #[should_panic(expected = "a use of held-back has a duration")]
    fn a_use_without_its_duration_is_refused() {
        Exemptions::default().used_once(Exemption::HeldBack);
    }
}
