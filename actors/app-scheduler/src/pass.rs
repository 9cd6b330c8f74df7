//! One reconcile pass of the scheduler: all decisions about applications and clusters from one snapshot of the
//! resources.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::placement::binding::{bind_application, trigger_update};
use madako_domain::placement::decision::{Decision, Outcome};
use madako_domain::placement::infrastructure::{Cloud, GlobalCloud};
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::kubernetes::{Application, ApplicationState, Cluster};
use madako_domain::placement::metadata::ResourceRef;
use madako_domain::placement::metrics::MetricsObserved;
use madako_domain::placement::object_value::Resource as _;
use madako_domain::placement::objects::Stored;
use madako_domain::placement::openstack::{MagnumCluster, Project};
use time::OffsetDateTime;

use crate::application::{ApplicationAct, PassContext, Verdict};
use crate::backends::{BackendOutcome, place_cluster, place_magnum_cluster};
use crate::config::{Candidates, SchedulerConfig, add_duration};
use crate::draft::{Deletion, DraftedChanges, ObjectWrite, WriteKind, WriteUnit};
use crate::draw::SeededDraw;
use crate::failure::{clear_failure, is_ours, note_failure};
use crate::limits::LEAST_PAUSE;
use crate::memory::{ClusterMemory, Memory, MemoryChange};
use crate::metric_values::MetricValues;
use crate::scope::Scope;
use crate::snapshot::{Snapshot, TypedResource};
use crate::target::Target;
use crate::{creation, gc, moves, upkeep};

#[derive(Debug, Clone, Copy)]
pub struct PassInput<'a> {
    pub snapshot: &'a Snapshot,
    /// `None`: no metrics were received yet.
    pub metrics: Option<&'a MetricsObserved>,
    pub config: &'a SchedulerConfig,
    pub memory: &'a Memory,
    pub now: OffsetDateTime,
    /// Seed for ties and names.
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Pass {
    pub decisions: BTreeMap<ObjectKey, Decision>,
    /// Results for unbound clusters and Magnum clusters.
    pub placed: BTreeMap<ObjectKey, BackendOutcome>,
    pub units: Vec<WriteUnit>,
    /// Memory for the next pass, without moves: they count when they are committed.
    pub memory: Memory,
    /// Changes of the memory that the store keeps.
    pub kept: Vec<MemoryChange>,
    /// Time of the next pass if nothing changes.
    pub again: Option<OffsetDateTime>,
    /// Resources in dependency cycles, which garbage collection leaves alone.
    pub circular: BTreeSet<ObjectKey>,
}

pub(crate) struct Scopes<'a> {
    clusters: BTreeMap<Option<&'a str>, Scope<'a>>,
    clouds: BTreeMap<Option<&'a str>, Scope<'a>>,
    global_clouds: Scope<'a>,
    projects: Scope<'a>,
    candidates: Candidates,
}

type Targets<'a> = BTreeMap<Option<&'a str>, Vec<Rc<Target<'a>>>>;

impl<'a> Scopes<'a> {
    /// `going`: resources that this pass marks as deleted; they accept no new bindings.
    pub(crate) fn new(
        input: &PassInput<'a>,
        going: &BTreeMap<&ObjectKey, &ObjectKey>,
        values: &mut MetricValues<'a>,
    ) -> Self {
        let compared = input.config.metric_constraints;
        let candidates = input.config.candidates;
        let target = |target: Target<'a>| Rc::new(target.leave_out_deleted(going));
        let mut clusters = Targets::new();
        for resource in input.snapshot.of::<Cluster>() {
            let scope = candidates.scope_of(resource.stored.key.namespace.as_deref());
            let cluster = Target::from_cluster(resource, input.snapshot, values, compared);
            clusters.entry(scope).or_default().push(target(cluster));
        }
        let mut clouds = Targets::new();
        for resource in input.snapshot.of::<Cloud>() {
            let scope = resource.stored.key.namespace.as_deref();
            clouds
                .entry(scope)
                .or_default()
                .extend(Target::from_cloud(resource.stored, values, compared).map(target));
        }
        let global = input.snapshot.of::<GlobalCloud>();
        let global = global
            .filter_map(|resource| Target::from_cloud(resource.stored, values, compared))
            .map(target)
            .collect();
        let projects = input.snapshot.of::<Project>();
        let projects =
            projects.map(|resource| target(Target::from_project(resource, values, compared))).collect();
        let scopes = |targets: Targets<'a>| {
            targets.into_iter().map(|(key, targets)| (key, Scope::new(targets))).collect()
        };
        Self {
            clusters: scopes(clusters),
            clouds: scopes(clouds),
            global_clouds: Scope::new(global),
            projects: Scope::new(projects),
            candidates,
        }
    }

    /// Places for resources of a namespace: clusters, and clouds with those of the namespace first.
    pub(crate) fn for_namespace(
        &mut self,
        namespace: Option<&'a str>,
    ) -> (&mut Scope<'a>, [&mut Scope<'a>; 2]) {
        let nothing = || Scope::new(Vec::new());
        let clusters = self.clusters.entry(self.candidates.scope_of(namespace)).or_insert_with(nothing);
        let clouds = self.clouds.entry(namespace).or_insert_with(nothing);
        (clusters, [clouds, &mut self.global_clouds])
    }

    pub(crate) fn all_targets(&self) -> impl Iterator<Item = &Rc<Target<'a>>> {
        let places = self.clusters.values().chain(self.clouds.values());
        places.chain([&self.global_clouds, &self.projects]).flat_map(Scope::targets)
    }
}

