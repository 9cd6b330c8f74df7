//! Changes of a resource by requests: pure functions of the stored resource, the body and the time.
//!
//! A [`Change`] is made from a body once and may be applied to several versions of the resource. The writer compares
//! the version that it was applied to.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use madako_domain::placement::binding;
use madako_domain::placement::constraint::names::is_resource_name;
use madako_domain::placement::core::{
    GlobalMetric, GlobalMetricsProvider, Metric, MetricsProvider, Role, RoleBinding,
};
use madako_domain::placement::infrastructure::{
    Cloud, CloudBinding, GlobalCloud, GlobalInfrastructureProvider, InfrastructureProvider,
};
use madako_domain::placement::kind::{Kind, Subresource};
use madako_domain::placement::kubernetes::{
    Application, ApplicationComplete, ApplicationShutdown, ApplicationState, Cluster, ClusterBinding,
};
use madako_domain::placement::metadata::{CASCADE_DELETION, ResourceRef};
use madako_domain::placement::object_value::{Object, Resource, WithStatus};
use madako_domain::placement::openstack::{MagnumCluster, MagnumClusterBinding, Project};
use madako_json::krake::document::{self, RequestError, RequestedDocument};
use madako_json::krake::reader::Field;
use madako_json::krake::scalar::Secret;
use madako_json::krake::timestamp::Timestamp;

use super::problem::{Problem, ProblemTitle};

/// Hook that defers the deletion of an application.
const SHUTDOWN_HOOK: &str = "shutdown";

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Effect {
    /// The resource stays unchanged, and the answer shows it.
    Keep,
    Put(Object),
    /// The resource is deleted; the answer shows its last state.
    Delete(Object),
}

/// Computes the effect of a request on a stored resource.
pub(super) type Change = Box<dyn Fn(&Object, &Timestamp) -> Result<Effect, Problem> + Send + Sync>;

/// Runs code with the type of a kind.
macro_rules! with_type {
    ($kind:expr, $Type:ident => $code:expr) => {
        with_type!(@each $kind, $Type, $code, [
            Role RoleBinding GlobalMetric Metric GlobalMetricsProvider MetricsProvider
            GlobalInfrastructureProvider InfrastructureProvider GlobalCloud Cloud
            Application Cluster Project MagnumCluster
        ])
    };
    (@each $kind:expr, $Type:ident, $code:expr, [$($Kind:ident)*]) => {
        match $kind {
            $(Kind::$Kind => {
                type $Type = $Kind;
                $code
            })*
        }
    };
}

pub(super) fn parse_resource(kind: Kind, body: &str) -> Result<Object, Problem> {
    with_type!(kind, Type => read_body::<Type>(kind.name(), body).map(Resource::into_object))
}

/// The resource with the initial metadata.
pub(super) fn prepare_create(
    mut resource: Object,
    namespace: Option<&str>,
    now: &Timestamp,
    uid: String,
) -> Result<Object, Problem> {
    if let Some(namespace) = namespace
        && !is_resource_name(namespace)
    {
        let expected = "1 to 255 ASCII letters, digits, '_', and inside also ':', '.' or '-'";
        return Err(Problem::invalid_field("metadata.namespace", "another text in the path", expected));
    }
    let metadata = resource.metadata_mut();
    if let Some(namespace) = namespace {
        metadata.namespace = Some(namespace.to_owned());
    }
    metadata.uid = uid;
    metadata.created = now.clone();
    metadata.modified = now.clone();
    metadata.deleted = None;
    Ok(resource)
}

pub(super) fn change_whole(kind: Kind, body: &str) -> Result<Change, Problem> {
    with_type!(kind, Type => {
        let new = read_body::<Type>(kind.name(), body)?;
        Ok(Box::new(move |stored, now| match Type::from_object(stored) {
            Some(stored) => merge_update(stored, new.clone(), now),
            None => Ok(Effect::Keep),
        }))
    })
}

fn merge_update<T: Resource>(stored: &T, new: T, now: &Timestamp) -> Result<Effect, Problem> {
    let refused = |status, detail| Err(Problem::with_title(status, ProblemTitle::UpdateError, detail));
    if stored.metadata().deleted.is_some() {
        let present: BTreeSet<&String> = stored.metadata().finalizers.iter().collect();
        if new.metadata().finalizers.iter().any(|finalizer| !present.contains(finalizer)) {
            let detail = "Finalizers can only be removed if a deletion is in progress.";
            return refused(StatusCode::CONFLICT, detail);
        }
    }
    let mut merged = stored.clone();
    document::update_document(T::KIND.name(), &mut merged, new).map_err(Problem::immutable_field)?;
    if merged == *stored {
        // Krake accepts an empty update of this kind.
        if T::KIND == Kind::GlobalMetricsProvider {
            return Ok(Effect::Keep);
        }
        return refused(StatusCode::BAD_REQUEST, "The body contained no update.");
    }
    merged.metadata_mut().modified = now.clone();
    let gone = merged.metadata().deleted.is_some() && merged.metadata().finalizers.is_empty();
    let merged = merged.into_object();
    Ok(if gone { Effect::Delete(merged) } else { Effect::Put(merged) })
}

