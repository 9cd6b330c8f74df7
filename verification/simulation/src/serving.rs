//! The child of an instance that serves HTTP in memory: the real router behind the real server, on a listener that a dialer
//! reaches.
//!
//! An actor that is started anew listens anew; who is connected to its predecessor is cut off.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use madako_http::memory::{self, Dialer};
use madako_http::{Limits, Router, nobody, serve};
use madako_protocol::feed::Task;
use madako_supervisor::tree::ChildSpec;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::io::DuplexStream;

use crate::link::{Gate, Link};

/// The ways to what instances serve, by their names.
pub type Doors = Arc<Mutex<BTreeMap<&'static str, Door>>>;

/// A way to what an instance serves.
#[derive(Clone)]
pub struct Door {
    dialer: Dialer,
    link: Link,
}

impl Door {
    /// Connects.
    ///
    /// # Errors
    /// The link is cut, or nobody listens.
    pub async fn connect(&self) -> io::Result<Gate<DuplexStream>> {
        self.link.connect(self.dialer.connect()).await
    }
}

/// What is served, and where.
#[derive(Clone)]
pub struct Served {
    /// The name that it is found by.
    pub name: &'static str,
    /// What.
    pub router: Router,
    /// What clients may use up.
    pub limits: Limits,
    /// Where its door is put.
    pub doors: Doors,
    /// How people reach it.
    pub link: Link,
}

/// A child that serves.
#[must_use]
pub fn child(instance: &str, id: &'static str, served: Served) -> ChildSpec {
    ChildSpec::actor(instance, id, move || (Serving, served.clone()))
}

struct Serving;

/// What it can be told: to fail in the middle of this message.
#[derive(Debug)]
pub struct Fail;

impl Actor for Serving {
    type Msg = Fail;
    type State = Task;
    type Arguments = Served;

    async fn pre_start(&self, _: ActorRef<Fail>, served: Served) -> Result<Task, ActorProcessingErr> {
        let (dialer, listener) = memory::listener();
        served.doors.lock().unwrap().insert(served.name, Door { dialer, link: served.link });
        Ok(Task::start(async move {
            serve(listener, served.router, served.limits, nobody, std::future::pending()).await;
        }))
    }

    async fn handle(&self, _: ActorRef<Fail>, Fail: Fail, _: &mut Task) -> Result<(), ActorProcessingErr> {
        panic!("{}", crate::planted::PLANTED);
    }
}
