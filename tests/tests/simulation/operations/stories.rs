//! Scripted histories of a cluster (stories), and the moments at which a test can disturb them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_datacenter_sim::nodes::{NodeFact, NodeFault, NodePlace, Observed, SimulatedBackups};
use madako_domain::backup::BackupRecord;
use madako_domain::containers::Container;
use madako_domain::record::{Command, Record};
use madako_protocol::node::FileContent;
use madako_simulation::planted::MessageCounter;
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;

use super::renewal::Issuer;
use super::site::{Disturbance, INTERVAL, NODES, OUTAGE, PATIENCE, Recorded, Site, Stopped, address, start};
use super::{kubernetes, objects, reboots, renewal, rotation, survey, vault};

/// Time for which a node with another host key is left alone.
const UNKNOWN_KEY: Duration = Duration::from_secs(120);
/// A record is written later than the answer that it shows.
const BEFORE_A_RECORD: Duration = Duration::from_millis(1);

/// The check of a story with backups: a backup is recorded as proved only after its proof.
const BACKUP_PROVED: &str = "backup-proved";
/// The check of every story for [`Site::unplanned_failures`].
const UNPLANNED: &str = "unplanned-failure";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Story {
    /// Three members from nothing.
    Bootstrap,
    /// All operations on members.
    Life,
    /// The restart of four members, of which three must run.
    FourMembers,
    /// Three members whose certificates are renewed.
    Renewal,
    /// A single member restarts with another image when an operator asks for it.
    AskedRestart,
    /// Two of three members are lost, and a snapshot is restored on the third node; the lost nodes come back.
    Restore,
    /// A restore is refused for a damaged snapshot, and while a majority answers.
    RefusedRestore,
    /// An older image is found before a member stops or starts.
    OlderImage,
    /// Changes of members during outages of Vault.
    Vault,
    /// Backups by a schedule, one of which lacks a write.
    Backups,
    /// All components of Kubernetes on three control plane nodes and two workers, from nothing.
    Kubernetes,
    /// Components of Kubernetes that end, and that restart with other arguments and another image.
    KubernetesLife,
    /// All components of Kubernetes, whose certificates are renewed.
    KubernetesRenewal,
    /// The same with a Vault.
    KubernetesRenewalByVault,
    /// A roll of kubelets that fail, which an operator resumes.
    FailedRoll,
    /// An argument with which no API server serves, and its correction.
    BadArgument,
    /// Another key with which API servers encrypt Secrets.
    EncryptionRotation,
    /// The control plane nodes of Kubernetes reboot, one after another.
    Reboots,
    /// The objects of Kubernetes, with resources that are refused, unknown and deleted.
    Objects,
}

/// A point of a story: the stage of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Its record announces it; its effect has not begun.
    Announced,
    /// Its effect happened; the answer is on its way.
    Happened,
    /// The answer is there; the record does not show it.
    Answered,
}

#[derive(Debug, Clone)]
pub struct Point {
    /// Operation, command and stage. A command on a volume is named with the volume.
    pub of: (String, String, Stage),
    pub at: Duration,
    /// Number of a node of the operation.
    pub node: usize,
}

/// The end of a story.
#[derive(Debug)]
pub struct Played {
    /// Names of broken promises and of failed checks; `calm` if the cluster did not reach its end in time.
    pub wrong: Vec<&'static str>,
    pub why: String,
    pub points: Vec<Point>,
    /// Times of all records and effects, and of the parts of backups.
    pub moments: BTreeSet<Duration>,
    /// Begins of snapshots and proofs.
    pub backups: Vec<Duration>,
    /// Epochs whose effects happened on nodes.
    pub epochs: BTreeSet<i64>,
}

impl Story {
    pub const SEEDED: [(&str, Self); 11] = [
        ("bootstrap", Self::Bootstrap),
        ("life", Self::Life),
        ("four-members", Self::FourMembers),
        ("refused-restore", Self::RefusedRestore),
        ("vault", Self::Vault),
        ("backups", Self::Backups),
        ("kubernetes", Self::KubernetesLife),
        ("failed-roll", Self::FailedRoll),
        ("bad-argument", Self::BadArgument),
        ("reboots", Self::Reboots),
        ("objects", Self::Objects),
    ];

