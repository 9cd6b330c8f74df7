//! Promises about periodic requests: neither more often nor less often than their interval.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use madako_domain::keys;
use madako_domain::placement::ownership;

use crate::exemptions::Exemption;
use crate::fact::{Command, Fact, FactTime, FaultPlace, RegistryQuestion};
use crate::observed_world::{ObservedWorld, WrittenKey};
use crate::oracle::{Context, FactJudgement, Predicate};
use crate::terms::{MOST_SKIPPED, PromiseTerms};

/// Length of the window in intervals: an immediate extra request shifts the following ones, without raising their rate.
const WINDOW: u32 = 5;

/// Extra requests allowed within a window: at both ends of the window, and under way at its beginning.
const BESIDE: usize = 2;

#[derive(Default)]
struct EventWindow(VecDeque<FactTime>);

impl EventWindow {
    fn push(&mut self, at: FactTime, window: Duration) -> usize {
        self.0.push_back(at);
        self.count_since(at.saturating_sub(window))
    }

    fn count_since(&mut self, since: FactTime) -> usize {
        while self.0.front().is_some_and(|first| *first < since) {
            self.0.pop_front();
        }
        self.0.len()
    }
}

/// Events at an interval, for each of several keys.
struct ExpectedInterval<K> {
    came: BTreeMap<K, EventWindow>,
    /// Events that each allow one extra request at once.
    causes: EventWindow,
    /// For each expected key: the last event, or the beginning of the expectation.
    due: BTreeMap<K, FactTime>,
}

