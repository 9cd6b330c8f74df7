//! Tests of the backup actor, with a backup port that counts its calls and a leader that commits in memory.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::backup::{Difference, EtcdContents, backup_name, name_of_refuted_backup};
use madako_domain::canary::{Canary, plant_canary};
use madako_domain::cluster::{Cluster, Node};
use madako_domain::state::RevisedValue;
use madako_protocol::actors::{CommitError, Committed, LeaderMessage, Mutation};
use madako_protocol::backup::{Backup, BackupError, PermitSource};
use madako_protocol::latest::{self, Publisher};
use madako_protocol::permit::Permit;
use time::OffsetDateTime;

use super::*;

/// Number of sites in this process, for their leaders' names.
static SITES: AtomicU64 = AtomicU64::new(0);
/// Paused time may wait as long as it takes.
const PATIENCE: Duration = Duration::from_secs(30 * 24 * 3600);
const EVERY: Duration = Duration::from_secs(3600);

/// A clock that follows paused time.
struct Paused(Moment);

impl Clock for Paused {
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap() + self.0.elapsed()
    }
}

/// Gives the error of the proof of a backup.
type Refutation = fn(&Backup) -> BackupError;

/// The world outside the actor: the calls of the port, and its next answers.
struct World {
    began: Moment,
    /// Seconds from the beginning at which snapshots were taken.
    taken: Mutex<Vec<u64>>,
    proved: Mutex<Vec<String>>,
    /// Calls of the rotation: the number to keep, and the spared name.
    rotated: Mutex<Vec<(usize, Option<String>)>>,
    /// The error of the next proofs.
    fails: Mutex<Option<Refutation>>,
    takes_long: Mutex<Duration>,
    commits: Mutex<Vec<(BackupRecord, i64)>>,
    refuses_commits: Mutex<bool>,
    revision: AtomicI64,
    publisher: Mutex<Option<Publisher<Arc<ClusterState>>>>,
    events: Mutex<Vec<Event>>,
}

#[async_trait]
impl EtcdBackups for World {
    async fn take(
        &self,
        permit: &Permit,
        addresses: &[String],
        _: &Path,
        at: OffsetDateTime,
    ) -> Result<Backup, BackupError> {
        permit.check(Moment::now())?;
        assert_eq!(addresses, ["10.0.0.1"], "the control plane nodes have etcd");
        self.taken.lock().unwrap().push(self.began.elapsed().as_secs());
        let long = *self.takes_long.lock().unwrap();
        tokio::time::sleep(long).await;
        Ok(Backup { name: backup_name(at), at, size: 20_512, revisions: (5, 9) })
    }

    async fn prove(
        &self,
        permits: &dyn PermitSource,
        _: &[String],
        _: &Path,
        backup: &Backup,
    ) -> Result<EtcdContents, BackupError> {
        permits.permit().await?.check(Moment::now())?;
        if let Some(error) = *self.fails.lock().unwrap() {
            return Err(error(backup));
        }
        self.proved.lock().unwrap().push(backup.name.clone());
        Ok(EtcdContents { revision: 7, keys: 3, hash: "ab".to_owned() })
    }

    async fn remove_older_backups(
        &self,
        permit: &Permit,
        _: &Path,
        keep: usize,
        spared: Option<&str>,
    ) -> Result<Vec<String>, BackupError> {
        permit.check(Moment::now())?;
        self.rotated.lock().unwrap().push((keep, spared.map(str::to_owned)));
        Ok(Vec::new())
    }
}

