//! The upstreams of a TCP proxy, with their health.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::rivers::log::Log;
use crate::rivers::settings::Settings;
use crate::rivers::sockets;

pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    healthy: watch::Sender<bool>,
    dial: Duration,
    keep_alive: Duration,
}

impl Upstream {
    /// An upstream that counts as healthy.
    pub(crate) fn new(address: SocketAddr, settings: &Settings) -> Self {
        let (dial, keep_alive) = (settings.dial, settings.keep_alive);
        Self { address, healthy: watch::Sender::new(true), dial, keep_alive }
    }

    pub(crate) fn is_healthy(&self) -> bool {
        *self.healthy.borrow()
    }

    /// The health, for [`is_lost`]. The upstream accepted a connection, and counts as healthy.
    pub(crate) fn note_connection(&self, log: &Log) -> watch::Receiver<bool> {
        if !self.healthy.send_replace(true) {
            self.report(Ok(()), log);
        }
        self.healthy.subscribe()
    }

    pub(crate) async fn dial(&self) -> io::Result<TcpStream> {
        sockets::dial(self.address, self.dial, self.keep_alive).await
    }

    /// Checks the health at each interval, and never ends.
    pub(crate) async fn watch(&self, every: Duration, log: &Log) {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut first = true;
        loop {
            ticks.tick().await;
            let checked = self.dial().await.map(drop);
            let changed = self.healthy.send_if_modified(|healthy| {
                let changed = *healthy != checked.is_ok();
                *healthy = checked.is_ok();
                changed
            });
            if changed || first {
                self.report(checked, log);
            }
            first = false;
        }
    }

    fn report(&self, checked: io::Result<()>, log: &Log) {
        match checked {
            Ok(()) => log.log_info("the upstream is healthy", &[("address", &self.address)]),
            Err(error) => {
                log.log_error("the upstream is unhealthy", &[("address", &self.address), ("error", &error)]);
            }
        }
    }
}

/// Returns when the upstream turns unhealthy.
pub(crate) async fn is_lost(mut health: watch::Receiver<bool>) {
    // The sender lives as long as the server; its end is a loss, too.
    let _ = health.wait_for(|healthy| !healthy).await;
}
