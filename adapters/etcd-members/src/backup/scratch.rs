//! Runs an etcd of one member on loopback with the data of a restored backup, for its proof.

use std::fs::OpenOptions;
use std::future::Future;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use etcd_client::{Channel, Client, Identity, TlsOptions};
use futures::FutureExt as _;
use madako_protocol::backup::{BackupError, PermitSource};
use madako_protocol::host::{Host, HostOutcome};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, SanType,
};
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::{Certificate, Endpoint};

use super::contents::present_revision;
use super::file_error;
use super::programs::{ETCD, ETCDCTL, last_message, run};
use crate::limits::{CONNECT, ELECTION_MS, HEARTBEAT_MS, PROOF, RESTORE, START, START_PAUSE};

const ADDRESS: &str = "127.0.0.1";
const NAME: &str = "proof";
/// The user of etcd that may read all keys where authentication is on.
const ROOT: &str = "root";

/// A restored etcd that answers.
pub(crate) struct Scratch {
    client: Client,
    revision: i64,
    present: i64,
}

impl Scratch {
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The revision of the backup, whose cluster had the revision `before` at least. The restored etcd goes on from it when
    /// leases end.
    ///
    /// The file has no revision of its own, but those of its keys. Its newest ones are missing if they were deletions and
    /// a compaction removed them, or if etcd is empty.
    pub(crate) fn restored_revision(&self, before: i64) -> i64 {
        if self.revision < before && before <= self.present { before } else { self.revision }
    }
}

type Process<'a> = Pin<Box<dyn Future<Output = Result<HostOutcome, BackupError>> + Send + 'a>>;

/// A restored etcd with its process, which ends when this is dropped.
pub(crate) struct RestoredEtcd<'a> {
    scratch: Scratch,
    process: Process<'a>,
    backup: String,
}

impl RestoredEtcd<'_> {
    /// Works with the restored etcd, and ends it then. If etcd ends first, that is the error.
    pub(crate) async fn run_with_restored<'s, T, F>(
        &'s mut self,
        work: impl FnOnce(&'s Scratch) -> F,
    ) -> Result<T, BackupError>
    where
        F: Future<Output = Result<T, BackupError>>,
    {
        let Self { scratch, process, backup } = self;
        tokio::select! {
            biased;
            ended = process => Err(early_end_error(ended, backup)),
            done = work(scratch) => done,
        }
    }
}

fn early_end_error(ended: Result<HostOutcome, BackupError>, backup: &str) -> BackupError {
    match ended {
        Ok(ended) => BackupError::NotRestored {
            name: backup.to_owned(),
            why: format!("the restored etcd ended: {}", last_message(&ended)),
        },
        Err(error) => error,
    }
}

fn data_directory(place: &Path) -> String {
    place.join("data").display().to_string()
}

/// The part of the status of a snapshot that counts here.
#[derive(Deserialize)]
struct Status {
    revision: i64,
}

/// Makes the data of a member from a backup. Returns the revision of the backup.
pub(crate) async fn restore(
    host: &dyn Host,
    permits: &dyn PermitSource,
    backup: &Path,
    name: &str,
    place: &Path,
) -> Result<i64, BackupError> {
    let refusal =
        |ended: &HostOutcome| BackupError::NotRestored { name: name.to_owned(), why: last_message(ended) };
    let status = ["snapshot", "status", &backup.display().to_string(), "--write-out=json"].map(str::to_owned);
    let output = run(host, permits, ETCDCTL, &status, RESTORE).await?;
    let status: Option<Status> = serde_json::from_str(&output.stdout).ok();
    let status = status.filter(|_| output.succeeded()).ok_or_else(|| refusal(&output))?;
    let peer = format!("https://{ADDRESS}:2380");
    let arguments = [
        "snapshot".to_owned(),
        "restore".to_owned(),
        backup.display().to_string(),
        format!("--name={NAME}"),
        format!("--initial-cluster={NAME}={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--data-dir={}", data_directory(place)),
    ];
    let ended = run(host, permits, ETCDCTL, &arguments, RESTORE).await?;
    match ended.succeeded() {
        true => Ok(status.revision),
        false => Err(refusal(&ended)),
    }
}

