//! The actor of a simulated instance that serves HTTP in memory: the real router behind the real server, on a listener
//! that a dialer reaches.
//!
//! A restarted actor opens a new listener. The connections of its predecessor are cut.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use madako_http::memory::{self, Dialer};
use madako_http::{Limits, Router, ignore_client_certificate, serve};
use madako_protocol::feed::Task;
use madako_supervisor::tree::ChildSpec;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::io::DuplexStream;

use crate::link::{Link, LinkStream};

/// Dialers to the served pages or APIs, by instance name.
pub type LinkedDialers = Arc<Mutex<BTreeMap<&'static str, LinkedDialer>>>;

#[derive(Clone)]
pub struct LinkedDialer {
    dialer: Dialer,
    link: Link,
}

impl LinkedDialer {
    /// Makes a connection.
    ///
    /// # Errors
    /// The link is cut, or the server does not run.
    pub async fn connect(&self) -> io::Result<LinkStream<DuplexStream>> {
        self.link.connect(self.dialer.connect()).await
    }
}

/// A router and the registry of its dialer.
#[derive(Clone)]
pub struct ServedRouter {
    pub name: &'static str,
    pub router: Router,
    pub limits: Limits,
    pub dialers: LinkedDialers,
    /// Link between clients and the instance.
    pub link: Link,
}

#[must_use]
pub fn http_child(instance: &str, id: &'static str, served: ServedRouter) -> ChildSpec {
    ChildSpec::for_actor(instance, id, move || (RunningServer, served.clone()))
}

struct RunningServer;

#[derive(Debug)]
pub struct PanicMessage;

impl Actor for RunningServer {
    type Msg = PanicMessage;
    type State = Task;
    type Arguments = ServedRouter;

    async fn pre_start(
        &self,
        _: ActorRef<PanicMessage>,
        served: ServedRouter,
    ) -> Result<Task, ActorProcessingErr> {
        let (dialer, listener) = memory::memory_listener();
        served.dialers.lock().unwrap().insert(served.name, LinkedDialer { dialer, link: served.link });
        Ok(Task::start(async move {
            serve(listener, served.router, served.limits, ignore_client_certificate, std::future::pending())
                .await;
        }))
    }

    async fn handle(
        &self,
        _: ActorRef<PanicMessage>,
        PanicMessage: PanicMessage,
        _: &mut Task,
    ) -> Result<(), ActorProcessingErr> {
        panic!("{}", crate::planted::PLANTED);
    }
}
