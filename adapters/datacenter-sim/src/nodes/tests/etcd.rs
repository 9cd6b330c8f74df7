use super::*;
use crate::nodes::{Content, NodeFault, NodePlace};

#[tokio::test(start_paused = true)]
async fn first_members_form_one_cluster_with_a_majority() {
    let fleet = Fleet::new(3);
    let start = async |address: &String| fleet.start(address, &Initial::New(&fleet.all)).await.unwrap();
    start(&fleet.all[0]).await;
    sleep(A_WHILE).await;
    let changes = || {
        let facts = fleet.facts().into_iter();
        facts.filter(|fact| !matches!(fact, EtcdFact::Initialised { again: false, .. })).collect::<Vec<_>>()
    };
    assert_eq!(changes(), [], "one of three");
    let status = fleet.nodes.etcd_port().status(&fleet.all).await.unwrap();
    assert!(!status.healthy && status.members.iter().all(|member| member.in_sync.is_none()));
    start(&fleet.all[1]).await;
    start(&fleet.all[2]).await;
    sleep(A_WHILE).await;
    let facts = changes();
    let [EtcdFact::Formed { members, second: false, .. }] = facts.as_slice() else { panic!("{facts:?}") };
    assert_eq!(members.len(), 3);
    let status = fleet.nodes.etcd_port().status(&fleet.all).await.unwrap();
    assert!(status.healthy && status.members.iter().all(EtcdMember::is_in_sync));
    let names: Vec<&str> = status.members.iter().map(|member| member.name.as_str()).collect();
    assert!(fleet.all.iter().all(|address| names.contains(&address.as_str())));
    assert_eq!(status.members[0].version, Some("3.5.15".parse().unwrap()));
    fleet.nodes.etcd_port().set_up_auth(&permit(), &fleet.all).await.unwrap();
    fleet.nodes.etcd_port().set_up_auth(&permit(), &fleet.all).await.unwrap();
    let users = fleet.nodes.etcd_users(&fleet.all[0]).unwrap();
    assert!(users.contains("root") && users.contains("kube-apiserver"));
    assert!(matches!(changes()[1..], [EtcdFact::AuthenticationOn { .. }]));
}