impl<K> Default for ExpectedInterval<K> {
    fn default() -> Self {
        Self { came: BTreeMap::new(), causes: EventWindow::default(), due: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> ExpectedInterval<K> {
    /// Counts an event; returns a description if it came too often.
    fn note_arrival(&mut self, key: &K, at: FactTime, interval: Duration) -> Option<String> {
        let window = interval * WINDOW;
        let count = self.came.entry(key.clone()).or_default().push(at, window);
        let causes = self.causes.count_since(at.saturating_sub(window));
        self.restart_limit(key, at);
        (count > WINDOW as usize + BESIDE + causes).then(|| format!("{count} times within {window:?}"))
    }

    /// Restarts the limit of a key, if it is expected.
    fn restart_limit(&mut self, key: &K, at: FactTime) {
        if let Some(due) = self.due.get_mut(key) {
            *due = at;
        }
    }

    /// Allows one extra event.
    fn note_cause(&mut self, at: FactTime) {
        self.causes.0.push_back(at);
    }

    /// Sets the expected keys. Returns those without an event for longer than `limit`, each once.
    fn update_wanted(&mut self, wanted: BTreeSet<K>, at: FactTime, limit: Duration) -> Vec<K> {
        self.due.retain(|key, _| wanted.contains(key));
        let mut overdue = Vec::new();
        for key in wanted {
            let due = self.due.entry(key.clone()).or_insert(at);
            if at > *due + limit {
                *due = at;
                overdue.push(key);
            }
        }
        overdue
    }
}

/// Judges an event that came too often: an exemption excuses it while requests that a fault held back may arrive.
fn check_not_too_often(
    (now, terms): (&ObservedWorld, &PromiseTerms),
    (at, interval): (FactTime, Duration),
    ruling: &mut FactJudgement<'_>,
    what: impl FnOnce() -> String,
) {
    // Held back requests arrive for about as long as the fault lasted.
    let undisturbed = now.is_undisturbed(at.saturating_sub(interval * WINDOW * 2 + terms.tolerance));
    if terms.holds_back && !undisturbed {
        ruling.exemptions.record_use(Exemption::Bunched, at.saturating_sub(now.time_of_last_fault()));
    } else {
        ruling.report_broken(what());
    }
}

fn count_writes(written: &[WrittenKey], keys: &[&str]) -> usize {
    written.iter().filter(|written| keys.iter().any(|key| written.key.starts_with(key))).count()
}

/// True if an actor may have been restarted, or another instance may lead.
fn may_restart_requests(fact: &Fact, written: &[WrittenKey]) -> bool {
    matches!(fact, Fact::Troubled { .. }) || count_writes(written, &[keys::LEADER]) > 0
}

/// [`crate::Promise::MachinePolls`] and [`crate::Promise::ReportPolls`].
pub(crate) struct PollInterval {
    question: RegistryQuestion,
    rhythm: ExpectedInterval<String>,
}

impl PollInterval {
    pub(crate) fn for_question(question: RegistryQuestion) -> Self {
        Self { question, rhythm: ExpectedInterval::default() }
    }

    /// The leader, while it is expected to poll and no fault prevents that.
    fn check_poll_interval(&self, now: &ObservedWorld) -> Option<String> {
        let leader = now.leader.as_ref().filter(|_| now.is_quiet(&[FaultPlace::Registry]))?;
        let asks = match self.question {
            RegistryQuestion::Machines => now.switched_on_since(keys::SABAKAN_DISABLED).is_none(),
            RegistryQuestion::Reports => now.switched_on_since(keys::AUTO_REPAIR_DISABLED).is_none(),
        };
        (asks && now.values.contains_key(keys::SABAKAN_URL)).then(|| leader.instance.clone())
    }
}

impl Predicate for PollInterval {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        // A change of one of these keys causes a request at once; so does a new actor. The request for reports is repeated
        // for a held rack.
        let causes = [
            keys::SABAKAN_URL,
            keys::SABAKAN_VARIABLES,
            keys::SABAKAN_DISABLED,
            keys::REMOVAL_GUARD,
            keys::AUTO_REPAIR_DISABLED,
            keys::AUTO_REPAIR_VARIABLES,
            keys::REPAIR_HOLDS,
        ];
        if may_restart_requests(fact, written) {
            self.rhythm.note_cause(*at);
            self.rhythm.due.clear();
        } else if count_writes(written, &causes) > 0 {
            self.rhythm.note_cause(*at);
        }
        let wanted = self.check_poll_interval(now).into_iter().collect();
        for instance in self.rhythm.update_wanted(wanted, *at, terms.interval + terms.tolerance) {
            ruling.report_broken(format_args!(
                "{instance} leads, and asks nothing for more than {:?}",
                terms.interval
            ));
        }
        if let Fact::Polled { instance, question } = fact
            && *question == self.question
        {
            if self.rhythm.due.contains_key(instance) {
                ruling.count_test();
            }
            let often = self.rhythm.note_arrival(instance, *at, terms.interval);
            if let Some(often) = often {
                check_not_too_often((now, terms), (*at, terms.interval), ruling, || {
                    format!("{instance} asks {often}")
                });
            }
        }
    }
}

/// Assumes: a name of a metric has one definition at a time. No world of a run has a namespaced and a global metric of
/// one name.
#[derive(Default)]
pub(crate) struct MetricRounds {
    /// Requests by instance and text.
    rhythm: ExpectedInterval<(String, String)>,
    /// Fetches by instance and metric.
    fetches: ExpectedInterval<(String, String)>,
    /// Last fetch of each metric by each instance, while no fault prevented fetching.
    last: BTreeMap<(String, String), FactTime>,
    /// Beginning of the use of each metric.
    used: BTreeMap<String, FactTime>,
    /// Metrics with a definition and a provider over the network, as fetches without faults show.
    defined: BTreeSet<String>,
    /// Last change of a definition, of the fetching instance or of a fault.
    changed: FactTime,
}

impl MetricRounds {
    /// The fetches of the leader that are expected while no fault prevents them.
    fn expected_fetches(&self, now: &ObservedWorld) -> BTreeSet<(String, String)> {
        let mut expected = BTreeSet::new();
        if let Some(leader) = now.leader.as_ref().filter(|_| now.is_quiet(&[FaultPlace::Providers])) {
            let metrics = self.used.keys().filter(|metric| self.defined.contains(*metric));
            expected.extend(metrics.map(|metric| (leader.instance.clone(), metric.clone())));
        }
        expected
    }
}

impl Predicate for MetricRounds {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        let redefines = count_writes(written, &["/core/"]) > 0;
        // The leader fetches while it owns placement.
        if may_restart_requests(fact, written) || redefines || count_writes(written, &[ownership::KEY]) > 0 {
            self.rhythm.note_cause(*at);
            self.fetches.due.clear();
            self.last.clear();
            self.changed = *at;
        }
        if redefines {
            self.defined.clear();
        }
        if count_writes(written, &["/kubernetes/clusters/"]) > 0 {
            let used: BTreeSet<&String> = now.placed.values().flat_map(|cluster| &cluster.metrics).collect();
            self.used.retain(|metric, _| used.contains(metric));
            let new: Vec<String> =
                used.into_iter().filter(|metric| !self.used.contains_key(*metric)).cloned().collect();
            // A new metric is fetched at once.
            new.iter().for_each(|_| self.rhythm.note_cause(*at));
            self.used.extend(new.into_iter().map(|metric| (metric, *at)));
        }
        // A metric of a failing provider is skipped in some rounds.
        if let Fact::Provided { metric, good: false } = fact {
            self.last.retain(|(_, fetched), _| fetched != metric);
        }
        // A failed fetch takes up to a round, and a failing provider is skipped in up to `MOST_SKIPPED` rounds.
        let longest = terms.metrics_interval * (MOST_SKIPPED + 2) + terms.tolerance;
        let expected = self.expected_fetches(now);
        for (instance, metric) in self.fetches.update_wanted(expected, *at, longest) {
            ruling.report_broken(format_args!("{instance} does not fetch {metric} for {longest:?}"));
        }
        let Fact::Fetched { instance, what } = fact else { return };
        let key = (instance.clone(), what.clone());
        let often = self.rhythm.note_arrival(&key, *at, terms.metrics_interval);
        if let Some(often) = often {
            check_not_too_often((now, terms), (*at, terms.metrics_interval), ruling, || {
                format!("{instance} fetches {what} {often}")
            });
        }
        // The set of metrics in one request changes with the metrics in use, so each metric has its own rounds.
        let quiet = now.is_quiet(&[FaultPlace::Providers]);
        for (metric, since) in self.used.iter().filter(|(metric, _)| what.contains(&***metric)) {
            let fetch = (instance.clone(), metric.clone());
            self.fetches.restart_limit(&fetch, *at);
            // Soon after a change of definitions, an instance may still fetch by the former ones.
            if quiet && *at > self.changed + longest {
                self.defined.insert(metric.clone());
            }
            let last = self.last.insert(fetch, *at).filter(|_| quiet);
            let Some(last) = last.filter(|last| since <= last) else { continue };
            // One round is skipped after a failure; some failures are not observable from outside, such as an unusable
            // answer.
            let limit = terms.metrics_interval * 2 + terms.tolerance;
            ruling.require(*at <= last + limit, || {
                format!("{instance} fetches {metric} after {:?}", *at - last)
            });
        }
    }
}

#[derive(Default)]
pub(crate) struct HealthChecks {
    /// Each unfinished entry of a machine causes a check of its own. The facts do not name the entry, so that the checks
    /// of a machine with `n` entries are counted in turn for the numbers from 0 to below `n`.
    rhythm: ExpectedInterval<(String, usize)>,
    /// Number of checks by machine.
    checks: BTreeMap<String, usize>,
}

impl HealthChecks {
    /// Machines whose health must be checked, unless a fault prevents it.
    fn machines_to_check(now: &ObservedWorld) -> BTreeSet<(String, usize)> {
        if !now.is_quiet(&[FaultPlace::Hosts]) {
            return BTreeSet::new();
        }
        let runs = |address: &String| {
            let command = |command| now.running.contains_key(&(address.clone(), command));
            command(Command::Repair) || command(Command::Success)
        };
        let unfinished = now.entries.values().map(|item| &item.entry).filter(|entry| {
            !entry.is_finished()
                && !entry.deleted
                && now.rules.steps_of_entry(entry).is_some()
                && !runs(&entry.address)
        });
        unfinished.map(|entry| (entry.address.clone(), 0)).collect()
    }

