//! Reads the objects of Kubernetes for one reconcile pass.

use std::collections::BTreeSet;
use std::sync::Arc;

use madako_domain::certificate::Validity;
use madako_domain::cluster::Cluster;
use madako_domain::objects::{
    Annotations, Content, FoundObject, Manifest, NodeObject, ObjectAnswers, ObjectName,
};
use madako_domain::resource::ResourceKey;
use madako_protocol::authorities::Authorities;
use madako_protocol::components::Components;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::kubernetes::objects::apply::ReadResources;
use crate::kubernetes::objects::decide::compared_objects;
use crate::kubernetes::objects::static_resources::{DnsImages, static_resources};
use crate::kubernetes::objects::webhooks::{needed_certificate, present_certificate};
use crate::limits::{MOST_READS, OBJECTS_DEADLINE, RESOURCE_DEADLINE};

/// The objects of Kubernetes that a collection reads.
#[derive(Debug, Clone, Default)]
pub(super) struct ObjectsToRead {
    /// Their annotations show whether they are as wanted.
    resources: Vec<ObjectName>,
    /// Their annotations and the certificate of a webhook do.
    certified: Vec<ObjectName>,
    /// Their contents do.
    compared: Vec<ObjectName>,
}

impl ObjectsToRead {
    pub(super) fn new(cluster: &Cluster, user: &ReadResources) -> Self {
        let of_service = static_resources(&DnsImages::default_images());
        let wanted = of_service.iter().chain(&user.wanted).map(|resource| &resource.manifest);
        let (certified, resources): (Vec<_>, Vec<_>) =
            wanted.partition(|manifest| needed_certificate(manifest).is_some());
        let names = |manifests: Vec<&Manifest>| manifests.into_iter().map(|it| it.name().clone()).collect();
        Self {
            resources: names(resources),
            certified: names(certified),
            compared: compared_objects(&cluster.dns_service),
        }
    }

    pub(super) fn keys(&self) -> BTreeSet<ResourceKey> {
        let Self { resources, certified, compared } = self;
        resources.iter().chain(certified).chain(compared).map(|object| object.key.clone()).collect()
    }

    pub(super) fn leave_out(&mut self, left_out: &BTreeSet<ResourceKey>) {
        let Self { resources, certified, compared } = self;
        for objects in [resources, certified, compared] {
            objects.retain(|object| !left_out.contains(&object.key));
        }
    }

    /// Notes the objects without an answer.
    fn note_unread(&self, answers: &mut ObjectAnswers) {
        let why = || format!("not read in time: all reads together took {OBJECTS_DEADLINE:?}");
        for object in self.resources.iter().chain(&self.certified) {
            answers.resources.entry(object.key.clone()).or_insert_with(|| FoundObject::Unread(why()));
        }
        for object in &self.compared {
            answers.contents.entry(object.key.clone()).or_insert_with(|| FoundObject::Unread(why()));
        }
    }
}

enum ObjectAnswer {
    Nodes(Option<Vec<NodeObject>>),
    Resource(ResourceKey, FoundObject<Annotations>),
    Certified(ResourceKey, FoundObject<Annotations>, Option<Validity>),
    Content(ResourceKey, FoundObject<Content>),
}

