//! An SSH server on every address of this network namespace. It runs no command: it answers a status as a node does on
//! which everything runs, and refuses each action.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use madako_domain::cluster::Cluster;
use madako_domain::containers::{DEFAULT_ETCD_VOLUME, ETCD_MARK, ServiceParams};
use madako_operation_runner::Images;
use madako_operation_runner::wanted::{InitialCluster, etcd_parameters, etcd_rivers, rivers_parameters};
use madako_protocol::feed::Task;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use russh::keys::{Algorithm, PrivateKey};
use russh::server::{self, Auth, ChannelOpenHandle, Handle, Msg, VerifiedPublicKey};
use russh::{Channel, ChannelId};
use serde_json::json;
use tokio::time::sleep;

use super::TcpListener;

/// Time in which the slowest node answers.
pub(super) const SLOWEST: Duration = Duration::from_millis(500);
/// Kinds of nodes by their time; each is slower by the same time than the one before.
const SPEEDS: u32 = 20;
/// Length of the name that the service gives to a command.
const NAME: usize = "madako-0123456789abcdef-0123456789abcdef".len();

pub(super) struct Server {
    _accepting: Task,
}

impl Server {
    /// Serves as the nodes of this cluster.
    pub(super) async fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let answers: BTreeMap<IpAddr, Answer> = cluster
            .nodes
            .iter()
            .zip(1..)
            .map(|(node, number)| {
                Ok((node.address.parse()?, status_answer(cluster, &node.address, node.control_plane, number)))
            })
            .collect::<anyhow::Result<_>>()?;
        let key = PrivateKey::random(&mut ChaCha8Rng::seed_from_u64(crate::SEED), Algorithm::Ed25519)?;
        let config = Arc::new(server::Config {
            keys: vec![key],
            auth_rejection_time: Duration::ZERO,
            inactivity_timeout: None,
            ..server::Config::default()
        });
        let listener = TcpListener::bind(("0.0.0.0", 22)).await.context("port 22 is taken")?;
        let accepting = Task::start(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = stream.local_addr().ok().and_then(|local| answers.get(&local.ip()).cloned());
                let (Some(answer), config) = (answer, Arc::clone(&config)) else { continue };
                let node = Node { answer, running: BTreeMap::new() };
                tokio::spawn(async move {
                    // A connection that ends is the end of the measurement.
                    if let Ok(session) = server::run_stream(config, stream, node).await {
                        drop(session.await);
                    }
                });
            }
        });
        Ok(Self { _accepting: accepting })
    }
}

/// The answer to a status.
#[derive(Clone)]
struct Answer {
    after: Duration,
    text: Arc<str>,
}

fn status_answer(cluster: &Cluster, address: &str, control_plane: bool, number: u32) -> Answer {
    let images = Images::default();
    let container = |name: &str, image: &str, builtin: &ServiceParams| {
        let label = json!({"builtin": builtin, "extra": {}}).to_string();
        format!("C {}\n", json!([format!("/{name}"), true, image, label, null]))
    };
    let mut text = container("rivers", &images.tools, &rivers_parameters(cluster));
    if control_plane {
        text += &container("etcd-rivers", &images.tools, &etcd_rivers(cluster));
        text += &container("etcd", &images.etcd, &etcd_parameters(address, InitialCluster::None));
        text += &format!("V {DEFAULT_ETCD_VOLUME}\nV {ETCD_MARK}\nE content\n");
    }
    Answer { after: SLOWEST * (number % SPEEDS + 1) / SPEEDS, text: format!("{text}END\n").into() }
}

/// A connection to a node.
struct Node {
    answer: Answer,
    /// True if a running command reads the status.
    running: BTreeMap<u32, bool>,
}

impl server::Handler for Node {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, _: &str, _: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        _channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut server::Session,
    ) -> Result<(), russh::Error> {
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        command: &[u8],
        session: &mut server::Session,
    ) -> Result<(), russh::Error> {
        let command = String::from_utf8_lossy(command);
        let begins = command.find("madako-").ok_or(russh::Error::Inconsistent)?;
        let name = command.get(begins..begins + NAME).ok_or(russh::Error::Inconsistent)?;
        self.running.insert(channel.into(), command.contains("docker volume ls --format"));
        session.channel_success(channel)?;
        session.data(channel, format!("{name} 1 1000\n").into_bytes())
    }

    async fn data(
        &mut self,
        channel: ChannelId,
        _: &[u8],
        session: &mut server::Session,
    ) -> Result<(), russh::Error> {
        let Some(is_status) = self.running.remove(&channel.into()) else { return Ok(()) };
        let (answer, handle) = (self.answer.clone(), session.handle());
        tokio::spawn(async move {
            sleep(answer.after).await;
            // A client that closed the channel takes no answer.
            let _ = finish_command(&handle, channel, is_status.then_some(answer.text)).await;
        });
        Ok(())
    }
}

async fn finish_command(handle: &Handle, channel: ChannelId, text: Option<Arc<str>>) -> Result<(), ()> {
    let code = u32::from(text.is_none());
    if let Some(text) = text {
        handle.data(channel, text.as_bytes().to_vec()).await.map_err(drop)?;
    }
    handle.exit_status_request(channel, code).await?;
    handle.close(channel).await
}