/// Starts etcd on the restored data of a revision, and waits until it answers.
pub(crate) async fn start<'a>(
    host: &'a dyn Host,
    permits: &'a dyn PermitSource,
    name: &str,
    revision: i64,
    place: &Path,
) -> Result<RestoredEtcd<'a>, BackupError> {
    let tls = create_credentials(place)?;
    let port = free_port().map_err(|error| file_error("find a port for", place, error))?;
    let url = format!("https://{ADDRESS}:{port}");
    let file = |name: &str| place.join(name).display().to_string();
    let arguments = [
        format!("--name={NAME}"),
        format!("--data-dir={}", data_directory(place)),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        // A single member connects to no peer: any port will do.
        format!("--listen-peer-urls=https://{ADDRESS}:0"),
        "--client-cert-auth=true".to_owned(),
        format!("--trusted-ca-file={}", file(AUTHORITY)),
        format!("--cert-file={}", file(CERTIFICATE)),
        format!("--key-file={}", file(KEY)),
        "--peer-client-cert-auth=true".to_owned(),
        format!("--peer-trusted-ca-file={}", file(AUTHORITY)),
        format!("--peer-cert-file={}", file(CERTIFICATE)),
        format!("--peer-key-file={}", file(KEY)),
        format!("--heartbeat-interval={HEARTBEAT_MS}"),
        format!("--election-timeout={ELECTION_MS}"),
        "--logger=zap".to_owned(),
        "--log-level=error".to_owned(),
    ];
    let mut process: Process<'a> = Box::pin(async move { run(host, permits, ETCD, &arguments, PROOF).await });
    let client = scratch_client(&url, tls)
        .map_err(|error| file_error("connect to the restored etcd in", place, error))?;
    let by = Instant::now() + START;
    let answers = async {
        loop {
            match present_revision(&client).await {
                Ok(present) => return present,
                Err(_) => sleep(START_PAUSE).await,
            }
        }
    };
    tokio::select! {
        biased;
        ended = &mut process => Err(early_end_error(ended, name)),
        answered = timeout_at(by, answers) => match answered {
            Ok(present) if present < revision => Err(BackupError::NotRestored {
                name: name.to_owned(),
                why: format!("the restored etcd has revision {present} instead of {revision}"),
            }),
            Ok(present) => Ok(RestoredEtcd {
                scratch: Scratch { client, revision, present },
                process,
                backup: name.to_owned(),
            }),
            Err(_) => Err(BackupError::NotRestored {
                name: name.to_owned(),
                why: format!("the restored etcd did not answer within {START:?}"),
            }),
        },
    }
}

/// A port that is free now. A process that takes it first makes etcd end with a message.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((ADDRESS, 0))?.local_addr()?.port())
}

fn scratch_client(url: &str, tls: TlsOptions) -> Result<Client, String> {
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|error| error.to_string())?;
    let endpoint = endpoint.connect_timeout(CONNECT).tls_config(tls).map_err(|error| error.to_string())?;
    // Without a user, no authentication is awaited.
    let client = Client::from_channel(Channel::Tonic(endpoint.connect_lazy()), None).now_or_never();
    client.ok_or("the creation of the client had to wait")?.map_err(|error| error.to_string())
}

const AUTHORITY: &str = "ca.crt";
const CERTIFICATE: &str = "server.crt";
const KEY: &str = "server.key";

/// Makes an authority for this proof alone, and writes the files of a server. Returns the credentials of a client.
fn create_credentials(place: &Path) -> Result<TlsOptions, BackupError> {
    let failed = |error: rcgen::Error| file_error("make certificates in", place, error);
    let authority_key = KeyPair::generate().map_err(failed)?;
    let mut authority = certificate_for(NAME);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&authority_key).map_err(failed)?.pem();
    let issuer = Issuer::new(authority, authority_key);
    let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let issue = |name: &str| -> Result<(String, String), BackupError> {
        let mut params = certificate_for(name);
        params.extended_key_usages = both.to_vec();
        params.subject_alt_names = vec![SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into())];
        let key = KeyPair::generate().map_err(failed)?;
        let issued = params.signed_by(&key, &issuer).map_err(failed)?;
        Ok((issued.pem(), key.serialize_pem()))
    };
    let (server, server_key) = issue(NAME)?;
    for (name, text) in [(AUTHORITY, &certificate), (CERTIFICATE, &server), (KEY, &server_key)] {
        write_file(&place.join(name), text)?;
    }
    let (client, client_key) = issue(ROOT)?;
    Ok(TlsOptions::new()
        .ca_certificate(Certificate::from_pem(certificate))
        .identity(Identity::from_pem(client, client_key)))
}

fn certificate_for(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn write_file(path: &Path, text: &str) -> Result<(), BackupError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| file_error("write", PathBuf::from(path), error))
}