    async fn tell(self, site: &mut Site) -> Result<(), Stopped> {
        match self {
            Self::Bootstrap => bootstrap(site).await,
            Self::Life => life(site).await,
            Self::FourMembers => {
                site.cluster(&[0, 1, 2, 3], &[4]).await;
                site.settled(&[0, 1, 2, 3]).await?;
                site.images("etcd:2").await;
                site.settled(&[0, 1, 2, 3]).await
            }
            Self::Renewal => renewal(site).await,
            Self::AskedRestart => asked_restart(site).await,
            Self::Restore => restore(site).await,
            Self::RefusedRestore => refused_restore(site).await,
            Self::OlderImage => older_image(site).await,
            Self::Vault => vault::tell(site).await,
            Self::Backups => backups(site).await,
            Self::Kubernetes => kubernetes::bootstrap(site).await,
            Self::KubernetesLife => kubernetes::live(site).await,
            Self::KubernetesRenewal => renewal::tell(site, Issuer::BuiltIn).await,
            Self::KubernetesRenewalByVault => renewal::tell(site, Issuer::Vault).await,
            Self::FailedRoll => kubernetes::fail_roll(site).await,
            Self::BadArgument => kubernetes::correct_argument(site).await,
            Self::Reboots => reboots::reboot_control_plane(site).await,
            Self::EncryptionRotation => rotation::tell(site).await,
            Self::Objects => objects::tell(site).await,
        }
    }

    /// Plays the story on paused time.
    pub fn play(self, disturbances: &[(Duration, Disturbance)]) -> Played {
        self.play_with(disturbances, false)
    }

    /// Plays the story with a second instance, which leads when the leader cannot.
    pub fn play_beside_a_standby(self, disturbances: &[(Duration, Disturbance)]) -> Played {
        self.play_with(disturbances, true)
    }

    fn play_with(self, disturbances: &[(Duration, Disturbance)], has_standby: bool) -> Played {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let handling = MessageCounter::default();
        metrics::with_local_recorder(&handling.clone(), || {
            runtime.block_on(async {
                let mut site = Site::new(disturbances, has_standby, &handling).await;
                let ended = match self.tell(&mut site).await {
                    Ok(()) => site.calm().await,
                    stopped => stopped,
                };
                let played = played(&site, ended.is_ok());
                site.stop().await;
                played
            })
        })
    }
}

async fn bootstrap(site: &mut Site) -> Result<(), Stopped> {
    site.cluster(&[0, 1, 2], &[3]).await;
    site.settled(&[0, 1, 2]).await
}

async fn life(site: &mut Site) -> Result<(), Stopped> {
    site.cluster(&[0], &[1, 2, 3, 4]).await;
    site.settled(&[0]).await?;
    site.cluster(&[0, 1, 2], &[3, 4]).await;
    site.settled(&[0, 1, 2]).await?;
    // A node takes the place of another one, which becomes a worker.
    site.cluster(&[0, 1, 3], &[2, 4]).await;
    site.settled(&[0, 1, 3]).await?;
    // A node loses its disk. Until the operator forgets its host key, it stays unreachable.
    site.nodes.reinstall_node(&address(1));
    site.pass(UNKNOWN_KEY).await;
    site.client.delete(format!("/cke/madako/ssh/host-keys/{}", address(1)), None).await.unwrap();
    site.settled(&[0, 1, 3]).await?;
    // A container ends.
    site.nodes.end_container(&address(3), Container::Etcd);
    site.settled(&[0, 1, 3]).await?;
    // All members restart with another image.
    site.images("etcd:2").await;
    site.settled(&[0, 1, 3]).await?;
    // A node leaves the cluster.
    site.cluster(&[0, 1, 2], &[4]).await;
    site.settled(&[0, 1, 2]).await
}

