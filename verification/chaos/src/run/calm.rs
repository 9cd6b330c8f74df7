//! The end of a chaos run: waits until the service has recovered and changes nothing more, and until the observer has
//! the whole history.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{Client, ResponseHeader};
use madako_faults::Span;
use tokio::time::{Instant, sleep, timeout_at};

use super::{GLANCE, RunCourse, RunError};
use crate::check::drains::effects_of;
use crate::datacenter::read_journal;
use crate::history::{Micros, to_microseconds};
use crate::inject::Injector;
use crate::observer::Observer;
use crate::watcher::Leaders;
use crate::world::{POLL, World, longest_calm_wait, longest_repairs_wait};

/// Time without writes after which a run is calm: it covers all decisions that follow from polls.
const QUIET: Duration = Duration::from_secs(3 * POLL.as_secs());
/// Time for the observer to reach the end of the history.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(30);

impl RunCourse<'_> {
    /// Waits until all is well and without writes, and then until the repairs that are left have ended. Returns the time
    /// from the end of the faults to the first such state; `None`: it was not reached, or a process ended by itself.
    pub(super) async fn wait_for_calm(
        &self,
        world: &mut World,
        injector: &mut Injector,
        leaders: &Leaders,
        ended: Micros,
    ) -> Result<Option<Span>, RunError> {
        let within = self.options.scenario.expect.calm_within.unwrap_or_else(longest_calm_wait);
        let give_up = ended + to_microseconds(within.duration()) + 2 * to_microseconds(QUIET);
        let all = world.instances.len();
        let (mut well_since, mut calm_since) = (None, None);
        loop {
            if !self.check_processes(world, injector) {
                return Ok(None);
            }
            let now = self.history.now();
            well_since = if leaders.are_all_healthy(all) { well_since.or(Some(now)) } else { None };
            if let Some(well) = well_since {
                let mut calm_at = well.max(injector.observer().time_of_last_write()).max(ended);
                if now >= calm_at + to_microseconds(QUIET) {
                    calm_at = calm_at.max(self.time_of_last_effect(world)?);
                }
                if now >= calm_at + to_microseconds(QUIET) {
                    let since: Micros = *calm_since.get_or_insert(calm_at);
                    let unix = self.unix + Duration::from_micros(now);
                    if !injector.observer().has_repair_under_way(unix) {
                        return Ok(Some(Span::from_millis((since - ended) / 1_000)));
                    }
                }
            }
            let for_repairs = calm_since.map_or(0, |_| to_microseconds(longest_repairs_wait()));
            if now > give_up + for_repairs {
                return Ok(None);
            }
            sleep(GLANCE).await;
        }
    }

    /// Time of the last change of Kubernetes: a node is uncordoned after the last write.
    fn time_of_last_effect(&self, world: &World) -> Result<Micros, RunError> {
        let effects = effects_of(&read_journal(&world.registry.journal)?, self.unix);
        Ok(effects.last().map_or(0, |effect| effect.at))
    }

    /// Checks every process; returns whether all run.
    pub(super) fn check_processes(&self, world: &mut World, injector: &mut Injector) -> bool {
        let nodes = self.plan.network_nodes();
        nodes.iter().filter(|node| !injector.check_process(world, node)).count() == 0
    }

    /// Waits until the observer has received everything stored from each member. Returns the missing parts.
    pub(super) async fn catch_up(&self, world: &World, observer: &Observer) -> Vec<String> {
        let ends = Instant::now() + CAUGHT_UP_WITHIN;
        let (mut missed, mut stored) = (Vec::new(), BTreeMap::new());
        for (member, endpoint) in world.member_endpoints() {
            let answers = async {
                let mut client = Client::connect([endpoint], None).await?;
                let answer = client.get("none", None).await?;
                Ok(answer.header().map_or(0, ResponseHeader::revision))
            };
            let why = match timeout_at(ends, answers).await {
                Ok(Ok(revision)) => {
                    stored.insert(member, revision);
                    continue;
                }
                Ok(Err(error)) => etcd_client::Error::to_string(&error),
                Err(_) => format!("no answer within {CAUGHT_UP_WITHIN:?}"),
            };
            missed.push(format!("store={member} does not say what is stored in the end: {why}"));
        }
        while !observer.members_behind(&stored).is_empty() && Instant::now() < ends {
            sleep(GLANCE).await;
        }
        missed.extend(observer.members_behind(&stored));
        missed
    }
}
