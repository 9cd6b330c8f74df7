//! The flags of `madako serve`: those of `cke`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use madako_json::duration;
use madako_operation_runner::limits::MAX_CONCURRENT_UPDATES;
use madako_supervisor::config::Config;
use madako_supervisor::limits::SHORTEST_ACTING_SESSION;
use madako_supervisor::nodes::OperationsMode;

use crate::cli::{Global, whole_number};
use crate::failure::Failure;
use crate::traces::Collector;

/// Bounds of the time between polls: below, polls overlap; above, users would not notice that the service works.
pub(crate) const INTERVALS: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_secs(24 * 3600));
/// Bounds of the leader's session: etcd counts whole seconds; above, the cluster has no leader for days after a crash.
pub(crate) const SESSION_TTLS: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(24 * 3600));

/// Runs the service.
///
/// The flags are those of cke. Durations are Go's: 90s, 1m30s, 1.5h. Without endpoints in the configuration file, the
/// service keeps its state in its embedded store in /var/lib/madako.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako serve --config /etc/cke/config.yml --interval 30s --logformat json\n  \
                  madako serve --simulated"
)]
pub(crate) struct ServeArgs {
    /// Address and port of health, version and metrics
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen_address, default_value = "0.0.0.0:10180")]
    http: SocketAddr,
    /// Time between polls of the registry
    #[arg(long, value_name = "DURATION", value_parser = |text: &str| parse_bounded(text, INTERVALS), default_value = "1m")]
    interval: Duration,
    /// Time to live of the leader's session, in whole seconds; at least 10s where operations on nodes are on
    #[arg(long, value_name = "DURATION", value_parser = |text: &str| parse_bounded(text, SESSION_TTLS),
          default_value = "60s")]
    session_ttl: Duration,
    /// Collector of traces by OTLP over gRPC, such as http://127.0.0.1:4317; without it the service sends no traces
    #[arg(long, value_name = "URL", value_parser = Collector::parse)]
    otlp_endpoint: Option<Collector>,
    /// Maximum number of nodes of one operation that starts or restarts rivers, and of a wave of kubelets or proxies
    #[arg(long, value_name = "NUMBER", value_parser = parse_updates, default_value_t = MAX_CONCURRENT_UPDATES)]
    max_concurrent_updates: usize,
    /// Time between removals of expired certificates from Vault, where it is used
    #[arg(long, value_name = "DURATION", value_parser = |text: &str| parse_bounded(text, INTERVALS), default_value = "1h")]
    certs_gc_interval: Duration,
    /// Debugs the integration with sabakan; has no effect yet
    #[arg(long, value_name = "BOOLEAN", value_parser = parse_go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    debug_sabakan: Option<bool>,
    /// Runs a simulated data center of 66 machines beside the service, for people without sabakan; with the embedded store
    /// only
    ///
    /// Its registry has sabakan's API on this address, by default on 127.0.0.1:10080, and is stored as the registry of the
    /// service. Simulated years pass in minutes, as in the demo. After a restart all machines begin anew. Kubernetes, etcd and
    /// the commands of repairs and reboots are simulated, too: `madako template example --for simulated` prints a template with
    /// these commands, and the service runs no other one.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen_address, num_args = 0..=1, require_equals = true,
          default_missing_value = "127.0.0.1:10080")]
    simulated: Option<SocketAddr>,
    /// Collects no metrics: /metrics is empty. For measurements of the cost of telemetry
    #[arg(long, hide = true)]
    without_telemetry: bool,
}

/// The resolved settings of the service.
#[derive(Debug)]
pub(crate) struct ServeOptions {
    pub(crate) config: Config,
    /// Address of health, version and metrics.
    pub(crate) http: SocketAddr,
    /// Time between polls of the registry.
    pub(crate) interval: Duration,
    /// Time to live of the session lease, whole seconds.
    pub(crate) session_ttl: Duration,
    /// Address of a simulated registry.
    pub(crate) simulated: Option<SocketAddr>,
    /// True if metrics are collected.
    pub(crate) telemetry: bool,
    /// Warnings to be logged once the log exists.
    pub(crate) warnings: Vec<String>,
}

impl ServeArgs {
    pub(crate) fn collector(&self) -> Option<&Collector> {
        self.otlp_endpoint.as_ref()
    }

    /// Resolves the flags and the configuration file.
    ///
    /// # Errors
    /// The configuration file cannot be used, or the session is too short for operations.
    pub(crate) fn into_options(self, global: &Global) -> Result<ServeOptions, Failure> {
        let mut config = Config::load(global.config.as_deref())?;
        config.operations.settings.max_concurrent_updates = self.max_concurrent_updates;
        config.operations.settings.certs_gc_interval = self.certs_gc_interval;
        // Whole seconds, as in cke; at least one.
        let session_ttl = Duration::from_secs(self.session_ttl.as_secs());
        if config.operations.mode == Some(OperationsMode::Act) && session_ttl < SHORTEST_ACTING_SESSION {
            return Err(Failure::bad_input(format_args!(
                "--session-ttl {session_ttl:?} is too short for operations on nodes, since each of their commands ends \
                 before the session may end: expected at least {SHORTEST_ACTING_SESSION:?}, or `operations: {{mode: off}}` \
                 in the configuration"
            )));
        }
        let mut warnings = config.warnings.clone();
        for (flag, given) in [("--debug-sabakan", self.debug_sabakan.is_some())] {
            if given {
                warnings.push(format!("{flag} has no effect yet"));
            }
        }
        Ok(ServeOptions {
            config,
            http: self.http,
            interval: self.interval,
            session_ttl,
            simulated: self.simulated,
            telemetry: !self.without_telemetry,
            warnings,
        })
    }
}

/// An address to listen on in Go's form: no host means every address, a name means its first address.
pub(crate) fn parse_listen_address(text: &str) -> Result<SocketAddr, String> {
    let expected = || "expected an address and a port, such as 127.0.0.1:10180".to_owned();
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(expected)?;
    let port: u16 = port.parse().map_err(|_| expected())?;
    match host {
        "" => Ok(SocketAddr::from(([0, 0, 0, 0], port))),
        "localhost" => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
        name => {
            let mut addresses: Vec<SocketAddr> =
                (name, port).to_socket_addrs().map_err(|error| format!("{}: {error}", expected()))?.collect();
            addresses.sort_by_key(SocketAddr::is_ipv6);
            addresses.first().copied().ok_or_else(expected)
        }
    }
}

pub(crate) fn parse_bounded(text: &str, (least, greatest): (Duration, Duration)) -> Result<Duration, String> {
    let duration = duration::parse(text).map_err(|error| error.to_string())?;
    if (least..=greatest).contains(&duration) {
        Ok(duration)
    } else {
        Err(format!("expected {least:?} to {}h", greatest.as_secs() / 3600))
    }
}

/// Number of concurrent updates of components; cke's type has 32 bits or more.
pub(crate) fn parse_updates(text: &str) -> Result<usize, String> {
    let number = whole_number(text, 1..=u64::from(u32::MAX))?;
    usize::try_from(number).map_err(|error| error.to_string())
}

/// A boolean in the form of Go's flags.
fn parse_go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}