impl EventSink for World {
    fn emit(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

/// Gives permits, and commits records.
struct Leader(Arc<World>);

impl Actor for Leader {
    type Msg = Envelope<LeaderMessage>;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Self::Msg>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: Self::Msg,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        match message.open() {
            LeaderMessage::Permit { epoch, reply } => {
                reply.send(Some(Permit::give(epoch, Moment::now() + Duration::from_secs(40))))?;
            }
            LeaderMessage::Commit { epoch, mutation: Mutation::EtcdBackup { record, revision }, reply } => {
                if *self.0.refuses_commits.lock().unwrap() {
                    reply.send(Err(CommitError::NotLeader { epoch }))?;
                    return Ok(());
                }
                self.0.commits.lock().unwrap().push((record.clone(), revision));
                let revision = self.0.revision.fetch_add(1, Ordering::SeqCst) + 1;
                self.0.publish(Some((record, revision)));
                reply.send(Ok(Committed { revision }))?;
            }
            other => panic!("unexpected: {other:?}"),
        }
        Ok(())
    }
}

impl World {
    fn publish(&self, record: Option<(BackupRecord, i64)>) {
        let node = Node { address: "10.0.0.1".to_owned(), control_plane: true, ..Node::default() };
        let worker = Node { address: "10.0.0.2".to_owned(), ..Node::default() };
        let cluster = Cluster { nodes: vec![node, worker], ..Cluster::default() };
        let mut state = ClusterState {
            cluster: Some(RevisedValue { value: Arc::new(cluster), revision: 1 }),
            ..ClusterState::default()
        };
        if let Some((value, revision)) = record {
            state.revisions.insert(keys::ETCD_BACKUP.to_owned(), revision);
            state.etcd_backup = Some(RevisedValue { value, revision });
        }
        self.publisher.lock().unwrap().as_ref().unwrap().publish(Arc::new(state));
    }
}

struct Site {
    world: Arc<World>,
    actor: ActorRef<Envelope<BackupMessage>>,
    leader: String,
    state: Subscriber<Arc<ClusterState>>,
    prove: bool,
}

async fn site(prove: bool) -> Site {
    let world = Arc::new(World {
        began: Moment::now(),
        taken: Mutex::default(),
        proved: Mutex::default(),
        rotated: Mutex::default(),
        fails: Mutex::default(),
        takes_long: Mutex::default(),
        commits: Mutex::default(),
        refuses_commits: Mutex::default(),
        revision: AtomicI64::new(10),
        publisher: Mutex::default(),
        events: Mutex::default(),
    });
    let leader = format!("leader {}", SITES.fetch_add(1, Ordering::SeqCst));
    Actor::spawn(Some(leader.clone()), Leader(Arc::clone(&world)), ()).await.unwrap();
    let (publisher, state) = latest::channel();
    *world.publisher.lock().unwrap() = Some(publisher);
    world.publish(None);
    let actor = spawn(&world, &leader, &state, prove).await;
    Site { world, actor, leader, state, prove }
}

async fn spawn(
    world: &Arc<World>,
    leader: &str,
    state: &Subscriber<Arc<ClusterState>>,
    prove: bool,
) -> ActorRef<Envelope<BackupMessage>> {
    let given = BackupsArguments {
        epoch: 7,
        leader: leader.to_owned(),
        host: "boot-0".to_owned(),
        schedule: BackupSchedule { every: EVERY, dir: "/b".to_owned(), keep: 3, prove },
        backups: Arc::clone(world) as Arc<dyn EtcdBackups>,
        clock: Arc::new(Paused(world.began)),
        events: Arc::clone(world) as Arc<dyn EventSink>,
        state: state.clone(),
    };
    Actor::spawn(None, Backups, given).await.unwrap().0
}

impl Site {
    /// Waits until a condition holds.
    async fn until(&self, holds: impl Fn(&World) -> bool) {
        let reached = async {
            while !holds(&self.world) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.unwrap();
    }

    async fn taken(&self, number: usize) -> Vec<u64> {
        self.until(|world| world.taken.lock().unwrap().len() >= number).await;
        self.world.taken.lock().unwrap().clone()
    }
}

fn refuted(backup: &Backup) -> BackupError {
    BackupError::Refuted {
        name: backup.name.clone(),
        renamed: name_of_refuted_backup(&backup.name),
        difference: Difference::Hash { revision: 7 },
    }
}

#[tokio::test(start_paused = true)]
async fn backups_are_taken_proved_recorded_and_rotated_once_an_interval() {
    let site = site(true).await;
    let taken = site.taken(3).await;
    assert_eq!(taken[0], 0, "without a backup, one is due at once");
    for pair in taken.windows(2) {
        let pause = pair[1] - pair[0];
        assert!((3600..=3600 + 2 * TICK.as_secs()).contains(&pause), "{taken:?}");
    }
    site.until(|world| world.rotated.lock().unwrap().len() == 3).await;
    let commits = site.world.commits.lock().unwrap();
    assert_eq!(commits.len(), 3);
    let (first, compared) = &commits[0];
    assert_eq!(*compared, 0, "the record did not exist");
    assert_eq!(commits[1].1, 11, "the record that is replaced is compared");
    assert_eq!((first.file.as_str(), first.host.as_str()), ("/b/etcd-20231114-221320.backup", "boot-0"));
    assert_eq!((first.revision, first.keys, first.hash.as_deref()), (7, Some(3), Some("ab")));
    assert!(first.proved_at.is_some());
    let spared = Some("etcd-20231114-221320.backup".to_owned());
    assert_eq!(site.world.rotated.lock().unwrap()[0], (3, spared));
    let proved = site.world.proved.lock().unwrap();
    assert_eq!(proved.len(), 3);
    let events = site.world.events.lock().unwrap();
    assert!(events.iter().all(|event| matches!(event, Event::EtcdBackup { proved: true, .. })), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_backup_without_its_proof_is_not_recorded_and_the_recorded_one_stays() {
    let site = site(true).await;
    site.until(|world| world.rotated.lock().unwrap().len() == 1).await;
    *site.world.fails.lock().unwrap() = Some(refuted);
    let taken = site.taken(4).await;
    assert!((60..=60 + 2 * TICK.as_secs()).contains(&(taken[2] - taken[1])), "{taken:?}");
    assert!((120..=120 + 2 * TICK.as_secs()).contains(&(taken[3] - taken[2])), "{taken:?}");
    site.until(|world| world.rotated.lock().unwrap().len() == 4).await;
    assert_eq!(site.world.commits.lock().unwrap().len(), 1);
    let first = Some("etcd-20231114-221320.backup".to_owned());
    assert!(site.world.rotated.lock().unwrap().iter().all(|(_, spared)| *spared == first));
    let why = |event: &Event| match event {
        Event::EtcdBackupFailed { why } => Some(why.clone()),
        _ => None,
    };
    let whys: Vec<String> = site.world.events.lock().unwrap().iter().filter_map(why).collect();
    assert!(whys.len() == 3 && whys[0].contains("is not a copy of the cluster's etcd"), "{whys:?}");

    *site.world.fails.lock().unwrap() = None;
    site.until(|world| world.commits.lock().unwrap().len() == 2).await;
    let last = site.world.taken.lock().unwrap().len();
    let taken = site.taken(last + 1).await;
    assert!(taken[last] - taken[last - 1] >= 3600, "failures are forgotten: {taken:?}");
}

#[tokio::test(start_paused = true)]
async fn a_planted_bug_records_a_backup_without_a_proof() {
    plant_canary(Some(Canary::BackupUnproved));
    let site = site(true).await;
    *site.world.fails.lock().unwrap() = Some(refuted);
    site.until(|world| world.commits.lock().unwrap().len() == 1).await;
    plant_canary(None);
    let commits = site.world.commits.lock().unwrap();
    assert!(commits[0].0.proved_at.is_some() && site.world.proved.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn without_proofs_the_last_backup_counts_by_itself() {
    let site = site(false).await;
    *site.world.fails.lock().unwrap() = Some(refuted);
    let taken = site.taken(2).await;
    assert!(taken[1] >= 3600, "{taken:?}");
    let commits = site.world.commits.lock().unwrap();
    let (record, _) = &commits[0];
    assert_eq!((record.revision, record.keys, &record.hash, record.proved_at), (5, None, &None, None));
}

#[tokio::test(start_paused = true)]
async fn one_backup_runs_at_a_time_and_ends_with_its_actor() {
    let site = site(true).await;
    *site.world.takes_long.lock().unwrap() = EVERY * 2;
    let taken = site.taken(3).await;
    assert!(taken[2] - taken[1] >= 7200, "{taken:?}");
    site.actor.stop(None);
    tokio::time::sleep(EVERY * 10).await;
    assert_eq!(site.world.taken.lock().unwrap().len(), 3);
    let committed = site.world.commits.lock().unwrap().len();
    assert_eq!(committed, 2, "a backup in progress ends with its actor");
}

#[tokio::test(start_paused = true)]
async fn a_new_actor_continues_with_the_record_and_a_lost_commit_is_a_failure() {
    let site = site(true).await;
    site.until(|world| world.rotated.lock().unwrap().len() == 1).await;
    site.actor.stop(None);
    tokio::time::sleep(EVERY / 2).await;
    *site.world.refuses_commits.lock().unwrap() = true;
    let next = spawn(&site.world, &site.leader, &site.state, site.prove).await;
    let taken = site.taken(3).await;
    assert!((3600..3700).contains(&taken[1]), "{taken:?}");
    assert!((60..=60 + 2 * TICK.as_secs()).contains(&(taken[2] - taken[1])), "{taken:?}");
    next.stop(None);
    assert_eq!(site.world.commits.lock().unwrap().len(), 1);
}