/// Asks the API servers for all objects. An object without an answer in time is unread, and is not decided on.
pub(super) async fn ask_objects(
    components: &Arc<dyn Components>,
    authorities: &Arc<dyn Authorities>,
    servers: &[String],
    wanted: &ObjectsToRead,
) -> ObjectAnswers {
    let servers = Arc::new(servers.to_vec());
    let mut running: JoinSet<ObjectAnswer> = JoinSet::new();
    let shared = || (Arc::clone(components), Arc::clone(&servers));
    let (for_nodes, of_nodes) = shared();
    running.spawn(async move { ObjectAnswer::Nodes(for_nodes.read_node_objects(&of_nodes).await.ok()) });
    // Decisions on all other objects need these few, which wait for no place.
    for object in wanted.compared.iter().cloned() {
        let (components, servers) = shared();
        running.spawn(async move {
            let found = components.read_object(&servers, &object).await;
            ObjectAnswer::Content(object.key, found)
        });
    }
    let places = Arc::new(Semaphore::new(MOST_READS));
    for object in wanted.resources.iter().cloned() {
        let ((components, servers), places) = (shared(), Arc::clone(&places));
        running.spawn(async move {
            // The semaphore is never closed.
            let _place = places.acquire().await;
            let found = end_in_time(components.read_annotations(&servers, &object)).await;
            ObjectAnswer::Resource(object.key, found)
        });
    }
    for object in wanted.certified.iter().cloned() {
        let ((components, servers), places) = (shared(), Arc::clone(&places));
        let authorities = Arc::clone(authorities);
        running.spawn(async move {
            let _place = places.acquire().await;
            // The private key beside the certificate ends with this task.
            let found = end_in_time(components.read_object(&servers, &object)).await;
            let certificate = found.content().and_then(present_certificate);
            let validity = certificate.and_then(|text| authorities.validity(&text));
            ObjectAnswer::Certified(object.key, annotations_of(found), validity)
        });
    }
    let mut answers = ObjectAnswers::default();
    let end = Instant::now() + OBJECTS_DEADLINE;
    while let Ok(Some(joined)) = timeout_at(end, running.join_next()).await {
        // A read that ended early leaves its object without an answer.
        match joined {
            Ok(ObjectAnswer::Nodes(nodes)) => answers.nodes = nodes,
            Ok(ObjectAnswer::Resource(key, found)) => drop(answers.resources.insert(key, found)),
            Ok(ObjectAnswer::Certified(key, found, validity)) => {
                answers.certificates.insert(key.clone(), validity);
                answers.resources.insert(key, found);
            }
            Ok(ObjectAnswer::Content(key, found)) => drop(answers.contents.insert(key, found)),
            Err(_) => {}
        }
    }
    wanted.note_unread(&mut answers);
    answers
}

/// Ends the read of a resource that is not answered, so that another one gets its place.
async fn end_in_time<T>(read: impl Future<Output = FoundObject<T>>) -> FoundObject<T> {
    let late = |_| FoundObject::Unread(format!("no API server answered within {RESOURCE_DEADLINE:?}"));
    timeout(RESOURCE_DEADLINE, read).await.unwrap_or_else(late)
}

/// The annotations of an object that was read as a whole.
fn annotations_of(found: FoundObject<Content>) -> FoundObject<Annotations> {
    let text = |value: &Content| value.as_str().unwrap_or_default().to_owned();
    match found {
        FoundObject::Exists(content) => {
            let annotations = content["metadata"]["annotations"].as_object().into_iter().flatten();
            FoundObject::Exists(annotations.map(|(name, value)| (name.clone(), text(value))).collect())
        }
        FoundObject::Missing => FoundObject::Missing,
        FoundObject::KindUnknown => FoundObject::KindUnknown,
        FoundObject::Unread(why) => FoundObject::Unread(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actor::tests::{HANGING, Members, Servers};
    use crate::kubernetes::objects::service_account;

    /// Asks for so many resources whose reads are never answered, and for one more.
    async fn ask_beside_hanging(resources: usize) -> (u64, ObjectAnswers) {
        let components: Arc<dyn Components> = Arc::new(Servers { healthy: &[], taints: None });
        let authorities: Arc<dyn Authorities> = Arc::new(Members(None));
        let config_map = |name: &str| ObjectName::new("v1", "ConfigMap", "a", name);
        let hanging = (0..resources).map(|number| config_map(&format!("{HANGING}{number}")));
        let wanted = ObjectsToRead {
            resources: hanging.chain([config_map("last")]).collect(),
            certified: Vec::new(),
            compared: vec![service_account()],
        };
        let began = Instant::now();
        let answers = ask_objects(&components, &authorities, &["a".to_owned()], &wanted).await;
        assert!(matches!(answers.contents[&service_account().key], FoundObject::Exists(_)), "others need it");
        assert_eq!(answers.resources.len(), resources + 1, "each is named");
        (began.elapsed().as_secs(), answers)
    }

    #[tokio::test(start_paused = true)]
    async fn reads_that_hang_keep_no_other_object_from_its_read() {
        let last = ResourceKey::parse("ConfigMap/a/last").unwrap();
        let (took, answers) = ask_beside_hanging(3 * MOST_READS).await;
        assert_eq!(took, 3 * RESOURCE_DEADLINE.as_secs());
        assert!(matches!(answers.resources[&last], FoundObject::Exists(_)));
        let (took, answers) = ask_beside_hanging(100 * MOST_READS).await;
        assert_eq!(took, OBJECTS_DEADLINE.as_secs());
        let FoundObject::Unread(why) = &answers.resources[&last] else { panic!("it had no place in time") };
        assert!(why.contains("not read in time"), "{why}");
    }
}
