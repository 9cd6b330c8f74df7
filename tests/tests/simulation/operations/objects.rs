//! The scripted history of a cluster whose Kubernetes objects change and differ.

use std::collections::BTreeSet;

use madako_domain::resource::ResourceKey;
use madako_operation_runner::kubernetes::objects::apply::WantedResource;
use madako_operation_runner::kubernetes::objects::static_resources::{DnsImages, static_resources};
use madako_simulation::planted::keep_quiet;
use serde_json::{Value, json};

use super::site::{Disturbance, Site, Stopped, address};
use super::stories::Story;
use super::{kubernetes, play};

const CONTROL_PLANE: [usize; 3] = [0, 1, 2];
const CONTROL_PLANE_LABEL: &str = "cke.cybozu.com/master";

fn key(text: &str) -> ResourceKey {
    ResourceKey::parse(text).unwrap()
}

async fn store_resource(site: &mut Site, text: &str, manifest: &mut Value) {
    let ResourceKey { kind, namespace, name } = key(text);
    manifest["kind"] = json!(kind);
    manifest["metadata"]["name"] = json!(name);
    manifest["metadata"]["namespace"] = json!(namespace);
    site.put(&key(text).stored(), &manifest.to_string()).await;
}

fn has_object(site: &Site, text: &str) -> bool {
    site.nodes.objects().contains_key(&key(text))
}

/// The certificate of a webhook, as its Secret has it.
fn read_certificate(site: &Site, text: &str) -> Option<String> {
    let objects = site.nodes.objects();
    let found = objects.get(&key(text))?["data"]["tls.crt"].as_str()?;
    (!found.is_empty()).then(|| found.to_owned())
}

/// A cluster with all objects; then a resource that the API servers refuse, a custom resource before its definition, a
/// deleted object, the certificate of a webhook, and a worker that leaves.
pub async fn tell(site: &mut Site) -> Result<(), Stopped> {
    kubernetes::bootstrap(site).await?;
    site.until(has_objects).await?;
    // The refused resource comes first, and the other one does not need it.
    let refused = key("Namespace/refused");
    site.nodes.refuse_object(&refused, Some("not this name"));
    store_resource(site, "Namespace/refused", &mut json!({"apiVersion": "v1"})).await;
    store_resource(site, "ConfigMap/default/good", &mut json!({"apiVersion": "v1", "data": {"x": "1"}}))
        .await;
    store_resource(site, "Widget/default/w", &mut json!({"apiVersion": "example.com/v1"})).await;
    site.until(|site| has_object(site, "ConfigMap/default/good")).await?;
    assert!(!has_object(site, "Namespace/refused") && !has_object(site, "Widget/default/w"));
    let definition = json!({"group": "example.com", "names": {"kind": "Widget"}});
    let mut definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "spec": definition});
    store_resource(site, "CustomResourceDefinition/widgets.example.com", &mut definition).await;
    site.until(|site| has_object(site, "Widget/default/w")).await?;
    site.nodes.refuse_object(&refused, None);
    site.until(|site| has_object(site, "Namespace/refused")).await?;
    // A changed definition is applied again, and an object that another client deletes.
    store_resource(site, "ConfigMap/default/good", &mut json!({"apiVersion": "v1", "data": {"x": "2"}}))
        .await;
    site.until(|site| site.nodes.objects()[&key("ConfigMap/default/good")]["data"]["x"] == "2").await?;
    site.nodes.delete_object(&key("Service/kube-system/cluster-dns"));
    site.until(|site| has_object(site, "Service/kube-system/cluster-dns")).await?;
    // The Secret of a webhook has a certificate, and gets another one if it cannot be read.
    let hook = "Secret/default/hook";
    let metadata = json!({"annotations": {"cke.cybozu.com/issue-cert": "hook"}});
    store_resource(site, hook, &mut json!({"apiVersion": "v1", "metadata": metadata})).await;
    site.until(|site| read_certificate(site, hook).is_some()).await?;
    site.nodes.patch_object(&key(hook), &json!({"data": {"tls.crt": ""}}));
    site.until(|site| read_certificate(site, hook).is_some()).await?;
    // Deleting a definition deletes nothing in Kubernetes.
    site.client.delete("/cke/resource/ConfigMap/default/good", None).await.unwrap();
    site.cluster(&CONTROL_PLANE, &[3]).await;
    site.until(|site| site.nodes.node_object(&address(4)).is_none()).await?;
    assert!(has_object(site, "ConfigMap/default/good"));
    site.settled(&CONTROL_PLANE).await?;
    site.until(has_objects).await
}