impl Candidates {
    fn scope_of(self, namespace: Option<&str>) -> Option<&str> {
        match self {
            Self::Namespace => namespace,
            Self::All => None,
        }
    }
}

#[must_use]
pub fn make_pass(input: &PassInput<'_>) -> Pass {
    let PassInput { snapshot, config, memory, now, seed, .. } = *input;
    let garbage = gc::collect_garbage(snapshot);
    let mut values = MetricValues::new(snapshot, input.metrics, config, memory, now);
    let mut scopes = Scopes::new(input, &garbage.mark, &mut values);
    let mut draft = DraftedChanges::default();
    for target in scopes.all_targets() {
        upkeep::update_state(target, &mut draft);
    }
    let mut memory = Memory {
        clusters: cluster_memory(input),
        moves: memory.moves.clone(),
        waiting: values.into_waiting(),
    };
    memory.note_moves(0, config.reschedule_after, now);

    let mut placed = BTreeMap::new();
    for resource in
        snapshot.of::<Cluster>().filter(|resource| !garbage.mark.contains_key(&resource.stored.key))
    {
        let (_, clouds) = scopes.for_namespace(resource.stored.key.namespace.as_deref());
        if let Some(outcome) = place_cluster(resource, clouds, seed, now, &mut draft) {
            placed.insert(resource.stored.key.clone(), outcome);
        }
    }
    for resource in
        snapshot.of::<MagnumCluster>().filter(|resource| !garbage.mark.contains_key(&resource.stored.key))
    {
        let outcome = place_magnum_cluster(resource, &mut scopes.projects, snapshot, seed, &mut draft);
        if let Some(outcome) = outcome {
            placed.insert(resource.stored.key.clone(), outcome);
        }
    }

    let mut applications: Vec<TypedResource<'_, Application>> = snapshot.of::<Application>().collect();
    if is_planted(Canary::LastApplicationForgotten) {
        applications.pop();
    }
    let context = PassContext { snapshot, config, memory: &memory, now, seed };
    let mut verdicts: Vec<Verdict<'_>> = applications
        .iter()
        .map(|resource| {
            let (clusters, clouds) = scopes.for_namespace(resource.stored.key.namespace.as_deref());
            let creates = resource.value.spec.auto_cluster_create && config.cluster_creation.tosca.is_some();
            let with_owner = garbage.mark.contains_key(&resource.stored.key);
            context.decide(*resource, with_owner, clusters, creates.then_some(clouds))
        })
        .collect();
    let alive = applications.iter().filter(|resource| resource.value.metadata.deleted.is_none()).count();
    let limit = config.max_moves.limit_for(alive);
    let left = limit.saturating_sub(memory.moves_within(config.reschedule_after, now));
    let until = memory.next_move(config.reschedule_after, now);
    let until = until.or_else(|| Some(add_duration(now, config.reschedule_after)));
    moves::hold_moves(&mut verdicts, limit, left, until);

    let mut again = NextPass { now, next: None };
    let mut used = creation::created_in_use(snapshot);
    let mut decisions = BTreeMap::new();
    let mut writer = ObjectWriter { input, draft, used: &mut used };
    for (resource, mut verdict) in applications.into_iter().zip(verdicts) {
        again.schedule_at(verdict.again);
        writer.write(resource, &mut verdict);
        decisions.insert(resource.stored.key.clone(), verdict.decision);
    }
    let mut draft = writer.draft;
    delete_unused_clusters(input, &used, &mut memory, &mut draft, &mut again);
    delete_garbage(&garbage, snapshot, now, &mut draft);
    for outcome in placed.values() {
        if let BackendOutcome::WaitsForMetric { until } = outcome {
            again.schedule_at(Some(*until));
        }
    }
    let kept = memory_changes(&input.memory.clusters, &memory.clusters);
    Pass {
        decisions,
        placed,
        units: draft.into_units(snapshot),
        memory,
        kept,
        again: again.next,
        circular: garbage.circular.into_iter().cloned().collect(),
    }
}

