//! The story of the objects of Kubernetes.

use std::collections::BTreeSet;

use madako_domain::resource::ResourceKey;
use madako_operation_runner::kubernetes::objects::static_resources::{DnsImages, static_resources};
use madako_simulation::planted::keep_quiet;
use serde_json::{Value, json};

use super::site::{Disturbance, INTERVAL, Site, Stopped, address};
use super::stories::Story;
use super::{kubernetes, play};

const CONTROL_PLANE: [usize; 3] = [0, 1, 2];
const CONTROL_PLANE_LABEL: &str = "cke.cybozu.com/master";

fn key(text: &str) -> ResourceKey {
    ResourceKey::parse(text).unwrap()
}

async fn store(site: &mut Site, text: &str, manifest: &mut Value) {
    let ResourceKey { kind, namespace, name } = key(text);
    manifest["kind"] = json!(kind);
    manifest["metadata"] = json!({"name": name, "namespace": namespace});
    site.put(&key(text).stored(), &manifest.to_string()).await;
}

fn has(site: &Site, text: &str) -> bool {
    site.nodes.objects().contains_key(&key(text))
}

/// A cluster with all objects; then a resource that the API servers refuse, a custom resource before its definition, a
/// deleted object, and a worker that leaves.
pub async fn tell(site: &mut Site) -> Result<(), Stopped> {
    kubernetes::bootstrap(site).await?;
    check_objects(site);
    // The refused resource comes first, and the other one does not need it.
    let refused = key("Namespace/refused");
    site.nodes.refuse_object(&refused, Some("not this name"));
    store(site, "Namespace/refused", &mut json!({"apiVersion": "v1"})).await;
    store(site, "ConfigMap/default/good", &mut json!({"apiVersion": "v1", "data": {"x": "1"}})).await;
    store(site, "Widget/default/w", &mut json!({"apiVersion": "example.com/v1"})).await;
    site.until(|site| has(site, "ConfigMap/default/good")).await?;
    assert!(!has(site, "Namespace/refused") && !has(site, "Widget/default/w"));
    let definition = json!({"group": "example.com", "names": {"kind": "Widget"}});
    let mut definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "spec": definition});
    store(site, "CustomResourceDefinition/widgets.example.com", &mut definition).await;
    site.until(|site| has(site, "Widget/default/w")).await?;
    site.nodes.refuse_object(&refused, None);
    site.until(|site| has(site, "Namespace/refused")).await?;
    // A changed definition is applied again, and an object that another client deletes.
    store(site, "ConfigMap/default/good", &mut json!({"apiVersion": "v1", "data": {"x": "2"}})).await;
    site.until(|site| site.nodes.objects()[&key("ConfigMap/default/good")]["data"]["x"] == "2").await?;
    site.nodes.delete_object(&key("Service/kube-system/cluster-dns"));
    site.until(|site| has(site, "Service/kube-system/cluster-dns")).await?;
    // Deleting a definition deletes nothing in Kubernetes.
    site.client.delete("/cke/resource/ConfigMap/default/good", None).await.unwrap();
    site.cluster(&CONTROL_PLANE, &[3]).await;
    site.until(|site| site.nodes.node_object(&address(4)).is_none()).await?;
    assert!(has(site, "ConfigMap/default/good"));
    site.settled(&CONTROL_PLANE).await?;
    // The last change has its time.
    site.pass(INTERVAL * 3).await;
    check_objects(site);
    Ok(())
}

fn check_objects(site: &Site) {
    let objects = site.nodes.objects();
    for resource in static_resources(&DnsImages::of_cke()) {
        let annotations = objects[&resource.key]["metadata"]["annotations"].clone();
        assert_eq!(annotations, resource.manifest.content()["metadata"]["annotations"], "{}", resource.key);
    }
    let wanted: BTreeSet<String> = CONTROL_PLANE.into_iter().map(address).collect();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    for name in ["default/kubernetes", "kube-system/cke-etcd"] {
        let subset = &objects[&key(&format!("Endpoints/{name}"))]["subsets"][0];
        let ready = subset["addresses"].as_array().unwrap().iter().map(|address| text(&address["ip"]));
        assert_eq!(ready.collect::<BTreeSet<_>>(), wanted, "{name}");
        let slice = &objects[&key(&format!("EndpointSlice/{name}"))]["endpoints"];
        let is_ready = |endpoint: &&Value| endpoint["conditions"]["ready"] == true;
        let ready = slice.as_array().unwrap().iter().filter(is_ready);
        assert_eq!(ready.map(|it| text(&it["addresses"][0])).collect::<BTreeSet<_>>(), wanted, "{name}");
    }
    assert_eq!(objects[&key("Service/kube-system/cke-etcd")]["spec"]["clusterIP"], "None");
    let server = text(&objects[&key("Service/kube-system/cluster-dns")]["spec"]["clusterIP"]);
    let unbound = text(&objects[&key("ConfigMap/kube-system/node-dns")]["data"]["unbound.conf"]);
    assert!(unbound.contains(&format!("stub-addr: {server}\n")), "{unbound}");
    assert!(objects[&key("ConfigMap/kube-system/cluster-dns")]["data"]["Corefile"].is_string());
    for number in 0..4 {
        let labels = site.nodes.node_object(&address(number)).unwrap().labels;
        assert_eq!(labels.contains_key(CONTROL_PLANE_LABEL), CONTROL_PLANE.contains(&number), "{labels:?}");
    }
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
    let mut seen = BTreeSet::new();
    for point in play(Story::Objects, &[]).points {
        let (operation, _, stage) = &point.of;
        if is_of_objects(operation) && seen.insert((operation.clone(), *stage)) {
            let played = Story::Objects.play(&[(point.at, Disturbance::Killed)]);
            assert_eq!(played.wrong, [""; 0], "{point:?}: {}", played.why);
        }
    }
    assert!(seen.len() >= 16, "{seen:?}");
}

fn is_of_objects(operation: &str) -> bool {
    ["resource-", "create-", "update-", "remove-", "wait-kubernetes"]
        .iter()
        .any(|it| operation.starts_with(it))
}
