//! Test support: access to etcd as an operator has it, with another client than the service's.

use etcd_client::{Client, ConnectOptions, DeleteOptions, GetOptions, KeyValue};
use serde_json::Value;

/// Keys below CKE's prefix.
#[derive(Clone)]
pub(crate) struct Keys {
    endpoint: String,
    options: Option<ConnectOptions>,
}

/// The stored cluster configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// Number of writes of the key.
    pub(crate) version: i64,
    /// Revision of the last write.
    pub(crate) revision: i64,
    pub(crate) control_plane: Vec<String>,
    pub(crate) workers: Vec<String>,
}

impl Cluster {
    /// Addresses of the nodes, in order.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let mut nodes = [self.control_plane.as_slice(), &self.workers].concat();
        nodes.sort();
        nodes
    }
}

impl Keys {
    pub(crate) fn at(endpoint: &str, options: Option<ConnectOptions>) -> Self {
        Self { endpoint: endpoint.to_owned(), options }
    }

    /// A new connection each time, since the store may have been restarted.
    pub(crate) async fn client(&self) -> Client {
        Client::connect([&self.endpoint], self.options.clone()).await.expect("the store can be dialled")
    }

    pub(crate) async fn get(&self, key: &str) -> Option<KeyValue> {
        let answer = self.client().await.get(format!("/cke/{key}"), None).await.expect("the store answers");
        answer.kvs().first().cloned()
    }

    /// A key by its full name.
    pub(crate) async fn at_root(&self, key: &str) -> Option<KeyValue> {
        let answer = self.client().await.get(key, None).await.expect("the store answers");
        answer.kvs().first().cloned()
    }

    pub(crate) async fn everything(&self) -> Vec<KeyValue> {
        let everything = GetOptions::new().with_from_key();
        self.client().await.get("\0", Some(everything)).await.expect("the store answers").kvs().to_vec()
    }

    pub(crate) async fn wipe(&self) {
        let everything = DeleteOptions::new().with_from_key();
        self.client().await.delete("\0", Some(everything)).await.expect("the store answers");
    }

    /// The revision of the whole store: it grows with every write.
    pub(crate) async fn revision(&self) -> i64 {
        let answer = self.client().await.get("/cke/", None).await.expect("the store answers");
        answer.header().unwrap().revision()
    }

    pub(crate) async fn cluster(&self) -> Option<Cluster> {
        let stored = self.get("cluster").await?;
        let value: Value = serde_json::from_slice(stored.value()).unwrap();
        let nodes = value["nodes"].as_array().unwrap();
        let addresses = |control_plane: bool| {
            let ours = nodes.iter().filter(|node| (node["control_plane"] == true) == control_plane);
            let mut addresses: Vec<String> =
                ours.map(|node| node["address"].as_str().unwrap().to_owned()).collect();
            addresses.sort();
            addresses
        };
        Some(Cluster {
            version: stored.version(),
            revision: stored.mod_revision(),
            control_plane: addresses(true),
            workers: addresses(false),
        })
    }

    /// Operation and status of each record, in their order.
    pub(crate) async fn records(&self) -> Vec<String> {
        let everything = self.everything().await;
        let records = everything.iter().filter(|stored| stored.key().starts_with(b"/cke/records/"));
        let document = records.map(|stored| {
            let record: Value = serde_json::from_slice(stored.value()).unwrap();
            format!("{} {}", record["operation"].as_str().unwrap(), record["status"].as_str().unwrap())
        });
        document.collect()
    }

    /// The candidates' keys, the leader's first.
    pub(crate) async fn candidates(&self) -> Vec<KeyValue> {
        let options = GetOptions::new().with_prefix();
        let answer = self.client().await.get("/cke/leader//", Some(options)).await.unwrap();
        let mut keys = answer.kvs().to_vec();
        keys.sort_by_key(KeyValue::create_revision);
        keys
    }

    /// Deletes a key by its full name.
    pub(crate) async fn delete(&self, key: &[u8]) {
        let answer = self.client().await.delete(key, None).await.unwrap();
        assert_eq!(answer.deleted(), 1);
    }

    /// Compacts every revision before the present one.
    pub(crate) async fn compact(&self) {
        let revision = self.revision().await;
        self.client().await.compact(revision, None).await.unwrap();
    }
}
