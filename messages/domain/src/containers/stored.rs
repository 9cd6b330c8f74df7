//! The options of a cluster for its containers, in the JSON form in which CKE stores them.

use madako_json::go::{RawJson, go_object};

use super::ServiceParams;

go_object! {
    #[derive(Debug, Clone, Default)]
    pub struct Stored {
        pub etcd: RawJson = "etcd";
        pub rivers: ServiceParams = "rivers";
        pub etcd_rivers: ServiceParams = "etcd-rivers";
        ..drop
    }
}

go_object! {
    #[derive(Debug, Clone, Default)]
    pub struct StoredVolume {
        pub volume_name: String = "volume_name";
        ..drop
    }
}