/// Deletes a resource: at once, or once finalizers and dependents are gone.
pub(super) fn delete(force: bool) -> Change {
    Box::new(move |stored, now| {
        let mut object = stored.clone();
        // As in Krake, only applications and clusters can be deleted by force.
        if force && matches!(object, Object::Application(_) | Object::Cluster(_)) {
            object.metadata_mut().deleted = Some(now.clone());
            return Ok(Effect::Delete(object));
        }
        if object.metadata().deleted.is_some() {
            return Ok(Effect::Keep);
        }
        if let Object::Application(application) = &mut object
            && application.spec.hooks.iter().any(|hook| hook == SHUTDOWN_HOOK)
        {
            application.status.state = ApplicationState::WaitingForCleaning;
        }
        let metadata = object.metadata_mut();
        metadata.deleted = Some(now.clone());
        if !metadata.finalizers.iter().any(|finalizer| finalizer == CASCADE_DELETION) {
            metadata.finalizers.push(CASCADE_DELETION.to_owned());
        }
        Ok(Effect::Put(object))
    })
}

/// Replaces a part of a resource. `None` if the kind has no such part.
pub(super) fn change_part(kind: Kind, part: Subresource, body: &str) -> Option<Result<Change, Problem>> {
    Some(match (kind, part) {
        (Kind::Application, Subresource::Status) => parse_status_change::<Application>(body),
        (Kind::Cluster, Subresource::Status) => parse_status_change::<Cluster>(body),
        (Kind::MagnumCluster, Subresource::Status) => parse_status_change::<MagnumCluster>(body),
        (Kind::Project, Subresource::Status) => parse_status_change::<Project>(body),
        (Kind::Cloud, Subresource::Status) => parse_status_change::<Cloud>(body),
        (Kind::GlobalCloud, Subresource::Status) => parse_status_change::<GlobalCloud>(body),
        (Kind::Application, Subresource::Binding) => application_binding(body),
        (Kind::Cluster, Subresource::Binding) => cluster_binding(body),
        (Kind::MagnumCluster, Subresource::Binding) => magnum_binding(body),
        (Kind::Application, Subresource::Complete) => parse_complete_change(body),
        (Kind::Application, Subresource::Shutdown) => shutdown(body),
        (Kind::Application, Subresource::Retry) => Ok(retry()),
        _ => return None,
    })
}

fn parse_status_change<T: WithStatus + 'static>(body: &str) -> Result<Change, Problem>
where
    T::Status: Send + Sync,
{
    let new = accept_request(T::status_from_request(body))?;
    Ok(Box::new(move |stored, _| {
        let Some(stored) = T::from_object(stored) else { return Ok(Effect::Keep) };
        let mut merged = stored.clone();
        document::update_document(T::KIND.name(), merged.status_mut(), new.clone()).map_err(
            |mut error| {
                for problem in &mut error.problems {
                    problem.field.insert_str(0, "status.");
                }
                Problem::immutable_field(error)
            },
        )?;
        Ok(effect_of(stored, merged))
    }))
}

fn application_binding(body: &str) -> Result<Change, Problem> {
    let cluster = read_body::<ClusterBinding>("ClusterBinding", body)?.cluster;
    check_reference("cluster", &cluster, &[Kind::Cluster])?;
    Ok(change_resource::<Application>(move |application, now| {
        let bound = application.status.scheduled_to.as_ref();
        if bound.is_some_and(|bound| binding::is_same_resource(bound, &cluster))
            && application.status.scheduled.is_some()
        {
            // The decision did not change, so `scheduled` does not change either (Krake's "Scheduling", "scheduled").
            binding::trigger_update(application, now.instant());
        } else {
            binding::bind_application(application, cluster.clone(), now.instant());
        }
        Ok(())
    }))
}

fn cluster_binding(body: &str) -> Result<Change, Problem> {
    let cloud = read_body::<CloudBinding>("CloudBinding", body)?.cloud;
    check_reference("cloud", &cloud, &[Kind::Cloud, Kind::GlobalCloud])?;
    Ok(change_resource::<Cluster>(move |cluster, now| {
        binding::bind_cluster(cluster, cloud.clone(), now.instant());
        Ok(())
    }))
}