/// All objects of the service are as wanted.
fn has_objects(site: &Site) -> bool {
    let objects = site.nodes.objects();
    let find = |text: &str| objects.get(&key(text)).unwrap_or(&Value::Null);
    let is_applied = |resource: &WantedResource| {
        let wanted = &resource.manifest.content()["metadata"]["annotations"];
        objects.get(&resource.key).is_some_and(|found| found["metadata"]["annotations"] == *wanted)
    };
    let wanted: BTreeSet<String> = CONTROL_PLANE.into_iter().map(address).collect();
    let texts = |list: &Value, field: &str| -> BTreeSet<String> {
        let items = list.as_array().into_iter().flatten();
        items.filter_map(|item| item.pointer(field)?.as_str().map(str::to_owned)).collect()
    };
    let has_endpoints = |name: &str| {
        let subset = &find(&format!("Endpoints/{name}"))["subsets"][0];
        let slice = &find(&format!("EndpointSlice/{name}"))["endpoints"];
        let is_ready = |endpoint: &Value| endpoint["conditions"]["ready"] == true;
        texts(&subset["addresses"], "/ip") == wanted
            && texts(slice, "/addresses/0") == wanted
            && slice.as_array().is_some_and(|slice| slice.iter().all(is_ready))
    };
    let server = find("Service/kube-system/cluster-dns")["spec"]["clusterIP"].as_str().unwrap_or_default();
    let unbound = find("ConfigMap/kube-system/node-dns")["data"]["unbound.conf"].as_str().unwrap_or_default();
    let is_labelled = |number: usize| {
        let labels = site.nodes.node_object(&address(number)).map(|node| node.labels);
        labels.is_some_and(|it| it.contains_key(CONTROL_PLANE_LABEL) == CONTROL_PLANE.contains(&number))
    };
    static_resources(&DnsImages::default_images()).iter().all(is_applied)
        && ["default/kubernetes", "kube-system/cke-etcd"].into_iter().all(has_endpoints)
        && find("Service/kube-system/cke-etcd")["spec"]["clusterIP"] == "None"
        && unbound.contains(&format!("stub-addr: {server}\n"))
        && find("ConfigMap/kube-system/cluster-dns")["data"]["Corefile"].is_string()
        && (0..4).all(is_labelled)
}

#[test]
fn refused_resource_backs_off_alone_and_custom_resources_wait_for_their_definition() {
    let played = play(Story::Objects, &[]);
    let begun: BTreeSet<&str> = played.points.iter().map(|point| point.of.0.as_str()).collect();
    let wanted = ["resource-apply", "create-endpoints", "create-etcd-service", "update-node", "remove-node"];
    assert!(wanted.iter().all(|operation| begun.contains(operation)), "{begun:?}");
}

#[test]
fn leaders_killed_while_objects_are_applied_change_nothing_of_the_result() {
    keep_quiet();
    let mut observed = BTreeSet::new();
    for point in play(Story::Objects, &[]).points {
        let (operation, _, stage) = &point.of;
        if is_of_objects(operation) && observed.insert((operation.clone(), *stage)) {
            let played = Story::Objects.play(&[(point.at, Disturbance::Killed)]);
            assert_eq!(played.wrong, [""; 0], "{point:?}: {}", played.why);
        }
    }
    assert!(observed.len() >= 16, "{observed:?}");
}

fn is_of_objects(operation: &str) -> bool {
    ["resource-", "create-", "update-", "remove-"].iter().any(|it| operation.starts_with(it))
}
