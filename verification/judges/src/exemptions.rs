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
            pub fn why(self) -> &'static str {
                match self { $(Self::$exemption => $why,)+ }
            }

            /// Maximum time that one use may cover.
            #[must_use]
            pub const fn longest(self) -> Duration {
                match self { $(Self::$exemption => $longest,)+ }
            }

            /// Maximum uses per hour of a run.
            #[must_use]
            pub fn most_an_hour(self) -> u64 {
                match self { $(Self::$exemption => $most,)+ }
            }
        }
    };
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

exemptions! {
    UnderWay, minutes(10), 60, "A write or command that was decided before a fault of the leader, of the store or of a node may arrive after it.";
    LateCommit, minutes(12), 10, "A plan may be on its way to the store while its leader or the store is cut off: the check uses the observation that the planner used.";
    ByUser, minutes(1), 120, "A violation that the write of a user causes by itself, such as a second repair of a machine, does not count.";
    Deposed, minutes(1), 30, "An instance whose leader key a user deletes may not notice this until its lease would have ended.";
    WrongClock, minutes(70), 60, "Times from the leader or the registry are unreliable while its clock is wrong, and durations if its clock was wrong meanwhile.";
    OlderValue, minutes(2), 60, "A binding may be based on a value that a provider gave before its last one.";
    Unheard, Duration::from_secs(2), 20, "A scheduler may not have received a change of a cluster's state that the store already has.";
    HeldBack, minutes(10), 300, "A request to Kubernetes that a fault held back counts from when the fault began: its sender led then, or its node was drained then.";
}

madako_json::named!(Exemption all);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Use {
    pub uses: u64,
    /// Duration of the longest use, in seconds.
    pub longest_seconds: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exemptions(BTreeMap<Exemption, Use>);

impl Exemptions {
    /// Counts a use that covers the time `lasted`.
    pub fn used(&mut self, exemption: Exemption, lasted: Duration) {
        let used = self.0.entry(exemption).or_default();
        used.uses += 1;
        used.longest_seconds = used.longest_seconds.max(lasted.as_secs());
    }

    pub fn add(&mut self, other: &Self) {
        for (exemption, used) in &other.0 {
            let all = self.0.entry(*exemption).or_default();
            all.uses += used.uses;
            all.longest_seconds = all.longest_seconds.max(used.longest_seconds);
        }
    }

    #[must_use]
    pub fn table(&self) -> Vec<(Exemption, Use)> {
        let used = |exemption: &Exemption| self.0.get(exemption).copied().unwrap_or_default();
        Exemption::ALL.iter().map(|exemption| (*exemption, used(exemption))).collect()
    }

    /// The bounds that a run of this length broke, as text.
    #[must_use]
    pub fn beyond(&self, length: Duration) -> Vec<String> {
        let hours = length.as_secs().div_ceil(3600).max(1);
        let mut beyond = Vec::new();
        for (exemption, used) in self.table() {
            let (most, longest) = (exemption.most_an_hour() * hours, exemption.longest().as_secs());
            if used.uses > most {
                beyond.push(format!("{} was used {} times, at most {most}", exemption.name(), used.uses));
            }
            if used.longest_seconds > longest {
                let lasted = used.longest_seconds;
                beyond.push(format!("{} lasted {lasted} s, at most {longest} s", exemption.name()));
            }
        }
        beyond
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_beyond_a_bound_is_reported() {
        let mut exemptions = Exemptions::default();
        for _ in 0..Exemption::UnderWay.most_an_hour() {
            exemptions.used(Exemption::UnderWay, Duration::from_secs(1));
        }
        assert_eq!(exemptions.beyond(minutes(60)), [""; 0]);
        exemptions.used(Exemption::UnderWay, Duration::from_secs(1));
        assert_eq!(exemptions.beyond(minutes(60)).len(), 1);
        assert_eq!(exemptions.beyond(minutes(120)), [""; 0]);
        exemptions.used(Exemption::WrongClock, minutes(71));
        assert_eq!(exemptions.beyond(minutes(120)).len(), 1);
    }
}
