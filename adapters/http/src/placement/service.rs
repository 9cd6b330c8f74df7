//! Handles a request to the placement API: authenticates and authorizes it, dispatches it, and answers.

use std::sync::{Arc, OnceLock};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use madako_domain::placement::core::{Role, RoleBinding, Verb};
use madako_domain::placement::kind::{Kind, ObjectKey, Subresource};
use madako_domain::placement::object_value::Resource as _;
use madako_json::krake::json;
use madako_json::krake::timestamp::Timestamp;
use madako_protocol::placement::objects::Selection;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::Problem;
use super::query::Query;
use super::rbac::{self, GrantedScope, RequestScope, RequestedAccess};
use super::route::{self, Target};
use super::selector::Selector;
use super::wait::ServerClosing;
use super::watch::SelectedWatch;
use super::write::{ExpectedTag, WrittenResource};
use super::{ANONYMOUS, Authorization, PlacementApi, auth, change, cors, openapi};

/// Media type of an answer in Krake's server.
pub(super) const JSON: &str = "application/json; charset=utf-8";

pub(super) struct Service {
    pub(super) api: PlacementApi,
    streams: Arc<Semaphore>,
    /// Built at the first request for it.
    document: OnceLock<Bytes>,
}

/// A request in progress, without its body.
pub(super) struct RequestContext {
    pub(super) service: Arc<Service>,
    pub(super) parts: Parts,
    pub(super) query: Query,
    pub(super) user: String,
    fresh: Option<i64>,
}

pub(super) async fn answer_request(State(service): State<Arc<Service>>, request: Request) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let asked_first = request.method() == Method::OPTIONS;
    let settings = &service.api.settings;
    let (base, allowed) = (settings.problem_base_url.clone(), settings.cors_origin.clone());
    let mut response = match Box::pin(dispatch_request(service, request)).await {
        Ok(response) => response,
        Err(problem) => problem.to_response(&base),
    };
    // A page may read refusals too, except the refusal of a preflight.
    if !asked_first || response.status().is_success() {
        cors::add_headers(&allowed, origin.as_ref(), &mut response);
    }
    response
}

async fn dispatch_request(service: Arc<Service>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let PlacementApi { authenticators, settings, .. } = &service.api;
    let options = parts.method == Method::OPTIONS;
    let user = match options {
        true => ANONYMOUS.to_owned(),
        false => auth::authenticate_user(authenticators, settings.allow_anonymous, &parts).await?,
    };
    let target =
        route::find_target(parts.uri.path()).ok_or_else(|| Problem::without_detail(StatusCode::NOT_FOUND))?;
    if options {
        return cors::answer_preflight(&settings.cors_origin, &parts.headers);
    }
    if !target.allowed_methods().contains(&parts.method) {
        let allowed = target.allowed_methods().iter().map(Method::as_str).collect::<Vec<_>>().join(",");
        let allowed = HeaderValue::from_str(&allowed).expect("names of methods are visible characters");
        return Err(
            Problem::without_detail(StatusCode::METHOD_NOT_ALLOWED).with_header(header::ALLOW, allowed)
        );
    }
    let query = Query::read(parts.uri.query());
    let turn = RequestContext { service, parts, query, user, fresh: None };
    match target {
        Target::Index => Ok(json_answer(StatusCode::OK, &Index { version: &turn.settings().version })),
        Target::Release => Ok(json_answer(StatusCode::ACCEPTED, &"You released the Krake.")),
        Target::Me => turn.answer_current_user().await,
        Target::Document => {
            let document = turn
                .service
                .document
                .get_or_init(|| openapi::openapi_document(&turn.settings().version).to_string().into());
            Ok(([(header::CONTENT_TYPE, JSON)], document.clone()).into_response())
        }
        Target::Collection { kind, namespace } if turn.parts.method == Method::POST => {
            turn.create(kind, namespace, body).await
        }
        Target::Collection { kind, namespace } => turn.list_or_watch(kind, namespace).await,
        Target::Object(key) => match turn.parts.method {
            Method::PUT => turn.update(key, body).await,
            Method::DELETE => turn.delete(key).await,
            _ => turn.read(key).await,
        },
        Target::Part(key, part) => turn.update_part(key, part, body).await,
        Target::Explanation(application) => turn.explain(application).await,
        Target::Dependents(owner) => turn.answer_dependents(owner).await,
    }
}

#[derive(Serialize)]
struct Index<'a> {
    version: &'a str,
}

#[derive(Serialize)]
struct CurrentUser<'a> {
    user: &'a str,
    roles: Vec<&'a str>,
}

impl Service {
    pub(super) fn new(api: PlacementApi) -> Self {
        let streams = Arc::new(Semaphore::new(api.settings.streams));
        Self { api, streams, document: OnceLock::new() }
    }

