//! Promises about placement: bindings, moves and waiting applications.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::fact::{Fact, FactTime, FaultPlace};
use crate::liveness::Waiting;
use crate::observed_world::{ObservedWorld, StoredValue, WrittenKey};
use crate::oracle::{Context, FactJudgement, Predicate};
use crate::terms::MOST_SKIPPED;

/// Prefix of placement's applications.
const APPLICATIONS: &str = "/kubernetes/applications/";

const ONLINE: &str = "ONLINE";
const FAILING: &str = "FAILING_METRICS";

/// Least number of applications that may move within each `reschedule_after`.
const MOVE_TOGETHER: u32 = 2;

/// Metrics rounds until the changed score of a cluster counts: the round under way, and the next.
const ROUNDS: u32 = 2;

#[derive(Default)]
pub(crate) struct FailingMetrics {
    /// For each metric: its last good value, whether its current series of values is good, and the beginning of the
    /// series.
    good: BTreeMap<String, (Option<FactTime>, bool, FactTime)>,
    /// Clusters that turned to FAILING_METRICS while one of their metrics had no value.
    turned: BTreeSet<String>,
    waiting: Waiting<(String, bool)>,
}

impl FailingMetrics {
    /// Clusters whose state must change, with `true` for a change to FAILING_METRICS.
    fn clusters_to_change(
        &self,
        at: FactTime,
        now: &ObservedWorld,
        Context { terms, .. }: &Context<'_>,
    ) -> BTreeSet<(String, bool)> {
        let known = |name: &String| self.good.get(name);
        let fails = |name: &String| {
            known(name).is_some_and(|(last, good, since)| {
                !good && last.unwrap_or(*since) + terms.metric_max_age < at
            })
        };
        // A metric without recent requests may not be defined.
        let works = |name: &String| {
            known(name).is_some_and(|(last, good, _)| {
                *good && last.is_some_and(|last| last + terms.metric_max_age >= at)
            })
        };
        let clusters = now.placed.iter().filter(|(_, cluster)| !cluster.deleted);
        clusters
            .filter_map(|(key, cluster)| match &*cluster.state {
                ONLINE if cluster.metrics.iter().any(fails) => Some((key.clone(), true)),
                FAILING if cluster.metrics.iter().all(works) => Some((key.clone(), false)),
                _ => None,
            })
            .collect()
    }

    fn note_turned_clusters(&mut self, written: &[WrittenKey], now: &ObservedWorld) {
        let lacks = |name: &String| self.good.get(name).is_some_and(|(_, good, _)| !good);
        for WrittenKey { key, .. } in written {
            match now.placed.get(key) {
                Some(cluster) if cluster.state == FAILING && cluster.metrics.iter().any(lacks) => {
                    self.turned.insert(key.clone());
                }
                Some(_) => {}
                None => {
                    self.turned.remove(key);
                }
            }
        }
    }
}

impl Predicate for FailingMetrics {
    fn observe(&mut self, context: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let Context { at, fact, written, now, terms } = context;
        if let Fact::Provided { metric, good } = fact {
            let (last, was, since) = self.good.entry(metric.clone()).or_insert((None, *good, *at));
            if was != good {
                (*was, *since) = (*good, *at);
            }
            if *good {
                *last = Some(*at);
            }
        }
        self.note_turned_clusters(written, now);
        // Definitions may have been removed or changed.
        let defined = written.iter().any(|written| written.key.starts_with("/core/"));
        if defined || !now.is_quiet(&[]) {
            self.waiting.interrupt(*at, ruling);
            self.good.retain(|_, _| !defined);
            return;
        }
        let limit = terms.metrics_interval * (MOST_SKIPPED + 3) + terms.tolerance;
        let wrong = self.clusters_to_change(*at, now, context);
        for (key, fails) in self.waiting.objects_done_waiting(&wrong) {
            let is_online = now.placed.get(key).is_some_and(|cluster| cluster.state == ONLINE);
            // A test has both turns.
            if !fails && is_online && self.turned.remove(key) {
                ruling.count_test();
            }
        }
        self.waiting.update(wrong, *at);
        for (key, fails) in self.waiting.report_overdue(*at, limit) {
            let wanted = if fails { FAILING } else { ONLINE };
            ruling.report_broken(format_args!("{key} should be {wanted} for {limit:?}"));
        }
    }
}

#[derive(Default)]
pub(crate) struct BetterCluster {
    wanted: BTreeMap<String, String>,
    waiting: Waiting<String>,
    /// Moves of applications during the wait: each delays the awaited move.
    moved: u32,
}

/// Name of the cluster that the application is bound to.
fn bound_cluster(value: Option<&StoredValue>) -> Option<String> {
    let application = value?.read::<Json>()?;
    application["status"]["scheduled_to"]["name"].as_str().map(str::to_owned)
}

impl Predicate for BetterCluster {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        if let Fact::Improved { application, cluster } = fact {
            self.wanted.insert(application.clone(), cluster.clone());
        }
        if self.wanted.is_empty() {
            self.moved = 0;
            return;
        }
        let applications = written.iter().filter(|written| written.key.starts_with(APPLICATIONS));
        let moves = applications.filter(|written| {
            let before = bound_cluster(written.before.as_ref());
            before.is_some() && before != bound_cluster(written.after.as_ref())
        });
        self.moved += u32::try_from(moves.count()).unwrap_or(u32::MAX);
        for written in *written {
            let Some(wanted) = self.wanted.get(&written.key) else { continue };
            let to = written.after.as_ref().and_then(StoredValue::read::<Json>);
            let to = to.map(|application| application["status"]["scheduled_to"]["name"].clone());
            let moved = to.as_ref().and_then(Json::as_str) == Some(wanted);
            if moved || to.is_none() {
                self.wanted.remove(&written.key);
            }
            if moved {
                ruling.count_test();
            }
        }
        if !now.is_quiet(&[FaultPlace::Providers]) {
            self.waiting.interrupt(*at, ruling);
            return;
        }
        // An application does not move to a cluster that is not online.
        let is_online = |application: &str, cluster: &str| {
            let namespace = application.split('/').nth(3).unwrap_or_default();
            let placed = now.placed.get(&format!("/kubernetes/clusters/{namespace}/{cluster}"));
            placed.is_some_and(|placed| &*placed.state == ONLINE)
        };
        let possible = self.wanted.iter().filter(|(application, cluster)| is_online(application, cluster));
        self.waiting.update(possible.map(|(application, _)| application.clone()).collect(), *at);
        // The application stays for `reschedule_after`, and then for as long as other moves delay it.
        let held = 1 + self.moved.div_ceil(MOVE_TOGETHER);
        let limit = terms.reschedule_after * (1 + held) + terms.metrics_interval * ROUNDS + terms.tolerance;
        for key in self.waiting.report_overdue(*at, limit) {
            let cluster = self.wanted.remove(&key).unwrap_or_default();
            ruling.report_broken(format_args!(
                "{key} has not moved to {cluster} for {limit:?}, which is better"
            ));
        }
    }
}
