//! The endpoints of the API servers and of etcd, each as Endpoints and as EndpointSlice of the same name, and the Service
//! of etcd.

use madako_domain::cluster::Cluster;
use madako_domain::objects::{Manifest, ObjectName};
use serde_json::{Map, Value, json};

use super::{SYSTEM_NAMESPACE, system_object};

/// Name of the Service, the Endpoints and the EndpointSlice of etcd.
const ETCD: &str = "cke-etcd";
const KUBERNETES: &str = "kubernetes";
const DEFAULT_NAMESPACE: &str = "default";
const ENDPOINTS: &str = "Endpoints";
const SLICE: &str = "EndpointSlice";
const SLICES: &str = "discovery.k8s.io/v1";
const ETCD_PORT: u16 = 2379;

/// The addresses behind a Service, and whether each is ready.
#[derive(Debug, Clone, Copy)]
pub struct EndpointsPlan<'a> {
    namespace: &'static str,
    name: &'static str,
    /// Empty: the port has no name.
    port_name: &'static str,
    port: u16,
    /// In the order of the configuration.
    pub addresses: &'a [(String, bool)],
}

/// The addresses of the control plane, in the order of the configuration, and whether each is ready.
pub(crate) fn states_of_control_plane(
    cluster: &Cluster,
    is_ready: impl Fn(&str) -> bool,
) -> Vec<(String, bool)> {
    let nodes = cluster.control_plane();
    nodes.map(|node| (node.address.clone(), is_ready(&node.address))).collect()
}

impl<'a> EndpointsPlan<'a> {
    #[must_use]
    pub fn for_api_servers(addresses: &'a [(String, bool)]) -> Self {
        Self { namespace: DEFAULT_NAMESPACE, name: KUBERNETES, port_name: "https", port: 6443, addresses }
    }

    #[must_use]
    pub fn for_etcd(addresses: &'a [(String, bool)]) -> Self {
        Self { namespace: SYSTEM_NAMESPACE, name: ETCD, port_name: "", port: ETCD_PORT, addresses }
    }

    fn addresses_with_state(&self, is_ready: bool) -> Vec<&str> {
        let of_state = self.addresses.iter().filter(|(_, ready)| *ready == is_ready);
        of_state.map(|(address, _)| address.as_str()).collect()
    }

    /// The addresses that are ready.
    #[must_use]
    pub fn ready_addresses(&self) -> Vec<String> {
        self.addresses_with_state(true).into_iter().map(str::to_owned).collect()
    }

    #[must_use]
    pub fn all_addresses(&self) -> Vec<String> {
        self.addresses.iter().map(|(address, _)| address.clone()).collect()
    }

    #[must_use]
    pub fn endpoints(&self) -> Value {
        let addresses = |is_ready| -> Vec<Value> {
            self.addresses_with_state(is_ready).into_iter().map(|address| json!({"ip": address})).collect()
        };
        let mut port = json!({"port": self.port, "protocol": "TCP"});
        if !self.port_name.is_empty() {
            port["name"] = json!(self.port_name);
        }
        let mut subset = Map::from_iter([("ports".to_owned(), json!([port]))]);
        for (field, is_ready) in [("addresses", true), ("notReadyAddresses", false)] {
            let addresses = addresses(is_ready);
            if !addresses.is_empty() {
                subset.insert(field.to_owned(), json!(addresses));
            }
        }
        json!({
            "apiVersion": "v1",
            "kind": ENDPOINTS,
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
            },
            "subsets": [subset],
        })
    }

    /// The addresses that are ready come first: CKE compares them in order.
    #[must_use]
    pub fn slice(&self) -> Value {
        let endpoint =
            |is_ready| move |address| json!({"addresses": [address], "conditions": {"ready": is_ready}});
        let ready = self.addresses_with_state(true).into_iter().map(endpoint(true));
        let others = self.addresses_with_state(false).into_iter().map(endpoint(false));
        json!({
            "apiVersion": SLICES,
            "kind": SLICE,
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": {
                    "endpointslice.kubernetes.io/managed-by": "cke.cybozu.com",
                    "kubernetes.io/service-name": self.name,
                },
            },
            "addressType": "IPv4",
            "endpoints": ready.chain(others).collect::<Vec<_>>(),
            "ports": [{"name": self.port_name, "port": self.port, "protocol": "TCP"}],
        })
    }
}

