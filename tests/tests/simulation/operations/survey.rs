//! Tests of `madako ops plan` beside a running service: it reads the state of the nodes and changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::GetOptions;
use madako_domain::images::ImageName;
use madako_domain::state::ClusterState;
use madako_domain::store::Entry;
use madako_operation_runner::{Settings, SurveyAccess, survey_fleet};
use madako_protocol::node::NodeTarget;
use madako_protocol::permit::Permit;
use madako_simulation::repair::entry_of;
use madako_simulation::world::PREFIX;
use tokio::time::Instant;

use super::site::Site;

/// The version of an image of etcd, or the message that it is unknown.
pub async fn image_version(site: &mut Site, image: &str) -> Result<String, String> {
    let stored = site.client.get(PREFIX, Some(GetOptions::new().with_prefix())).await.unwrap();
    let revision = stored.header().unwrap().revision();
    let key = |kv: &etcd_client::KeyValue| kv.key_str().unwrap().strip_prefix(PREFIX).unwrap().to_owned();
    let entries: BTreeMap<String, Entry> = stored.kvs().iter().map(|kv| (key(kv), entry_of(kv))).collect();
    let state = ClusterState::decode(revision, &entries, None);
    let (cluster, options) = (state.cluster.clone().unwrap().value, state.container_options.clone().unwrap());
    let target =
        |address: &str| NodeTarget { address: address.to_owned(), user: "cke".to_owned(), pinned: None };
    let view = site.running.as_ref().unwrap().instance.view();
    let epoch = view.reign.borrow().as_ref().unwrap().number;
    let access = SurveyAccess {
        driver: site.nodes.driver_port(),
        targets: cluster.nodes.iter().map(|node| (node.address.clone(), target(&node.address))).collect(),
        // The judges know no operator, whose permit has no epoch.
        permit: Permit::give(epoch, Instant::now() + Duration::from_secs(60)),
    };
    let ports = site.world.operations.as_ref().unwrap().runner.clone();
    let mut settings = Settings::default();
    image.clone_into(settings.configured_images.image_mut(ImageName::Etcd));
    let surveyed = survey_fleet(&access, ports, (&cluster, &options), &state, &settings).await;
    let (status, _, errors) = surveyed.unwrap();
    match status.etcd_image_version {
        Some(version) => Ok(version.to_string()),
        None => Err(errors.into_iter().map(|(_, why)| why).collect::<Vec<_>>().join("; ")),
    }
}
