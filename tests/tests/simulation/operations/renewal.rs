//! The scripted history of a cluster in which all certificates of Kubernetes' components end soon.

use std::collections::BTreeMap;
use std::time::Duration;

use madako_datacenter_sim::nodes::Observed;
use madako_domain::component::{self, KUBECONFIGS};
use madako_protocol::node::FileContent;
use madako_simulation::planted::keep_quiet;

use super::kubernetes::{CONTROL_PLANE, WORKERS, bootstrap_with_image};
use super::play;
use super::site::{Disturbance, Site, Stopped, address, start};
use super::stories::{Point, Stage, Story};
use super::vault::held;

/// Life of certificates. They are renewed when a third of it is left.
const LIFE: Duration = Duration::from_secs(5400);
const OPERATION: &str = "kubernetes-renew-certificates";

/// Commands of renewals, in the order of their names.
const COMMANDS: [&str; 5] =
    ["image-pull", "make-files", "prepare-certificates", "run-container", "stop-container"];

/// Issues the certificates of the story: the built-in authorities, or a Vault that is sealed when the certificates are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Issuer {
    BuiltIn,
    Vault,
}

pub async fn tell(site: &mut Site, issuer: Issuer) -> Result<(), Stopped> {
    site.certificate_life = LIFE;
    if issuer == Issuer::Vault {
        site.use_vault().await;
    }
    // A kubelet of this version reads its certificate anew.
    bootstrap_with_image(site, "kubernetes:1.31.0").await?;
    let first = certificates(site);
    assert_eq!(first.len(), 7 * CONTROL_PLANE.len() + 2 * WORKERS.len());
    let known = site.nodes.facts_since(0).last().map_or(0, |fact| fact.number + 1);
    if let Some(vault) = site.vault.clone() {
        site.pass(LIFE / 2).await;
        vault.seal(true);
        site.until(|site| held(site).contains(&format!("{OPERATION} authorities"))).await?;
        vault.seal(false);
    }
    site.until(|site| certificates(site).iter().all(|(of, text)| first.get(of) != Some(text))).await?;
    site.settled(&CONTROL_PLANE).await?;
    if !site.is_disturbed {
        assert!(site.world.clock.now() < start() + site.certificate_life, "before the first ones end");
        check_restarts(site, known);
        let records = site.records.lock().unwrap();
        let renewals = records.iter().filter(|it| it.record.operation == OPERATION);
        assert!(renewals.clone().all(|it| it.record.targets.len() == 1), "one node at a time");
        assert!(renewals.count() > 0);
    }
    Ok(())
}

/// The certificates of Kubernetes on all nodes, with the kubeconfigs that have one, by node and path.
fn certificates(site: &Site) -> BTreeMap<(String, &'static str), String> {
    let paths = component::CERTIFICATES.into_iter().chain(KUBECONFIGS.map(|(path, _)| path));
    let on_node = |number: usize| {
        let (address, files) = (address(number), site.nodes.view_node(&address(number)).unwrap().files);
        let text = |path: &str| match files.get(path)? {
            FileContent::Public(text) => Some(text.clone()),
            FileContent::Private(text) => Some(text.reveal().to_owned()),
        };
        let found = paths.clone().filter_map(|path| Some(((address.clone(), path), text(path)?)));
        found.collect::<Vec<_>>()
    };
    CONTROL_PLANE.into_iter().chain(WORKERS).flat_map(on_node).collect()
}

/// Of the containers, only those of programs with a certificate in their kubeconfig ended and started, each once.
fn check_restarts(site: &Site, known: u64) {
    let on = |number: usize| {
        let components = KUBECONFIGS.map(|(_, component)| component).into_iter();
        let components =
            components.filter(move |it| CONTROL_PLANE.contains(&number) || !it.is_of_control_plane());
        components.map(move |component| (component.name().to_owned(), address(number)))
    };
    let mut wanted: Vec<(String, String)> = CONTROL_PLANE.into_iter().chain(WORKERS).flat_map(on).collect();
    wanted.sort();
    let (mut ended, mut started) = (Vec::new(), Vec::new());
    for fact in site.nodes.facts_since(known) {
        let Observed::Applied { effect, .. } = fact.what else { continue };
        let Some((what, container)) = effect.what.split_once(" of the container ") else { continue };
        let of = if what == "start" { &mut started } else { &mut ended };
        of.push((container.to_owned(), effect.address));
    }
    ended.sort();
    started.sort();
    assert_eq!((&ended, &started), (&wanted, &wanted));
}

/// Plays the story with a disturbance at each point of a renewal, the first time that it comes.
fn disturb_renewals(disturbance: impl Fn(&Point) -> Disturbance) {
    keep_quiet();
    for point in renewals() {
        let played = Story::KubernetesRenewal.play(&[(point.at, disturbance(&point))]);
        assert_eq!(played.wrong, [""; 0], "{point:?}: {}", played.why);
    }
}

fn renewals() -> Vec<Point> {
    let points = play(Story::KubernetesRenewal, &[]).points.into_iter();
    points.filter(|point| point.of.0 == OPERATION).collect()
}

#[test]
fn certificates_of_kubernetes_are_renewed_and_only_programs_with_kubeconfigs_restart() {
    let announced = renewals().into_iter().filter(|point| point.of.2 == Stage::Announced);
    let commands: Vec<String> = announced.map(|point| point.of.1).collect();
    assert_eq!(commands, COMMANDS, "{commands:?}");
}

#[test]
fn certificates_of_kubernetes_wait_for_a_sealed_vault_and_are_renewed_by_it() {
    play(Story::KubernetesRenewalByVault, &[]);
}

#[test]
fn certificates_of_kubernetes_are_renewed_whenever_the_leader_ends() {
    disturb_renewals(|_| Disturbance::Killed);
}

#[test]
fn certificates_of_kubernetes_are_renewed_when_a_node_fails() {
    disturb_renewals(|point| Disturbance::Dead(point.node));
}