    /// Machine and number that a check counts for.
    fn counted_as(&mut self, address: &str, now: &ObservedWorld) -> (String, usize) {
        let entries = now.entries.values().map(|item| &item.entry);
        let unfinished = entries.filter(|entry| entry.address == address && !entry.is_finished()).count();
        let count = self.checks.entry(address.to_owned()).or_default();
        *count += 1;
        (address.to_owned(), *count % unfinished.max(1))
    }
}

impl Predicate for HealthChecks {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        // Each change of an entry causes a new check, and so does each failed attempt of a command.
        let entries = count_writes(written, &[keys::REPAIRS]);
        let attempt = matches!(fact, Fact::Ended { command: Command::Repair, .. });
        for _ in 0..entries + usize::from(attempt) {
            self.rhythm.note_cause(*at);
        }
        if may_restart_requests(fact, written) || count_writes(written, &[keys::CLUSTER]) > 0 {
            self.rhythm.note_cause(*at);
            self.rhythm.due.clear();
        }
        let wanted = Self::machines_to_check(now);
        for (address, _) in self.rhythm.update_wanted(wanted, *at, terms.interval + terms.tolerance) {
            ruling.report_broken(format_args!(
                "no instance checks the health of {address} for {:?}",
                terms.interval
            ));
        }
        if let Fact::Began { command: Command::HealthCheck, address, instance } = fact {
            let counted = self.counted_as(address, now);
            if self.rhythm.due.contains_key(&counted) {
                ruling.count_test();
            }
            let often = self.rhythm.note_arrival(&counted, *at, terms.interval);
            if let Some(often) = often {
                check_not_too_often((now, terms), (*at, terms.interval), ruling, || {
                    format!("{instance} asks for the health of {address} {often}")
                });
            }
        }
    }
}