    /// The present in the format of resources.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp::new(self.api.clock.now())
    }

    /// Waits until the view has reached the present state of the store.
    pub(super) async fn refresh(&self) -> Result<i64, Problem> {
        self.api.objects.refresh().await.map_err(|error| Problem::store(&error))
    }

    pub(super) fn take_stream_slot(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            let detail =
                format!("503: {} watches and waiting answers are open already", self.api.settings.streams);
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
                .with_header(header::RETRY_AFTER, HeaderValue::from_static("10"))
        })
    }

    /// Rights that a user's roles in the view grant to a request.
    pub(super) fn granted_scope(&self, user: &str, wish: &RequestedAccess<'_>) -> Option<GrantedScope> {
        let objects = &self.api.objects;
        let (_, bindings) = objects.list(Selection { kind: Kind::RoleBinding, namespace: None });
        let names: std::collections::BTreeSet<&str> = bindings
            .iter()
            .filter_map(|stored| RoleBinding::from_object(&stored.object))
            .filter(|binding| binding.users.iter().any(|known| known == user))
            .flat_map(|binding| binding.roles.iter().map(String::as_str))
            .collect();
        let roles: Vec<_> =
            names.iter().filter_map(|name| objects.get(&ObjectKey::new(Kind::Role, None, *name))).collect();
        rbac::granted_scope(
            wish,
            roles.iter().filter_map(|stored| Role::from_object(&stored.object)).flat_map(|role| &role.rules),
        )
    }
}

impl RequestContext {
    pub(super) fn settings(&self) -> &super::Settings {
        &self.service.api.settings
    }

    /// The store's revision at the time of the request or later, which the view has reached.
    pub(super) async fn refresh(&mut self) -> Result<i64, Problem> {
        match self.fresh {
            Some(revision) => Ok(revision),
            None => {
                let revision = self.service.refresh().await?;
                self.fresh = Some(revision);
                Ok(revision)
            }
        }
    }

    pub(super) fn closing_signal(&self) -> ServerClosing {
        self.parts.extensions.get::<ServerClosing>().cloned().unwrap_or_default()
    }

    pub(super) async fn authorize_access(
        &mut self,
        wish: &RequestedAccess<'_>,
    ) -> Result<GrantedScope, Problem> {
        match self.settings().authorization {
            Authorization::AlwaysAllow => Ok(GrantedScope::Whole),
            Authorization::AlwaysDeny => Err(Problem::without_detail(StatusCode::FORBIDDEN)),
            Authorization::Rbac if self.user == ANONYMOUS => {
                Err(Problem::without_detail(StatusCode::UNAUTHORIZED))
            }
            Authorization::Rbac => {
                self.refresh().await?;
                self.service
                    .granted_scope(&self.user, wish)
                    .ok_or_else(|| Problem::without_detail(StatusCode::FORBIDDEN))
            }
        }
    }

    pub(super) async fn authorize_one(
        &mut self,
        key: &ObjectKey,
        part: Option<Subresource>,
        verb: Verb,
    ) -> Result<(), Problem> {
        let place = key.namespace.as_deref().map_or(RequestScope::Global, RequestScope::Namespace);
        self.authorize_access(&RequestedAccess { kind: key.kind, part, verb, scope: place }).await.map(drop)
    }

    async fn answer_current_user(mut self) -> Result<Response, Problem> {
        self.refresh().await?;
        let (_, bindings) =
            self.service.api.objects.list(Selection { kind: Kind::RoleBinding, namespace: None });
        let bindings = bindings.iter().filter_map(|stored| RoleBinding::from_object(&stored.object));
        let of_user = bindings.filter(|binding| binding.users.contains(&self.user));
        let mut roles: Vec<&str> =
            of_user.flat_map(|binding| binding.roles.iter().map(String::as_str)).collect();
        roles.sort_unstable();
        roles.dedup();
        Ok(json_answer(StatusCode::OK, &CurrentUser { user: &self.user, roles }))
    }

    async fn list_or_watch(mut self, kind: Kind, namespace: Option<String>) -> Result<Response, Problem> {
        let place = match &namespace {
            Some(namespace) => RequestScope::Namespace(namespace),
            None if kind.namespaced() => RequestScope::Everywhere,
            None => RequestScope::Global,
        };
        let granted = self
            .authorize_access(&RequestedAccess { kind, part: None, verb: Verb::List, scope: place })
            .await?;
        let heartbeat = self.query.heartbeat_interval()?;
        let selector = Selector::read(&self.query)?;
        if self.query.watch() {
            self.watch(SelectedWatch { kind, namespace, granted, selector }, heartbeat).await
        } else {
            self.list(kind, namespace.as_deref(), &granted, &selector).await
        }
    }

    async fn read(mut self, key: ObjectKey) -> Result<Response, Problem> {
        self.authorize_one(&key, None, Verb::Get).await?;
        self.refresh().await?;
        let stored = self.service.api.objects.get(&key).ok_or_else(|| self.service.absent_problem(&key))?;
        ExpectedTag::read(&self.parts.headers).check_revision(Some(stored.mod_revision))?;
        Ok(object_answer(stored.wire.clone(), Some(stored.mod_revision)))
    }