#[tokio::test(start_paused = true)]
async fn a_majority_of_the_members_serves() {
    for (members, lost, serves) in
        [(1, 0, true), (2, 1, false), (3, 1, true), (3, 2, false), (4, 2, false), (5, 2, true)]
    {
        let fleet = Fleet::bootstrapped(members).await;
        for address in &fleet.all[..lost] {
            fleet.nodes.begin(&NodePlace::Address(address.clone()), NodeFault::Cut);
        }
        assert_eq!(fleet.nodes.write(&fleet.all).await.is_ok(), serves, "{lost} of {members}");
        let status = fleet.nodes.etcd_port().status(&fleet.all).await;
        assert_eq!(status.is_ok_and(|status| status.healthy), serves, "{lost} of {members}");
        for address in &fleet.all[..lost] {
            fleet.nodes.end(&NodePlace::Address(address.clone()), NodeFault::Cut);
        }
        sleep(A_WHILE).await;
        assert!(fleet.members().await.iter().all(EtcdMember::is_in_sync), "{lost} of {members}");
        let count = |is: fn(&EtcdFact) -> bool| fleet.facts().iter().filter(|fact| is(fact)).count();
        assert_eq!(count(|fact| matches!(fact, EtcdFact::QuorumLost { .. })), usize::from(!serves));
        assert_eq!(count(|fact| matches!(fact, EtcdFact::QuorumRegained { .. })), usize::from(!serves));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_rack_with_the_majority_serves_no_client() {
    let fleet = Fleet::bootstrapped(3).await;
    fleet.nodes.begin(&NodePlace::Rack(0), NodeFault::Cut);
    assert!(matches!(fleet.nodes.write(&fleet.all).await, Err(EtcdError::Unavailable { .. })));
    assert!(!fleet.facts().iter().any(|fact| matches!(fact, EtcdFact::QuorumLost { .. })));
    fleet.nodes.end(&NodePlace::Rack(0), NodeFault::Cut);
    assert_eq!(fleet.nodes.write(&fleet.all).await.unwrap().number, 1);
}

#[tokio::test(start_paused = true)]
async fn an_empty_volume_without_first_members_becomes_a_second_cluster() {
    let fleet = Fleet::bootstrapped(3).await;
    let address = fleet.all[0].as_str();
    fleet.stop(address).await;
    fleet.remove_data(address).await;
    fleet.start(address, &Initial::None).await.unwrap();
    sleep(A_WHILE).await;
    let last = fleet.facts().pop();
    let Some(EtcdFact::Formed { members, second: true, .. }) = last else { panic!("{last:?}") };
    assert_eq!(members.len(), 1);
    let first = fleet.nodes.write(&fleet.all[..1]).await.unwrap();
    let second = fleet.nodes.write(&fleet.all[1..]).await.unwrap();
    assert_ne!(first.cluster, second.cluster);
}

#[tokio::test(start_paused = true)]
async fn a_learner_gets_its_vote_when_it_is_in_sync() {
    let mut fleet = Fleet::bootstrapped(3).await;
    fleet.nodes.write(&fleet.all).await.unwrap();
    let new = "10.0.0.9".to_owned();
    fleet.nodes.add(&new, 5);
    let members = fleet.add_learner(&new).await.unwrap();
    assert_eq!(fleet.add_learner(&new).await.unwrap(), members, "twice is once");
    let added = members.iter().find(|member| member.learner).unwrap().clone();
    assert_eq!((members.len(), added.name.as_str()), (4, ""));
    let refused = fleet.add_learner("10.0.0.10").await;
    assert!(matches!(refused, Err(EtcdError::Refused { .. })), "one learner at a time");
    let promote = async || fleet.nodes.etcd_port().promote(&permit(), &fleet.all, added.id).await;
    assert!(matches!(promote().await, Err(EtcdError::Refused { .. })), "it has not started");
    let all: Vec<String> = fleet.all.iter().chain([&new]).cloned().collect();
    fleet.start(&new, &Initial::Existing(&all)).await.unwrap();
    let mut refusals = 0;
    while promote().await.is_err() {
        refusals += 1;
        assert!(refusals < 100);
        sleep(Duration::from_millis(500)).await;
    }
    assert!(refusals > 0, "it catches up first");
    promote().await.unwrap();
    fleet.all = all;
    sleep(A_WHILE).await;
    let members = fleet.members().await;
    assert!(members.iter().all(|member| member.is_in_sync() && !member.learner));
    assert!(members.iter().any(|member| member.id == added.id && member.name == new));
    let data = fleet.nodes.view_node(&new).unwrap().volumes[VOLUME];
    assert!(matches!(data, Content::Member(data) if data.writes == 1 && data.member == added.id));
}

#[tokio::test(start_paused = true)]
async fn etcd_adds_no_member_while_a_voting_member_is_down() {
    let fleet = Fleet::bootstrapped(3).await;
    fleet.stop(&fleet.all[2]).await;
    let refused = fleet.add_learner("10.0.0.9").await;
    assert!(matches!(refused, Err(EtcdError::Refused { .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_new_member_joins_only_with_the_members_of_the_cluster() {
    let fleet = Fleet::bootstrapped(1).await;
    let new = "10.0.0.9".to_owned();
    fleet.nodes.add(&new, 5);
    let all = [fleet.all[0].clone(), new.clone()];
    let cases: [(&[String], &str); 2] = [(&all, "not those of the cluster"), (&all[1..], "cannot fetch")];
    for (members, why) in cases {
        fleet.start(&new, &Initial::Existing(members)).await.unwrap();
        sleep(A_WHILE).await;
        let last = fleet.facts().pop();
        assert!(matches!(&last, Some(EtcdFact::Exited { why: said, .. }) if said.contains(why)), "{last:?}");
        assert!(!fleet.runs(&new));
    }
}

#[tokio::test(start_paused = true)]
async fn etcd_does_not_start_without_its_certificate() {
    let fleet = Fleet::new(1);
    let address = &fleet.all[0];
    let spec = etcd(address, &Initial::New(&fleet.all));
    fleet.act(address, &NodeAction::RunContainer { spec, restart: false }).await.unwrap();
    sleep(A_WHILE).await;
    assert!(matches!(fleet.facts()[..], [EtcdFact::Exited { .. }]));
    let etcd = fleet.nodes.etcd_port().status(&fleet.all).await;
    assert!(matches!(etcd, Err(EtcdError::Unavailable { .. })));
}