fn magnum_binding(body: &str) -> Result<Change, Problem> {
    let MagnumClusterBinding { project, template, .. } = read_body("MagnumClusterBinding", body)?;
    check_reference("project", &project, &[Kind::Project])?;
    Ok(change_resource::<MagnumCluster>(move |cluster, _| {
        binding::bind_magnum_cluster(cluster, project.clone(), template.clone());
        Ok(())
    }))
}

fn parse_complete_change(body: &str) -> Result<Change, Problem> {
    let token = read_body::<ApplicationComplete>("Complete", body)?.token;
    Ok(change_resource::<Application>(move |application, now| {
        check_token(application.status.complete_token.as_ref(), token.as_ref())?;
        application.status.state = ApplicationState::ReadyForAction;
        application.metadata.deleted.get_or_insert_with(|| now.clone());
        Ok(())
    }))
}

fn shutdown(body: &str) -> Result<Change, Problem> {
    let token = read_body::<ApplicationShutdown>("Shutdown", body)?.token;
    Ok(change_resource::<Application>(move |application, _| {
        check_token(application.status.shutdown_token.as_ref(), token.as_ref())?;
        let status = &mut application.status;
        if matches!(status.state, ApplicationState::WaitingForCleaning | ApplicationState::Degraded) {
            status.state = ApplicationState::ReadyForAction;
            status.shutdown_grace_period = None;
        }
        Ok(())
    }))
}

fn retry() -> Change {
    change_resource::<Application>(|application, _| {
        let status = &mut application.status;
        if status.state != ApplicationState::Degraded {
            let detail = "No migration or deletion retry needed";
            return Err(Problem::with_title(StatusCode::BAD_REQUEST, ProblemTitle::UpdateError, detail));
        }
        status.state = ApplicationState::WaitingForCleaning;
        status.shutdown_grace_period = None;
        Ok(())
    })
}

fn change_resource<T: Resource>(
    change: impl Fn(&mut T, &Timestamp) -> Result<(), Problem> + Send + Sync + 'static,
) -> Change {
    Box::new(move |stored, now| {
        let Some(stored) = T::from_object(stored) else { return Ok(Effect::Keep) };
        let mut changed = stored.clone();
        change(&mut changed, now)?;
        Ok(effect_of(stored, changed))
    })
}

/// An unchanged resource is not written.
fn effect_of<T: Resource>(stored: &T, changed: T) -> Effect {
    if changed == *stored { Effect::Keep } else { Effect::Put(changed.into_object()) }
}

fn check_reference(field: &str, reference: &ResourceRef, kinds: &[Kind]) -> Result<(), Problem> {
    let fits = |kind: &Kind| {
        kind.api().name() == reference.api
            && kind.name() == reference.kind
            && kind.namespaced() == reference.namespace.is_some()
    };
    if kinds.iter().any(fits) {
        return Ok(());
    }
    let names: Vec<_> =
        kinds.iter().map(|kind| format!("{} of {}", kind.name(), kind.api().name())).collect();
    let got = format!(
        "{:?} of {:?}",
        super::query::shorten_parameter(&reference.kind),
        super::query::shorten_parameter(&reference.api)
    );
    Err(Problem::invalid_field(field, got, format!("a reference to a {}", names.join(", or a "))))
}

/// Compares all bytes regardless of differences, so that the duration reveals nothing about the token.
fn check_token(stored: Option<&Secret>, given: Option<&Secret>) -> Result<(), Problem> {
    let (Some(stored), Some(given)) = (stored, given) else { return Err(Problem::wrong_token()) };
    let (stored, given) = (stored.reveal().as_bytes(), given.reveal().as_bytes());
    let differs = stored.iter().zip(given).fold(0, |differs, (one, other)| differs | (one ^ other));
    if stored.len() == given.len() && std::hint::black_box(differs) == 0 {
        Ok(())
    } else {
        Err(Problem::wrong_token())
    }
}

fn read_body<T: Field>(subject: &str, body: &str) -> Result<T, Problem> {
    accept_request(document::from_request::<T>(subject, body))
}

fn accept_request<T>(read: Result<RequestedDocument<T>, RequestError>) -> Result<T, Problem> {
    match read {
        Ok(read) => {
            if !read.passed_over.is_empty() {
                tracing::debug!(
                    fields = ?read.passed_over,
                    "a request has fields that krakectl sends by mistake; they are ignored"
                );
            }
            Ok(read.value)
        }
        Err(RequestError::NotJson(_)) => Err(Problem::without_detail(StatusCode::UNSUPPORTED_MEDIA_TYPE)),
        Err(RequestError::Invalid(error)) => Err(Problem::invalid_input(error)),
    }
}