    async fn create(
        mut self,
        kind: Kind,
        namespace: Option<String>,
        body: Body,
    ) -> Result<Response, Problem> {
        let place = namespace.as_deref().map_or(RequestScope::Global, RequestScope::Namespace);
        self.authorize_access(&RequestedAccess { kind, part: None, verb: Verb::Create, scope: place })
            .await?;
        let resource = change::parse_resource(kind, &self.read_text(body).await?)?;
        let awaited = self.query.awaited_condition(kind)?;
        let uid = self.service.api.uids.draw();
        let object = change::prepare_create(resource, namespace.as_deref(), &self.service.now(), uid)?;
        let expected = ExpectedTag::read(&self.parts.headers);
        if expected != ExpectedTag::Any {
            // The client requires an existing version, so the creation fails either way.
            self.refresh().await?;
            expected.check_revision(self.service.revision_of(&object.key()))?;
        }
        let awaited = self.expect(awaited).await?;
        let written = self.service.create(object).await?;
        self.finish(written, awaited).await
    }

    async fn update(mut self, key: ObjectKey, body: Body) -> Result<Response, Problem> {
        self.authorize_one(&key, None, Verb::Update).await?;
        let change = change::change_whole(key.kind, &self.read_text(body).await?)?;
        self.write(key, change).await
    }

    async fn delete(mut self, key: ObjectKey) -> Result<Response, Problem> {
        self.authorize_one(&key, None, Verb::Delete).await?;
        let force = self.query.is_forced();
        if force && self.service.discard(&key, &ExpectedTag::read(&self.parts.headers)).await? {
            // The value cannot be read, so the answer is empty.
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        let (resource, user) = (key.clone(), self.user.clone());
        let answer = self.write(key, change::delete(force)).await?;
        tracing::info!(%resource, user, force, "a client asked for a deletion");
        Ok(answer)
    }

    async fn update_part(
        mut self,
        key: ObjectKey,
        part: Subresource,
        body: Body,
    ) -> Result<Response, Problem> {
        self.authorize_one(&key, Some(part), Verb::Update).await?;
        // Krake looks for the resource first in this one case.
        if (key.kind, part) == (Kind::MagnumCluster, Subresource::Binding) {
            self.refresh().await?;
            self.service.api.objects.get(&key).ok_or_else(|| self.service.absent_problem(&key))?;
        }
        let text = match part {
            Subresource::Retry => String::new(),
            _ => self.read_text(body).await?,
        };
        let change = change::change_part(key.kind, part, &text)
            .ok_or_else(|| Problem::without_detail(StatusCode::NOT_FOUND))??;
        self.write(key, change).await
    }

    async fn write(mut self, key: ObjectKey, change: change::Change) -> Result<Response, Problem> {
        let awaited = self.query.awaited_condition(key.kind)?;
        self.refresh().await?;
        let expected = ExpectedTag::read(&self.parts.headers);
        let awaited = self.expect(awaited).await?;
        let written = self.service.change(&key, &expected, &change).await?;
        self.finish(written, awaited).await
    }

    /// Waits if the request asks for it, and answers.
    async fn finish(
        self,
        written: WrittenResource,
        awaited: Option<super::wait::AwaitedState>,
    ) -> Result<Response, Problem> {
        let written = match awaited {
            Some(wait) => wait.wait_for_state(written).await,
            None => written,
        };
        let revision = (!written.gone).then_some(written.revision);
        Ok(object_answer(written.serialized_object(), revision))
    }

    async fn read_text(&self, body: Body) -> Result<String, Problem> {
        let limit = self.settings().body_bytes;
        let too_large = || {
            let detail = format!("Maximum request body size {limit} exceeded");
            // The rest of the body is not read.
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
                .with_header(header::CONNECTION, HeaderValue::from_static("close"))
        };
        if body.size_hint().lower() > limit as u64 {
            return Err(too_large());
        }
        let bytes = match Limited::new(body, limit).collect().await {
            Ok(collected) => collected.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
            Err(error) => {
                let detail = format!("400: the body ended early: {error}");
                return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
            }
        };
        String::from_utf8(bytes.into())
            .map_err(|_| Problem::without_detail(StatusCode::UNSUPPORTED_MEDIA_TYPE))
    }
}

pub(super) fn json_answer<T: Serialize>(status: StatusCode, value: &T) -> Response {
    (status, [(header::CONTENT_TYPE, JSON)], json::to_text(value)).into_response()
}

/// A resource; `revision` is that of its last change, if it still exists.
fn object_answer(wire: Bytes, revision: Option<i64>) -> Response {
    let mut response = ([(header::CONTENT_TYPE, JSON)], wire).into_response();
    if let Some(revision) = revision {
        let tag = HeaderValue::from_str(&format!("\"{revision}\"")).expect("digits are visible characters");
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}