/// The headless Service of etcd. Without it, the endpoints controller removes the Endpoints.
#[must_use]
pub fn etcd_service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": ETCD, "namespace": SYSTEM_NAMESPACE},
        "spec": {
            "clusterIP": "None",
            "ports": [{"port": ETCD_PORT, "protocol": "TCP"}],
            "type": "ClusterIP",
        },
    })
}

/// The objects of this module.
pub(super) fn objects() -> [ObjectName; 5] {
    [
        ObjectName::new("v1", ENDPOINTS, DEFAULT_NAMESPACE, KUBERNETES),
        ObjectName::new(SLICES, SLICE, DEFAULT_NAMESPACE, KUBERNETES),
        system_object("v1", "Service", ETCD),
        system_object("v1", ENDPOINTS, ETCD),
        system_object(SLICES, SLICE, ETCD),
    ]
}

/// True if the object has all wanted fields. Lists that carry addresses and ports have nothing else, in any order.
#[must_use]
pub fn is_as_wanted(found: &Value, wanted: &Manifest) -> bool {
    contains_value(found, wanted.content())
}

/// Fields that the API server adds to a wanted object are not a difference, except for addresses.
fn contains_value(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            let has_more = |field: &str| found.contains_key(field) && !wanted.contains_key(field);
            !["addresses", "notReadyAddresses"].into_iter().any(has_more)
                && wanted
                    .iter()
                    .all(|(field, value)| found.get(field).is_some_and(|it| contains_value(it, value)))
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len()
                && wanted.iter().all(|value| found.iter().any(|it| contains_value(it, value)))
        }
        (found, wanted) => found == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(ready: &[&str], others: &[&str]) -> Vec<(String, bool)> {
        let with = |is_ready| move |address: &&str| ((*address).to_owned(), is_ready);
        ready.iter().map(with(true)).chain(others.iter().map(with(false))).collect()
    }

    fn is_same(found: &Value, wanted: Value) -> bool {
        is_as_wanted(found, &Manifest::new(wanted).unwrap())
    }

    #[test]
    fn defaults_and_order_do_not_differ_and_addresses_and_states_do() {
        let wanted = addresses(&["10.0.0.1", "10.0.0.2"], &["10.0.0.3"]);
        let plan = EndpointsPlan::for_api_servers(&wanted);
        let mut endpoints = plan.endpoints();
        endpoints["metadata"]["uid"] = json!("u");
        endpoints["subsets"][0]["addresses"].as_array_mut().unwrap().reverse();
        assert!(is_same(&endpoints, plan.endpoints()));
        let mut slice = plan.slice();
        slice["endpoints"][0]["conditions"]["serving"] = json!(true);
        assert!(is_same(&slice, plan.slice()));
        for other in [
            addresses(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3"]),
            addresses(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], &[]),
            addresses(&["10.0.0.1", "10.0.0.2"], &[]),
            addresses(&["10.0.0.1", "10.0.0.4"], &["10.0.0.3"]),
        ] {
            let other = EndpointsPlan::for_api_servers(&other);
            assert!(!is_same(&endpoints, other.endpoints()), "{:?}", other.addresses);
            assert!(!is_same(&slice, other.slice()), "{:?}", other.addresses);
        }
        let etcd = EndpointsPlan::for_etcd(&wanted);
        assert!(!is_same(&endpoints, etcd.endpoints()) && !is_same(&slice, etcd.slice()), "the port differs");
        let mut second = plan.endpoints();
        second["subsets"].as_array_mut().unwrap().push(json!({}));
        assert!(!is_same(&second, plan.endpoints()));
    }

    #[test]
    fn names_of_objects_are_those_of_the_manifests() {
        let (api, etcd) = (EndpointsPlan::for_api_servers(&[]), EndpointsPlan::for_etcd(&[]));
        let wanted = [api.endpoints(), api.slice(), etcd_service(), etcd.endpoints(), etcd.slice()];
        assert_eq!(objects(), wanted.map(|wanted| Manifest::new(wanted).unwrap().name().clone()));
        assert_eq!(etcd.endpoints()["subsets"], json!([{"ports": [{"port": 2379, "protocol": "TCP"}]}]));
        assert_eq!(etcd.slice()["ports"], json!([{"name": "", "port": 2379, "protocol": "TCP"}]));
    }
}
