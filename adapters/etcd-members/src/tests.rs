//! Tests of the requests to members of a real etcd with TLS. Without etcd, a test that needs it fails if `CI` is set;
//! otherwise it prints that it is skipped.

mod backup;
mod fleet;

use std::sync::Arc;
use std::time::Duration;

use madako_protocol::etcd::{EtcdCluster as _, EtcdError};
use madako_protocol::permit::{Permit, PermitEnded};
use rustix::process::Signal;
use tokio::time::Instant;

use self::fleet::{Fleet, addresses, authorities, in_sync, member, permit};
use crate::EtcdMembers;

/// Longest status with members that do not answer: one request, and the pause before the next address.
const STATUS: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_gets_users_and_knows_clients_by_their_certificates() {
    let Some(fleet) = Fleet::start().await else { return };
    let requested = addresses(&[1, 2, 3]);
    for _ in 0..2 {
        fleet.etcd.set_up_auth(&permit(), &requested).await.unwrap();
    }
    let status = fleet.etcd.status(&requested).await.unwrap();
    assert_eq!((status.healthy, in_sync(&status)), (true, requested.clone()));
    assert!(status.members.iter().all(|member| member.version.is_some() && !member.learner), "{status:?}");

    let mut api_server = fleet.client("127.0.0.2", "kube-apiserver").await;
    api_server.put("/registry/pods/a", "1", None).await.unwrap();
    assert_eq!(api_server.get("/registry/pods/a", None).await.unwrap().count(), 1);
    for key in ["/registry", "/other", "/registry0"] {
        let refused = api_server.put(key, "1", None).await.unwrap_err();
        assert!(refused.to_string().contains("permission denied"), "{key}: {refused}");
    }
    let mut other = fleet.client("127.0.0.2", "mallory").await;
    other.put("/registry/pods/a", "2", None).await.unwrap_err();
    let mut root = fleet.client("127.0.0.2", "root").await;
    assert_eq!(root.user_list().await.unwrap().users(), ["kube-apiserver", "root"]);
    assert_eq!(root.user_get("root").await.unwrap().roles(), ["root"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_added_user_has_its_keys_alone_and_an_existing_one_is_refused() {
    let Some(fleet) = Fleet::start().await else { return };
    let requested = addresses(&[1, 2, 3]);
    fleet.etcd.set_up_auth(&permit(), &requested).await.unwrap();
    let mut root = fleet.client("127.0.0.1", "root").await;
    // An earlier call was interrupted after the role.
    root.role_add("coil").await.unwrap();
    fleet.etcd.add_user(&permit(), &requested, "coil", "/coil/").await.unwrap();
    // All members have applied the change when they answer.
    assert_eq!(in_sync(&fleet.etcd.status(&requested).await.unwrap()), requested);
    let mut coil = fleet.client("127.0.0.2", "coil").await;
    coil.put("/coil/a", "1", None).await.unwrap();
    let refused = coil.put("/registry/a", "1", None).await.unwrap_err();
    assert!(refused.to_string().contains("permission denied"), "{refused}");
    let role = root.role_get("kube-apiserver").await.unwrap().permissions();
    for (name, why) in [
        ("coil", "the user coil exists already"),
        ("kube-apiserver", "the user kube-apiserver exists already"),
        ("root", "the user root exists already"),
    ] {
        let refused = fleet.etcd.add_user(&permit(), &requested, name, "/").await.unwrap_err();
        assert!(refused.to_string().ends_with(why), "{refused}");
    }
    assert!(root.role_get("kube-apiserver").await.unwrap().permissions() == role, "nothing was granted");
    root.role_add("other").await.unwrap();
    let wide = etcd_client::Permission::read_write("/").with_prefix();
    root.role_grant_permission("other", wide).await.unwrap();
    let refused = fleet.etcd.add_user(&permit(), &requested, "other", "/other/").await.unwrap_err();
    assert!(
        refused.to_string().contains("the role other exists already, with other permissions"),
        "{refused}"
    );
    let users = root.user_list().await.unwrap();
    assert!(!users.users().iter().any(|user| user == "other"), "{users:?}");
    // An earlier call was interrupted before the role was granted.
    root.role_add("late").await.unwrap();
    root.user_add("late", "x", None).await.unwrap();
    fleet.etcd.add_user(&permit(), &requested, "late", "/late/").await.unwrap();
    assert_eq!(root.user_get("late").await.unwrap().roles(), ["late"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_joins_as_a_learner_gets_its_vote_and_leaves() {
    let Some(mut fleet) = Fleet::start().await else { return };
    let requested = addresses(&[1, 2, 3]);
    fleet.etcd.set_up_auth(&permit(), &requested).await.unwrap();
    let url = fleet.peer_url("127.0.0.4");
    let added = fleet.joined(&requested, &url).await;
    assert_eq!(
        fleet.etcd.add_learner(&permit(), &requested, &url).await.unwrap().len(),
        4,
        "nothing is added twice"
    );
    let learner = member(&added, "127.0.0.4");
    assert!(learner.learner && learner.name.is_empty() && added.len() == 4, "{added:?}");
    let status = fleet.etcd.status(&requested).await.unwrap();
    assert_eq!(in_sync(&status), requested);
    assert_eq!(member(&status.members, "127.0.0.4").in_sync, Some(false), "it never started");
    let refused = fleet.etcd.promote(&permit(), &requested, learner.id).await.unwrap_err();
    assert!(matches!(refused, EtcdError::Refused { .. }), "{refused}");

    let cluster: Vec<String> =
        added.iter().map(|member| format!("{}={}", member.address(), member.peer_urls[0])).collect();
    fleet.run("127.0.0.4", "existing", &cluster.join(",")).await;
    let all = addresses(&[1, 2, 3, 4]);
    // The learner is asked first, and does not grant leases.
    let requested: Vec<String> = all.iter().rev().cloned().collect();
    let status = fleet.until(&requested, "the learner is in sync", |status| in_sync(status) == all).await;
    assert!(member(&status.members, "127.0.0.4").learner);
    for _ in 0..2 {
        fleet.etcd.promote(&permit(), &requested, learner.id).await.unwrap();
    }
    let status = fleet.until(&requested, "it votes", |status| in_sync(status) == all).await;
    assert_eq!(status.voting().count(), 4);

    fleet.kill("127.0.0.2").await;
    // If it led, the others elect a leader first.
    fleet.until(&addresses(&[1, 3, 4]), "the others go on", |status| status.healthy).await;
    let began = Instant::now();
    let status = fleet.etcd.status(&addresses(&[2, 1, 3, 4])).await.unwrap();
    assert!(began.elapsed() < STATUS, "{:?}", began.elapsed());
    assert_eq!((status.healthy, in_sync(&status)), (true, addresses(&[1, 3, 4])));
    let dead = member(&status.members, "127.0.0.2");
    assert_eq!((dead.in_sync, &dead.version), (Some(false), &None));
    for _ in 0..2 {
        fleet.etcd.remove(&permit(), &addresses(&[2, 1, 3, 4]), dead.id).await.unwrap();
    }
    let status = fleet.etcd.status(&requested).await.unwrap();
    assert_eq!((status.members.len(), in_sync(&status)), (3, addresses(&[1, 3, 4])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leadership_moves_away_from_the_member_that_has_it_alone() {
    let Some(fleet) = Fleet::start().await else { return };
    let requested = addresses(&[1, 2, 3]);
    let leader = async || {
        let mut client = fleet.client("127.0.0.1", "root").await;
        let leader = client.status().await.unwrap().leader();
        let members = fleet.etcd.status(&requested).await.unwrap().members;
        members.iter().find(|member| member.id == leader).unwrap().address().into_owned()
    };
    let before = leader().await;
    let other = requested.iter().find(|address| **address != before).unwrap();
    fleet.etcd.move_leader(&permit(), &requested, other).await.unwrap();
    assert_eq!(leader().await, before, "a follower has nothing to hand over");
    fleet.etcd.move_leader(&permit(), &requested, &before).await.unwrap();
    assert_ne!(leader().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_member_is_not_in_sync_and_costs_one_deadline() {
    let Some(mut fleet) = Fleet::start().await else { return };
    let requested = addresses(&[1, 2, 3]);
    fleet.signal("127.0.0.1", Signal::STOP);
    let others = addresses(&[2, 3]);
    // If it led, the others elect a leader first.
    fleet.until(&others, "the others go on", |status| status.healthy).await;
    let began = Instant::now();
    let status = fleet.etcd.status(&requested).await.unwrap();
    assert!(began.elapsed() < STATUS, "{:?}", began.elapsed());
    assert_eq!((status.healthy, in_sync(&status)), (true, others));
    assert_eq!(member(&status.members, "127.0.0.1").in_sync, Some(false));
    fleet.signal("127.0.0.1", Signal::CONT);
    fleet.until(&requested, "it comes back", |status| in_sync(status) == requested).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_the_members_are_listed_and_nothing_is_known_of_them() {
    let Some(mut fleet) = Fleet::start().await else { return };
    let requested = addresses(&[1, 2, 3]);
    let lost = fleet.etcd.status(&requested).await.unwrap().members[0].id;
    fleet.kill("127.0.0.2").await;
    fleet.kill("127.0.0.3").await;
    let status = fleet.etcd.status(&requested).await.unwrap();
    assert!(!status.healthy && status.members.len() == 3, "{status:?}");
    assert!(status.members.iter().all(|member| member.in_sync.is_none()), "{status:?}");
    let refused = fleet.etcd.remove(&permit(), &requested, lost).await.unwrap_err();
    assert!(matches!(refused, EtcdError::Unavailable { .. }), "{refused}");
    let short = Permit::give(1, Instant::now() + Duration::from_millis(300));
    let late = fleet.etcd.remove(&short, &requested, lost).await.unwrap_err();
    assert!(late.to_string().contains("permit ended before a member of etcd answered"), "{late}");
    fleet.kill("127.0.0.1").await;
    let silent = fleet.etcd.status(&requested).await.unwrap_err();
    assert!(matches!(silent, EtcdError::Unavailable { .. }), "{silent}");
    assert!(silent.to_string().contains("127.0.0.1: "), "{silent}");
}

#[tokio::test]
async fn nothing_is_asked_without_a_permit_or_certificates() {
    let (_store, authorities) = authorities().await;
    let etcd = EtcdMembers::new(authorities, 1);
    let requested = addresses(&[1]);
    let missing = etcd.status(&requested).await.unwrap_err();
    assert!(matches!(missing, EtcdError::Certificates { .. }), "{missing}");
    let ended = Permit::give(7, Instant::now());
    let expected = EtcdError::Permit(PermitEnded { epoch: 7 });
    assert_eq!(etcd.add_learner(&ended, &requested, "https://127.0.0.1:1").await.unwrap_err(), expected);
    assert_eq!(etcd.promote(&ended, &requested, 1).await.unwrap_err(), expected);
    assert_eq!(etcd.remove(&ended, &requested, 1).await.unwrap_err(), expected);
    assert_eq!(etcd.move_leader(&ended, &requested, "127.0.0.1").await.unwrap_err(), expected);
    assert_eq!(etcd.set_up_auth(&ended, &requested).await.unwrap_err(), expected);
}

#[tokio::test]
async fn a_request_without_addresses_fails() {
    let (_store, authorities) = authorities().await;
    authorities.init().await.unwrap();
    let etcd = EtcdMembers::new(Arc::clone(&authorities) as _, 1);
    let none = etcd.status(&[]).await.unwrap_err();
    assert!(none.to_string().contains("no address"), "{none}");
}
