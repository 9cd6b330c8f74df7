use async_trait::async_trait;
use madako_domain::authority::Authority;
use madako_domain::certificate::Validity;
use madako_domain::containers::Container;
use madako_domain::node_status::{EtcdMember, EtcdStatus};
use madako_json::go::RawJson;
use madako_protocol::authorities::{AuthorityError, CertificateRequest, IssuedCertificate, RenewalReason};
use madako_protocol::etcd::EtcdError;
use madako_protocol::permit::Permit;

use super::*;
use crate::command::{Command, Volume};
use crate::operation::{Operation, OperationName, single};

/// An etcd that is only asked for its members, and authorities that are not asked.
struct Members(Option<EtcdStatus>);

#[async_trait]
impl EtcdCluster for Members {
    async fn status(&self, _: &[String]) -> Result<EtcdStatus, EtcdError> {
        self.0.clone().ok_or(EtcdError::Unavailable { what: "status", why: "no route".to_owned() })
    }

    async fn revisions(&self, _: &[String]) -> BTreeMap<String, i64> {
        panic!("no revision is read")
    }

    async fn add_learner(&self, _: &Permit, _: &[String], _: &str) -> Result<Vec<EtcdMember>, EtcdError> {
        panic!("no member is added")
    }

    async fn promote(&self, _: &Permit, _: &[String], _: u64) -> Result<(), EtcdError> {
        panic!("no member is promoted")
    }

    async fn remove(&self, _: &Permit, _: &[String], _: u64) -> Result<(), EtcdError> {
        panic!("no member is removed")
    }

    async fn set_up_auth(&self, _: &Permit, _: &[String]) -> Result<(), EtcdError> {
        panic!("no user is created")
    }
}

#[async_trait]
impl Authorities for Members {
    async fn certificate(&self, _: Authority) -> Result<String, AuthorityError> {
        panic!("no certificate is read")
    }

    async fn issue(&self, _: &CertificateRequest) -> Result<IssuedCertificate, AuthorityError> {
        panic!("no certificate is issued")
    }

    fn validity(&self, _: &str) -> Option<Validity> {
        panic!("no certificate is read")
    }

    fn due(&self, _: Option<&str>, _: &str, _: &CertificateRequest) -> Option<RenewalReason> {
        panic!("no certificate is read")
    }
}

/// The failure of the only command of an operation on the node `a`, none of whose actors runs.
async fn failure_of(command: Command, etcd: Option<EtcdStatus>) -> String {
    failure(single(OperationName::EtcdRestart, vec!["a".to_owned()], command), etcd).await
}

async fn failure(operation: Operation, etcd: Option<EtcdStatus>) -> String {
    let permits = Permits { leader: "no such leader".to_owned(), epoch: 1 };
    let executor = Executor {
        nodes: "no such node/".to_owned(),
        etcd: Arc::new(Members(etcd)),
        authorities: Arc::new(Members(None)),
        permits,
        images: crate::Images::default(),
        prepared: Arc::default(),
        versions: Arc::default(),
    };
    let options = ContainerOptions::read(&RawJson::from_text("null".to_owned()).unwrap()).unwrap();
    let basis = Basis {
        cluster: Arc::new(Cluster::default()),
        options: Arc::new(options),
        asked: Vec::new(),
        certificates: Arc::default(),
    };
    // Without a leader no permit comes, and no action begins.
    match tokio::time::timeout(Duration::from_secs(60), executor.execute(&operation, 0, &basis)).await {
        Ok(OperationEnd::Failed { why, .. }) => why,
        Ok(OperationEnd::Held { why }) => format!("held: {why}"),
        Ok(OperationEnd::Succeeded) => "nothing".to_owned(),
        Err(_) => "it waits for a permit".to_owned(),
    }
}

fn member(name: &str, in_sync: Option<bool>) -> EtcdMember {
    let id = u64::from(name.as_bytes()[0]);
    EtcdMember { id, name: name.to_owned(), in_sync, ..EtcdMember::default() }
}

fn members(in_sync: [Option<bool>; 3]) -> Option<EtcdStatus> {
    let members = ["a", "b", "c"].into_iter().zip(in_sync).map(|(name, state)| member(name, state));
    Some(EtcdStatus { healthy: true, members: members.collect() })
}

#[tokio::test(start_paused = true)]
async fn no_member_is_lost_unless_a_majority_is_known_to_stay_in_sync() {
    let losses = [
        Command::StopContainer(Container::Etcd),
        Command::KillContainers(Container::Etcd),
        Command::VolumeRemove(Volume::Data("v".to_owned())),
    ];
    for command in losses {
        let why = failure_of(command.clone(), members([Some(true); 3])).await;
        assert_eq!(why, "it waits for a permit", "{command}");
        for (other, another) in [(Some(false), Some(true)), (None, Some(true)), (None, None)] {
            let why = failure_of(command.clone(), members([Some(true), other, another])).await;
            assert!(why.contains("I2"), "{command}: {why}");
        }
        let why = failure_of(command.clone(), None).await;
        assert!(why.contains("no member of etcd answered"), "{command}: {why}");
    }
}

#[tokio::test(start_paused = true)]
async fn commands_that_lose_no_member_need_no_answer_of_etcd() {
    for command in [Command::StopContainer(Container::Rivers), Command::VolumeRemove(Volume::Mark)] {
        assert_eq!(failure_of(command, None).await, "it waits for a permit");
    }
}

#[tokio::test(start_paused = true)]
async fn an_asked_restart_is_exempt_from_the_invariant() {
    let stop = Command::StopContainer(Container::Etcd);
    let operation = single(OperationName::EtcdRestart, vec!["a".to_owned()], stop);
    let asked = Operation { asked: true, ..operation };
    let out_of_sync = members([Some(true), Some(false), Some(false)]);
    assert_eq!(failure(asked, out_of_sync).await, "it waits for a permit");
}

#[tokio::test(start_paused = true)]
async fn a_restore_is_refused_as_long_as_a_majority_answers() {
    let confirm = || Command::ConfirmEtcdLoss { members: vec!["a".to_owned()] };
    let why = failure_of(confirm(), members([Some(true); 3])).await;
    assert!(why.starts_with("held: a majority of the members of etcd answers"), "{why}");
    let minority = Some(EtcdStatus { healthy: false, members: Vec::new() });
    for etcd in [minority, None] {
        assert_eq!(failure_of(confirm(), etcd).await, "nothing");
    }
}