async fn renewal(site: &mut Site) -> Result<(), Stopped> {
    site.certificate_life = Duration::from_secs(3600);
    site.images("etcd:1").await;
    bootstrap(site).await?;
    let (first, known) = (certificates(site), site.nodes.facts_since(0).len());
    assert_eq!(first.len(), 6);
    site.until(|site| !certificates(site).iter().any(|certificate| first.contains(certificate))).await?;
    site.settled(&[0, 1, 2]).await?;
    assert!(site.world.clock.now() < start() + site.certificate_life, "before the first ones end");
    // A bootstrap whose record was lost may be repeated, which ends no container either.
    for fact in site.nodes.facts_since(0).split_off(known) {
        if let Observed::Applied { effect, .. } = fact.what {
            let ends = ["stop of", "kill of"].iter().any(|what| effect.what.starts_with(what));
            assert!(!ends, "{} during renewals", effect.what);
        }
    }
    Ok(())
}

/// The certificates of all members.
fn certificates(site: &Site) -> Vec<String> {
    let files = (0..NODES).flat_map(|number| site.nodes.view_node(&address(number)).unwrap().files);
    let certificate = |(path, content): (String, FileContent)| match content {
        FileContent::Public(text) if !path.contains("/ca-") => Some(text),
        _ => None,
    };
    files.filter_map(certificate).collect()
}

async fn asked_restart(site: &mut Site) -> Result<(), Stopped> {
    site.cluster(&[0], &[1]).await;
    site.settled(&[0]).await?;
    site.images("etcd:2").await;
    site.pass(OUTAGE).await;
    let image = |site: &Site| site.nodes.view_node(&address(0)).unwrap().containers["etcd"].image.clone();
    assert_eq!(image(site), "etcd:1", "the service does not stop etcd by itself");
    let now = site.world.clock.now().format(&Rfc3339).unwrap();
    // The request for a worker asks for nothing.
    for number in [0, 1] {
        let key = format!("madako/etcd-restarts/{}", address(number));
        site.put(&key, &json!({"requested_at": now}).to_string()).await;
    }
    site.until(|site| image(site) == "etcd:2").await?;
    site.settled(&[0]).await?;
    let options = etcd_client::GetOptions::new().with_prefix();
    let left = site.client.get("/cke/madako/etcd-restarts/", Some(options)).await.unwrap();
    assert_eq!(left.count(), 0, "the requests are gone");
    Ok(())
}

/// Path of the snapshot on its node.
const SNAPSHOT: &str = "/backup/etcd.db";

/// A cluster of three members, a snapshot on the first node, and writes after it.
async fn with_snapshot(site: &mut Site) -> Result<(), Stopped> {
    bootstrap(site).await?;
    site.nodes.save_snapshot(&address(0), &address(0), SNAPSHOT);
    site.settled(&[0, 1, 2]).await
}

async fn ask_for_restore(site: &mut Site) {
    let now = site.world.clock.now().format(&Rfc3339).unwrap();
    let request = json!({"address": address(0), "path": SNAPSHOT, "requested_at": now});
    site.put("madako/etcd/restore", &request.to_string()).await;
}

async fn restore(site: &mut Site) -> Result<(), Stopped> {
    with_snapshot(site).await?;
    let lost = [1, 2].map(|number| NodePlace::Address(address(number)));
    lost.iter().for_each(|place| site.nodes.begin(place, NodeFault::Kill));
    site.pass(OUTAGE).await;
    ask_for_restore(site).await;
    // A leader that ends after the start of the restored member leaves a successor that only deletes the request.
    site.until_deleted("madako/etcd/restore").await?;
    // The lost nodes come back with the data and marks of before the restore.
    lost.iter().for_each(|place| site.nodes.end(place, NodeFault::Kill));
    site.settled(&[0, 1, 2]).await?;
    let restored: Value = serde_json::from_slice(&site.get("madako/etcd/restored").await.unwrap()).unwrap();
    assert_eq!(restored["stale"], json!([]), "no node has data of before the restore");
    Ok(())
}

