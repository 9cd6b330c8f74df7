//! `GET .../{name}/dependents`: the resources that are deleted with a resource. An extension; Krake has no such path.
//!
//! Guarantees: the answer follows the rule of the garbage collection. Resources that the user may not list are counted
//! and not named. Resources whose deletion has already begun are left out.
//! Does not: lock anything. A dependent that is created between this answer and the deletion is deleted too.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use madako_domain::placement::core::Verb;
use madako_domain::placement::dependents::Dependents;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::objects::Stored;
use madako_protocol::placement::objects::Selection;
use serde_json::json;

use super::problem::Problem;
use super::rbac::GrantedScope;
use super::service::{RequestContext, json_answer};

impl RequestContext {
    /// Answers with the dependents that a deletion of the resource would delete.
    pub(super) async fn answer_dependents(mut self, owner: ObjectKey) -> Result<Response, Problem> {
        self.authorize_one(&owner, None, Verb::Get).await?;
        self.refresh().await?;
        let objects = &self.service.api.objects;
        let listed = Kind::ALL.iter().flat_map(|&kind| objects.list(Selection { kind, namespace: None }).1);
        let all: BTreeMap<ObjectKey, Arc<Stored>> =
            listed.map(|stored| (stored.key.clone(), stored)).collect();
        let root = all.get(&owner).ok_or_else(|| self.service.absent_problem(&owner))?;
        let dependents =
            Dependents::find_among(all.values().map(Arc::as_ref), |key| all.get(key).map(Arc::as_ref));
        let mut going = dependents.deleted_with(&[&root.key]).reached;
        going.retain(|key, _| *key != &owner && all[*key].object.metadata().deleted.is_none());

        let mut rights: BTreeMap<Kind, GrantedScope> = BTreeMap::new();
        let (mut named, mut hidden) = (Vec::new(), 0_usize);
        for key in going.into_keys() {
            let granted = match rights.entry(key.kind) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(self.visible_namespaces(key.kind).await?),
            };
            // A kind without namespaces is shown completely or not at all.
            let shown = granted.includes(key.namespace.as_deref());
            match shown {
                true => {
                    named.push(json!({"kind": key.kind.name(), "namespace": key.namespace, "name": key.name}))
                }
                false => hidden += 1,
            }
        }
        Ok(json_answer(StatusCode::OK, &json!({"dependents": named, "hidden": hidden})))
    }
}
