//! Tests of inconsistent machines of a registry: shared or changed addresses, and odd dates.

use std::net::Ipv4Addr;

use madako_domain::machine::Machine;
use time::macros::datetime;

use super::embedded::site_on_embedded;
use super::keys::Cluster;
use super::site::{MACHINES, QUICK, Site, WORKERS};
use super::stage::{Serve, eventually};

async fn site_at_work() -> (Site, Serve, Cluster) {
    let site = site_on_embedded(4, &MACHINES).await;
    let service = site.serve("60s", QUICK).await;
    site.equip().await;
    let cluster = site.first_cluster().await;
    (site, service, cluster)
}

/// Waits until the registry was polled, and planning found nothing to do.
async fn calm(service: &Serve) {
    service.until_grown("madako_polls_total", &["outcome=\"answered\""], 2.0).await;
    service.until_grown("madako_plans_total", &["action=\"none\""], 2.0).await;
}

/// Machines inside or outside of the cluster, without boot servers.
fn machines(site: &Site, cluster: &Cluster, members: bool) -> Vec<Machine> {
    let nodes = cluster.nodes();
    let chosen = |machine: &Machine| {
        machine.spec.role != "boot"
            && nodes.iter().any(|node| machine.address() == Some(node.as_str())) == members
    };
    site.registry.list_machines().into_iter().filter(chosen).collect()
}

fn address(machine: &Machine) -> Ipv4Addr {
    machine.address().unwrap().parse().unwrap()
}

#[tokio::test]
async fn an_address_that_several_machines_have_is_not_chosen_and_a_node_in_use_stays() {
    let (site, service, cluster) = site_at_work().await;
    let nodes = machines(&site, &cluster, true);
    let spares = machines(&site, &cluster, false);
    // One machine claims the address of a node; all others of its rack share one of their addresses.
    site.registry.set_addresses(&spares[0].spec.serial, &[address(&nodes[0])]).unwrap();
    let rack = spares[0].spec.rack;
    let shared = address(&spares[0]);
    let of_the_rack: Vec<&Machine> = spares[1..].iter().filter(|spare| spare.spec.rack == rack).collect();
    assert!(of_the_rack.len() > 1);
    for machine in &of_the_rack {
        site.registry.set_addresses(&machine.spec.serial, &[shared]).unwrap();
    }
    service.until_metric("madako_duplicate_addresses", &[], 2.0).await;
    let claims = format!("{} by ", address(&nodes[0]));
    service.until_log(&claims).await;
    for serial in [&nodes[0].spec.serial, &spares[0].spec.serial] {
        assert!(service.log().contains(serial.as_str()), "{serial} is not named: {}", service.log());
    }
    calm(&service).await;
    site.unchanged(&cluster, "a node in use stays").await;
    let plan = site.run(&["plan"]).await;
    for address in [address(&nodes[0]), shared] {
        assert!(plan.out.contains(&address.to_string()), "{address} is not reported: {}", plan.out);
    }

    // Many more workers are needed, and the rack would be preferred: it has fewer nodes than all others.
    let grown = site.grow_to(WORKERS + 10).await;
    assert!(!grown.nodes().contains(&shared.to_string()), "{grown:?}");
    assert!(grown.nodes().contains(&address(&nodes[0]).to_string()));

    // Once the addresses are corrected, the rack is used.
    for machine in &of_the_rack {
        site.registry.set_addresses(&machine.spec.serial, &[address(machine)]).unwrap();
    }
    site.registry.set_addresses(&spares[0].spec.serial, &[shared]).unwrap();
    eventually("no address is claimed twice", async || {
        (service.metric("madako_duplicate_addresses", &[]).await == 0.0).then_some(())
    })
    .await;
    let again = site.grow_to(WORKERS + 12).await;
    let returned = spares.iter().filter(|spare| spare.spec.rack == rack);
    let returned: Vec<String> = returned.map(|spare| address(spare).to_string()).collect();
    assert!(again.workers.iter().any(|worker| returned.contains(worker)), "{again:?}");
    assert_eq!(again.version, 3);
}

#[tokio::test]
async fn a_serial_with_another_address_is_another_node() {
    let (site, service, cluster) = site_at_work().await;
    let moved = machines(&site, &cluster, true)
        .into_iter()
        .find(|machine| cluster.workers.iter().any(|worker| machine.address() == Some(worker)))
        .unwrap();
    let (old, new) = (address(&moved), Ipv4Addr::new(10, 200, 0, 7));
    site.registry.set_addresses(&moved.spec.serial, &[new]).unwrap();
    let after = eventually("the old node leaves", async || {
        site.keys.cluster().await.filter(|cluster| cluster.version > 1)
    })
    .await;
    assert_eq!((after.version, after.workers.len()), (2, WORKERS), "one write: it left and was replaced");
    assert!(!after.nodes().contains(&old.to_string()), "{after:?}");
    assert_eq!(after.control_plane, cluster.control_plane);
    let kept = cluster.workers.iter().filter(|worker| after.workers.contains(worker)).count();
    assert_eq!(kept, WORKERS - 1, "no other node moved");
    calm(&service).await;
    site.unchanged(&after, "there is nothing left to do").await;

    // A machine without any address is left out and counted.
    let spare = &machines(&site, &after, false)[0];
    site.registry.set_addresses(&spare.spec.serial, &[]).unwrap();
    service.until_metric("madako_observation_left_out", &[], 1.0).await;
    calm(&service).await;
    site.unchanged(&after, "a spare machine more or less is not a reason").await;
    assert_eq!(site.grow_to(WORKERS + 1).await.version, 3);
}

#[tokio::test]
async fn dates_long_past_and_far_ahead_are_only_dates() {
    let (site, service, cluster) = site_at_work().await;
    let past = datetime!(0001-01-01 0:00 UTC);
    let future = datetime!(9999-12-31 23:59:59 UTC);
    for machine in machines(&site, &cluster, true) {
        site.registry.set_retire_date(&machine.spec.serial, past).unwrap();
    }
    // Of each two equal spare machines, the one that would be chosen first is past its retirement date.
    let spares = machines(&site, &cluster, false);
    let (mut due, mut lasting) = (Vec::new(), Vec::new());
    for role in ["compute", "storage"] {
        for rack in 0..4 {
            let mut alike: Vec<&Machine> =
                spares.iter().filter(|spare| spare.spec.role == role && spare.spec.rack == rack).collect();
            alike.sort_by_key(|machine| address(machine));
            let (first, others) = alike.split_first().unwrap();
            assert!(others.len() > 1, "{role} in rack {rack}");
            site.registry.set_retire_date(&first.spec.serial, past).unwrap();
            due.push(address(first).to_string());
            for machine in others {
                site.registry.set_retire_date(&machine.spec.serial, future).unwrap();
                lasting.push(address(machine).to_string());
            }
        }
    }
    calm(&service).await;
    site.unchanged(&cluster, "a date alone moves no node").await;
    let grown = site.grow_to(WORKERS + 8).await;
    let new: Vec<&String> = grown.workers.iter().filter(|worker| !cluster.workers.contains(worker)).collect();
    assert_eq!(new.len(), 8);
    for worker in new {
        assert!(lasting.contains(worker) && !due.contains(worker), "{worker} was chosen");
    }
    calm(&service).await;
    site.unchanged(&grown, "there is nothing left to do").await;
    assert_eq!(service.told("no plan can be made"), 0);
}
