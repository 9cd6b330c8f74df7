//! A change that the leader must refuse.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::cluster::Cluster;
use madako_domain::plan::Plan;
use madako_protocol::actors::{ClusterMutation, Evidence, LeaderMessage, Mutation};
use madako_protocol::mailbox::Envelope;
use madako_supervisor::instance::{Instance, LEADER};
use ractor::ActorRef;

/// Proposes to the leader a cluster of machines without an observation. No part of the service does so.
pub async fn propose_nonsense(instance: &Instance, cluster: Cluster) {
    let epoch = instance.view().reign.borrow().as_ref().unwrap().number;
    let cell = instance.root().find_child(LEADER).await.unwrap().unwrap();
    let plan = Plan {
        action: None,
        changes: Vec::new(),
        cluster: Some(cluster),
        reasons: Vec::new(),
        workers_by_role: BTreeMap::new(),
        unused_machines: 0,
        duplicates: Vec::new(),
    };
    let evidence = Evidence {
        before: None,
        constraints: Arc::default(),
        observed: Arc::default(),
        template_changed: true,
    };
    let planned = ClusterMutation { plan: Arc::new(plan), template_revision: 1, basis: Vec::new(), evidence };
    let mutation = Mutation::Cluster(planned);
    let (reply, answer) = ractor::concurrency::oneshot();
    let message = LeaderMessage::Commit { epoch, mutation, reply: reply.into() };
    ActorRef::<Envelope<LeaderMessage>>::from(cell).cast(message.into()).unwrap();
    assert!(answer.await.unwrap().is_err(), "the gate takes nonsense");
}