struct NextPass {
    now: OffsetDateTime,
    next: Option<OffsetDateTime>,
}

impl NextPass {
    fn schedule_at(&mut self, time: Option<OffsetDateTime>) {
        let Some(time) = time.map(|time| time.max(add_duration(self.now, LEAST_PAUSE))) else { return };
        self.next = Some(self.next.map_or(time, |next| next.min(time)));
    }
}

/// Memory of clusters: the time since which each is not online, and whether created ones were ever online.
fn cluster_memory(input: &PassInput<'_>) -> BTreeMap<ObjectKey, ClusterMemory> {
    let known = |stored: &Stored, standing| {
        let memory = input.memory.clusters.get(&stored.key).copied().unwrap_or_default();
        memory.valid_since(stored.create_revision, standing)
    };
    input
        .snapshot
        .of::<Cluster>()
        .map(|resource| {
            let standing = input.snapshot.online_history(&resource.stored.key);
            let mut memory = known(resource.stored, standing);
            let down = !creation::is_up(resource.value.status.state);
            // While it is not online, its memory tracks every revision, so that a reader knows that no change was
            // missed.
            let least = if down { resource.stored.mod_revision } else { resource.stored.create_revision };
            memory.revision = memory.revision.max(least);
            // A future time came from a fast clock: waiting for it would take too long.
            let since = memory.not_online_since.map_or(input.now, |since| since.min(input.now));
            memory.not_online_since = down.then_some(since);
            memory.was_online |= resource.value.spec.auto_generated && standing.was_up;
            (resource.stored.key.clone(), memory)
        })
        .filter(|(_, memory)| !memory.is_empty())
        .collect()
}

/// Deletes unused clusters that were created for applications.
fn delete_unused_clusters(
    input: &PassInput<'_>,
    used: &BTreeSet<ObjectKey>,
    memory: &mut Memory,
    draft: &mut DraftedChanges,
    again: &mut NextPass,
) {
    for resource in input.snapshot.of::<Cluster>() {
        let (key, cluster) = (&resource.stored.key, resource.value);
        if !cluster.spec.auto_generated || cluster.metadata.deleted.is_some() {
            continue;
        }
        // A cluster that was never online needs no memory of use.
        let Some(kept) = memory.clusters.get_mut(key).filter(|kept| kept.was_online) else { continue };
        let since = kept.unused_since.map_or(input.now, |since| since.min(input.now));
        kept.unused_since = (!used.contains(key)).then_some(since);
        if let Some(since) = kept.unused_since {
            let until = add_duration(since, input.config.cluster_creation.deletion_retention);
            if until > input.now {
                again.schedule_at(Some(until));
            } else if let Some(object) = draft.object_mut(resource.stored, WriteKind::Unused)
                && object.metadata().deleted.is_none()
            {
                gc::mark_deleted(object, input.now);
                draft.depend_on_all_applications(key);
                draft.record_deletion(key, Deletion::Unused { since });
            }
        }
    }
}

fn memory_changes(
    before: &BTreeMap<ObjectKey, ClusterMemory>,
    after: &BTreeMap<ObjectKey, ClusterMemory>,
) -> Vec<MemoryChange> {
    let changed = after.iter().filter(|(key, memory)| before.get(*key) != Some(*memory));
    let changed = changed.map(|(key, memory)| MemoryChange { cluster: key.clone(), memory: Some(*memory) });
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    changed.chain(gone.map(|key| MemoryChange { cluster: key.clone(), memory: None })).collect()
}

fn delete_garbage(
    garbage: &gc::Garbage<'_>,
    snapshot: &Snapshot,
    now: OffsetDateTime,
    draft: &mut DraftedChanges,
) {
    for (key, owner) in &garbage.mark {
        let Some(stored) = snapshot.get(key) else { continue };
        if let Some(object) = draft.object_mut(stored, WriteKind::Garbage)
            && object.metadata().deleted.is_none()
        {
            gc::mark_deleted(object, now);
            draft.record_deletion(key, Deletion::WithOwner { owner: (*owner).clone() });
        }
    }
    for (application, cluster) in &garbage.release {
        if let Some(object) = draft.object_mut(application, WriteKind::Garbage) {
            gc::remove_owner(object, cluster);
        }
    }
    for stored in &garbage.finish {
        if draft.object_mut(stored, WriteKind::Garbage).is_some_and(gc::finish_deletion) {
            draft.delete(stored, WriteKind::Garbage);
            draft.record_deletion(&stored.key, Deletion::Done);
        }
    }
}