async fn refused_restore(site: &mut Site) -> Result<(), Stopped> {
    with_snapshot(site).await?;
    ask_for_restore(site).await;
    site.pass(OUTAGE).await;
    is_refused(site, "a majority of the members of etcd answers").await?;
    // etcd that is lost later needs another request.
    let lost = [1, 2].map(|number| NodePlace::Address(address(number)));
    lost.iter().for_each(|place| site.nodes.begin(place, NodeFault::Kill));
    site.pass(OUTAGE).await;
    site.nodes.damage_snapshot(&address(0), SNAPSHOT);
    ask_for_restore(site).await;
    site.pass(OUTAGE).await;
    is_refused(site, "sha256").await?;
    lost.iter().for_each(|place| site.nodes.end(place, NodeFault::Kill));
    site.settled(&[0, 1, 2]).await
}

/// Checks that the leader refused the restore for a reason, and stopped no member. A disturbance may itself take the majority
/// away, or delay the leader: then the judges alone decide.
async fn is_refused(site: &mut Site, why: &str) -> Result<(), Stopped> {
    if site.world.facts.has_findings() {
        return Err(Stopped);
    }
    if !site.is_disturbed {
        assert!(refusal(site).await.is_some_and(|refusal| refusal.contains(why)), "{why}");
        assert!(site.nodes.view_node(&address(0)).unwrap().containers["etcd"].running, "nothing was touched");
    }
    Ok(())
}

/// The reason why the leader does not carry the request of a restore out.
async fn refusal(site: &mut Site) -> Option<String> {
    let request: Value = serde_json::from_slice(&site.get("madako/etcd/restore").await?).unwrap();
    request["refused"].as_str().map(str::to_owned)
}

async fn older_image(site: &mut Site) -> Result<(), Stopped> {
    site.images("etcd:2").await;
    bootstrap(site).await?;
    site.images("etcd:1").await;
    site.pass(OUTAGE).await;
    let held = |site: &Site| -> Vec<String> {
        let page = site.running.as_ref().unwrap().instance.view().operations.newest().unwrap();
        assert!(page.backing_off.is_empty(), "{page:?}");
        page.held.iter().map(|held| format!("{} {}", held.held.what, held.held.reason.name())).collect()
    };
    assert_eq!(held(site), ["etcd-restart older-image"]);
    assert_eq!(
        survey::image_version(site, "etcd:1").await,
        Ok("1".to_owned()),
        "an image that is not in use"
    );
    assert!(survey::image_version(site, "etcd:3").await.unwrap_err().contains("No such image"), "no pull");
    site.nodes.end_container(&address(1), Container::Etcd);
    site.pass(OUTAGE).await;
    assert!(held(site).contains(&"etcd-start older-image".to_owned()), "{:?}", held(site));
    for number in 0..3 {
        assert_eq!(site.nodes.view_node(&address(number)).unwrap().containers["etcd"].image, "etcd:2");
    }
    site.images("etcd:2").await;
    site.settled(&[0, 1, 2]).await
}

async fn backups(site: &mut Site) -> Result<(), Stopped> {
    let backups = SimulatedBackups::new(&site.nodes);
    site.backups = Some(backups.clone());
    site.images("etcd:1").await;
    bootstrap(site).await?;
    let first = recorded(site, None).await?;
    // The next backup lacks a write. Its proof fails, and the record stays; the one after it is whole.
    backups.set_spoiling(true);
    let taken = backups.count_taken();
    site.until(|_| backups.count_taken() > taken).await?;
    site.pass(OUTAGE).await;
    let kept = site.backup().await;
    backups.set_spoiling(false);
    let second = recorded(site, Some(&first)).await?;
    if site.unproved.is_empty() {
        assert_eq!(kept.as_ref(), Some(&first), "a refuted backup does not count");
        assert!(second.at > first.at && second.proved_at.is_some());
    }
    site.settled(&[0, 1, 2]).await
}

/// Waits for a record that differs from an earlier one.
async fn recorded(site: &mut Site, before: Option<&BackupRecord>) -> Result<BackupRecord, Stopped> {
    let patience = Instant::now() + PATIENCE;
    loop {
        match site.backup().await {
            Some(record) if Some(&record) != before => return Ok(record),
            _ if Instant::now() > patience => {
                site.restless = Some("there is no new backup in time".to_owned());
                return Err(Stopped);
            }
            _ => site.pass(INTERVAL).await,
        }
    }
}