struct ObjectWriter<'p, 'i> {
    input: &'p PassInput<'i>,
    draft: DraftedChanges,
    used: &'p mut BTreeSet<ObjectKey>,
}

impl ObjectWriter<'_, '_> {
    fn write(&mut self, resource: TypedResource<'_, Application>, verdict: &mut Verdict<'_>) {
        let now = self.input.now;
        let key = &resource.stored.key;
        match &verdict.act {
            ApplicationAct::Nothing => return,
            ApplicationAct::Keep { well, forget } => {
                if !must_keep_application(resource.value, *well, *forget) {
                    return;
                }
                if let Some(application) = self.draft.edit_resource(resource, WriteKind::Application) {
                    keep_application(application, *well, *forget, now);
                }
            }
            ApplicationAct::Bind { to, moves } => {
                if let Some(application) = self.draft.edit_resource(resource, WriteKind::Application) {
                    bind_application(application, ResourceRef::from_key(to.key()), now);
                    application.status.auto_cluster_create_started = None;
                    clear_failure(application);
                }
                self.draft.add_basis(key, to.revisions_used());
                self.draft.record_binding(key, to.key().clone(), moves.is_some());
                self.used.insert(to.key().clone());
            }
            ApplicationAct::Fail(attempt) if attempt.counts => {
                if let Some(application) = self.draft.edit_resource(resource, WriteKind::Application) {
                    note_failure(application, attempt);
                }
            }
            ApplicationAct::Fail(_) => return,
            ApplicationAct::Create { cloud, moves } => {
                let (cloud, moves) = (Rc::clone(cloud), moves.is_some());
                self.create(resource, &cloud, verdict);
                if moves {
                    self.draft.counts_as_move(key);
                }
            }
        }
        self.draft.record_decision(key, &verdict.decision);
    }

    fn create(
        &mut self,
        resource: TypedResource<'_, Application>,
        cloud: &Target<'_>,
        verdict: &mut Verdict<'_>,
    ) {
        let PassInput { snapshot, config, now, seed, .. } = *self.input;
        let (key, application) = (&resource.stored.key, resource.value);
        let mut draw = SeededDraw::new(seed, &format!("cluster for {} at {now}", application.metadata.uid));
        let taken = |key: &ObjectKey| snapshot.get(key).is_some() || self.used.contains(key);
        let name = creation::draw_free_name(taken, key.namespace.as_deref(), &mut draw);
        let (Some(tosca), Some(name)) = (&config.cluster_creation.tosca, name) else { return };
        let cluster =
            creation::cluster_for_application(&name, application, cloud.key(), tosca, now, &mut draw);
        if let Some(application) = self.draft.edit_resource(resource, WriteKind::Application) {
            application.status.auto_cluster_create_started = Some(name.name.clone());
            if application.status.running_on.is_none() {
                application.status.state = ApplicationState::WaitingForClusterCreation;
            }
        }
        let write = ObjectWrite { key: name.clone(), revision: 0, object: Some(cluster.into_object()) };
        self.draft.write_along(key, write);
        self.draft.add_basis(key, cloud.revisions_used());
        self.used.insert(name.clone());
        verdict.decision.outcome = Outcome::Creates { cluster: name, cloud: cloud.key().clone() };
    }
}

/// True if the Kubernetes controller was not yet triggered for this version of the application.
fn is_untriggered(application: &Application) -> bool {
    let triggered = application.status.kube_controller_triggered.as_ref();
    triggered.is_none_or(|triggered| application.metadata.modified > *triggered)
}

fn must_keep_application(application: &Application, well: bool, forget: bool) -> bool {
    is_untriggered(application) || forget || (well && is_ours(application))
}

fn keep_application(application: &mut Application, well: bool, forget: bool, now: OffsetDateTime) {
    if is_untriggered(application) {
        trigger_update(application, now);
    }
    if forget {
        application.status.auto_cluster_create_started = None;
        let waits = application.status.state == ApplicationState::WaitingForClusterCreation;
        if waits && application.status.running_on.is_none() {
            application.status.state = ApplicationState::Pending;
        }
    }
    if well && is_ours(application) {
        clear_failure(application);
    }
}