fn played(site: &Site, is_calm: bool) -> Played {
    site.world.facts.read_nodes(&site.nodes);
    let verdicts = site.world.facts.verdicts();
    let broken = verdicts.iter().filter(|(_, verdict)| !verdict.violations.is_empty());
    let mut wrong: Vec<&'static str> = broken.clone().map(|(promise, _)| promise.name()).collect();
    let mut why: Vec<String> = broken.flat_map(|(_, verdict)| verdict.violations.clone()).collect();
    if !wrong.is_empty() {
        why.push(site.world.history.last_lines(40));
    }
    let exempted = site.world.facts.exemptions().exceeded_bounds(site.world.history.now());
    if !exempted.is_empty() {
        wrong.push("exemptions");
        why.extend(exempted);
    }
    if let Some(restless) = &site.restless {
        wrong.push("calm");
        why.push(restless.clone());
    }
    assert_eq!(wrong.is_empty(), is_calm, "{why:?}");
    let ended = site.ended_tokens_used();
    if ended > 0 {
        wrong.push("token-not-ended");
        why.push(format!("{ended} requests to Vault had a token that had ended"));
    }
    if !site.unproved.is_empty() {
        wrong.push(BACKUP_PROVED);
        why.extend(site.unproved.clone());
    }
    let unplanned = site.unplanned_failures();
    if !unplanned.is_empty() {
        wrong.push(UNPLANNED);
        why.extend(unplanned);
    }
    let facts = site.nodes.facts_since(0);
    let records = site.records.lock().unwrap();
    let effects = facts.iter().filter(|fact| !matches!(fact.what, Observed::Etcd(_)));
    let backups = site.backups.iter().flat_map(SimulatedBackups::backup_times);
    let backups: Vec<Duration> = backups.map(|moment| moment - site.began).collect();
    let moments = effects.map(|fact| fact.at).chain(records.iter().map(|record| record.at));
    let moments = moments.chain(backups.iter().copied()).collect();
    let epoch = |fact: &NodeFact| match &fact.what {
        Observed::Applied { effect, .. } => Some(effect.epoch),
        _ => None,
    };
    let epochs = facts.iter().filter_map(epoch).collect();
    Played { wrong, why: why.join("\n"), points: points(&records, &facts), moments, backups, epochs }
}

/// The first point of each stage of each command of each operation.
fn points(records: &[Recorded], facts: &[NodeFact]) -> Vec<Point> {
    let mut points: BTreeMap<(String, String, Stage), Point> = BTreeMap::new();
    for (index, Recorded { at, record }) in records.iter().enumerate() {
        if !record.is_unfinished() {
            continue;
        }
        let end = records.get(index + 1).map_or(Duration::MAX, |next| next.at);
        let happened = facts.iter().find_map(|fact| match &fact.what {
            Observed::Applied { effect, .. } if (*at..end).contains(&fact.at) => {
                Some((fact.at, effect.address.clone()))
            }
            _ => None,
        });
        let address = happened.as_ref().map(|(_, address)| address).or(record.targets.first());
        let node = address.and_then(|address| number(address)).unwrap_or(0);
        let answered = Some(end).filter(|end| *end < Duration::MAX).map(|end| end - BEFORE_A_RECORD);
        let stages = [
            (Stage::Announced, Some(*at)),
            (Stage::Happened, happened.map(|(at, _)| at)),
            (Stage::Answered, answered),
        ];
        for (stage, at) in stages {
            let of = (record.operation.clone(), command_of(record), stage);
            if let Some(at) = at {
                points.entry(of.clone()).or_insert(Point { of, at, node });
            }
        }
    }
    points.into_values().collect()
}

/// The command of a record, with its target if the commands of an operation differ in it alone.
fn command_of(record: &Record) -> String {
    let Command { name, target, .. } = &record.command;
    match name.starts_with("volume-") {
        true => format!("{name} {target}"),
        false => name.clone(),
    }
}

/// The number of the node with an address.
fn number(wanted: &str) -> Option<usize> {
    (0..NODES).find(|number| address(*number) == wanted)
}
