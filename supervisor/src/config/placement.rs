//! The section `placement`: API and scheduler of placement, with the keys of Krake's `api.yaml` and `scheduler.yaml`.
//!
//! Without the section both are off. Krake keys without effect here are accepted and named in one warning, so that
//! Krake's files work unchanged.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use madako_app_scheduler::{Candidates, SchedulerConfig};
use madako_domain::placement::cluster_template;
use madako_domain::placement::fit::ComparedMetrics;
use madako_http::placement::{Authorization, Settings};
use madako_json::input::Problem;
use madako_json::krake::free::JsonObject;
use madako_json::strict::{Kind, Tree, shown_text, yaml};
use madako_protocol::placement::providers::MAX_AGE_INTERVALS;
use madako_store::Encryption;
use strum::VariantNames as _;

use super::embedded::ServerTls;
use super::settings::{ConfigFindings, DURATION, Pem, is_span, read_plain, read_span, read_word, section};
use super::{access, encryption};
use crate::limits::{
    MAX_BODY, MAX_METRIC_AGE, MAX_METRICS_INTERVAL, MAX_RETRIES, MAX_SECONDS, MAX_TOSCA, METRICS_INTERVAL,
};

/// Default address of a separate listener: Krake's.
const DEFAULT_HOST: &str = "0.0.0.0";
const DEFAULT_PORT: u16 = 8080;

#[derive(Debug, Clone)]
pub struct Placement {
    /// This instance decides about placement and collects garbage while it leads.
    pub controllers: bool,
    pub api: Api,
    pub scheduler: SchedulerConfig,
    pub metrics: Metrics,
    pub encryption: Encryption,
}

#[derive(Debug, Clone)]
pub struct Api {
    /// Separate listener as `host:port`; `None`: the API is served on the service's port.
    pub listen: Option<String>,
    /// Certificates of the API's listener.
    pub tls: Option<ServerTls>,
    /// Behaviour; the program sets the version.
    pub settings: Settings,
    pub authentication: Authentication,
    /// Anonymous access is intended even on an address that other machines reach.
    pub insecure: bool,
}

/// The enabled strategies; client certificates are enabled whenever the listener requests them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Authentication {
    pub keystone: Option<String>,
    /// Keycloak's endpoint and realm.
    pub keycloak: Option<(String, String)>,
    /// The one user for all requests.
    pub fixed: Option<String>,
}

/// Authentication beside client certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Strategy<'a> {
    /// All requests come from this user.
    Static(&'a str),
    /// Tokens of the Keystone at this endpoint.
    Keystone(&'a str),
    /// Tokens of the Keycloak at this endpoint, of this realm.
    Keycloak(&'a str, &'a str),
}

impl Authentication {
    /// The enabled strategies, in Krake's order.
    fn configured_strategies(&self) -> impl Iterator<Item = Strategy<'_>> {
        let keycloak = self.keycloak.as_ref().map(|(endpoint, realm)| Strategy::Keycloak(endpoint, realm));
        let keystone = self.keystone.as_deref().map(Strategy::Keystone);
        self.fixed.as_deref().map(Strategy::Static).into_iter().chain(keystone).chain(keycloak)
    }

    /// The effective strategy: the first one, as in Krake.
    #[must_use]
    pub fn strategy(&self) -> Option<Strategy<'_>> {
        self.configured_strategies().next()
    }

    /// Names enabled strategies without effect, for a warning.
    fn strategies_without_effect(&self) -> Option<String> {
        let counts = self.strategy()?;
        let off: Vec<_> =
            self.configured_strategies().skip(1).map(|strategy| format!("`{strategy}`")).collect();
        (!off.is_empty()).then(|| {
            format!(
                "`placement.api.authentication.strategy`: Madako uses `{counts}` and ignores {}: as in \
                 Krake, the first of static, keystone and keycloak counts",
                off.join(", ")
            )
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metrics {
    pub interval: Duration,
    /// Maximum age of a kept value.
    pub max_age: Duration,
}

impl Metrics {
    /// Settings with this interval and defaults otherwise.
    #[must_use]
    pub fn with_interval(interval: Duration) -> Self {
        Self { interval, max_age: interval * MAX_AGE_INTERVALS }
    }
}

impl Default for Placement {
    /// The meaning of an empty section.
    fn default() -> Self {
        Self {
            controllers: true,
            api: Api {
                listen: None,
                tls: None,
                settings: Settings::new(""),
                authentication: Authentication::default(),
                insecure: false,
            },
            scheduler: SchedulerConfig::default(),
            metrics: Metrics::with_interval(METRICS_INTERVAL),
            encryption: Encryption::default(),
        }
    }
}

impl Api {
    /// The setting that permits anonymous requests, if one does.
    #[must_use]
    pub fn open(&self) -> Option<&'static str> {
        match self.settings.authorization {
            Authorization::AlwaysAllow => Some("authorization: always-allow"),
            Authorization::Rbac if self.settings.allow_anonymous => {
                Some("authentication.allow_anonymous: true")
            }
            Authorization::Rbac | Authorization::AlwaysDeny => None,
        }
    }

    /// Reason not to serve the API on an address: only loopback allows anonymous requests without `insecure`.
    #[must_use]
    pub fn reason_not_to_serve(&self, address: SocketAddr) -> Option<String> {
        let setting = self.open().filter(|_| !self.insecure && !address.ip().to_canonical().is_loopback())?;
        Some(format!(
            "the placement API on {address} would accept anonymous requests (`placement.api.{setting}`): \
             serve it on loopback, require a login, or set `placement.api.insecure: true`"
        ))
    }
}

/// Settings that need a check.
#[derive(Default)]
pub(super) struct GivenPlacement {
    placement: Placement,
    metric_max_age: Option<Duration>,
    encryption: Option<encryption::GivenKeys>,
    host: Option<String>,
    port: Option<u16>,
    is_tls: bool,
    pems: [Pem; 3],
    cors_origin: Option<String>,
    /// The same with Krake's dash.
    dashed_origin: Option<String>,
    keystone: EnabledStrategy,
    keycloak: EnabledStrategy,
    realm: Option<String>,
    fixed: EnabledStrategy,
    tosca_file: Option<String>,
}

#[derive(Default)]
struct EnabledStrategy {
    is_enabled: bool,
    /// Its endpoint, or its user.
    value: Option<String>,
}

section! {
    it: GivenPlacement = GivenPlacement::default() => {
        "controllers": Kind::Bool => it.placement.controllers;
        "metrics_interval": INTERVAL => it.placement.metrics.interval, by read_span;
        "metric_max_age": DURATION => it.metric_max_age, by |age| Some(read_span(age));
        at "encryption": encryption => it.encryption;
        in "api" {
            "host": Kind::Text => it.host;
            "port": Kind::Whole(1, u16::MAX as i64) => it.port;
            "max_request_bytes": Kind::Whole(1, MAX_BODY) => it.placement.api.settings.body_bytes;
            "insecure": Kind::Bool => it.placement.api.insecure;
            "authorization": Kind::OneOf(Authorization::VARIANTS) => it.placement.api.settings.authorization, by read_word;
            in "etcd" {
                "retry_transactions": Kind::Whole(0, MAX_RETRIES) => it.placement.api.settings.retry_transactions;
                unused "host", "port";
            }
            in "tls" {
                "enabled": Kind::Bool => it.is_tls;
                // Krake's fields name files; the inline forms are those of this project's other sections.
                pem "cert", "tls-cert": Kind::Text => it.pems[0];
                pem "key", "tls-key": Kind::Secret => it.pems[1];
                pem "client_ca", "tls-ca": Kind::Text => it.pems[2];
            }
            in "docs" {
                "problem_base_url": ANY_TEXT => it.placement.api.settings.problem_base_url;
            }
            in "authentication" {
                "allow_anonymous": Kind::Bool => it.placement.api.settings.allow_anonymous;
                "cors_origin": Kind::Text => it.cors_origin;
                "cors-origin": Kind::Text => it.dashed_origin;
                in "strategy" {
                    in "keystone" {
                        "enabled": Kind::Bool => it.keystone.is_enabled;
                        "endpoint": Kind::Text => it.keystone.value;
                    }
                    in "keycloak" {
                        "enabled": Kind::Bool => it.keycloak.is_enabled;
                        "endpoint": Kind::Text => it.keycloak.value;
                        "realm": Kind::Text => it.realm;
                    }
                    in "static" {
                        "enabled": Kind::Bool => it.fixed.is_enabled;
                        "name": Kind::Text => it.fixed.value;
                    }
                }
            }
            unused "log", "default_roles", "default_role_bindings";
        }
        in "scheduler" {
            "reschedule_after": SECONDS => it.placement.scheduler.reschedule_after, by read_seconds;
            "stickiness": Kind::UpTo(f64::MAX) => it.placement.scheduler.stickiness;
            "debounce": SECONDS => it.placement.scheduler.debounce, by read_seconds;
            "metric_constraints": Kind::OneOf(ComparedMetrics::VARIANTS) => it.placement.scheduler.metric_constraints, by read_word;
            "clusters": Kind::OneOf(Candidates::VARIANTS) => it.placement.scheduler.candidates, by read_word;
            in "max_moves" {
                "percent": Kind::Whole(0, 100) => it.placement.scheduler.max_moves.percent;
                "at_least": Kind::Whole(1, 1_000_000) => it.placement.scheduler.max_moves.at_least;
            }
            in "automatic_cluster_creation" {
                "tosca_file": Kind::Text => it.tosca_file;
                "deletion_retention": SECONDS => it.placement.scheduler.cluster_creation.deletion_retention, by read_seconds;
            }
            unused "api_endpoint", "worker_count", "tls", "log";
        }
    }
}

const INTERVAL: Kind = Kind::Checked("a duration from 1s to 1h, such as 15s", |text| {
    is_span(text, &(Duration::from_secs(1)..=MAX_METRICS_INTERVAL))
});
const ANY_TEXT: Kind = Kind::Checked("a text", |_| true);
const SECONDS: Kind = Kind::UpTo(MAX_SECONDS);

/// A time as a number of seconds, as in Krake.
fn read_seconds(value: &Tree) -> Option<Duration> {
    read_plain(value).map(Duration::from_secs_f64)
}

pub(super) fn read_placement(given: GivenPlacement, findings: &mut ConfigFindings) -> Placement {
    let mut placement = given.placement;
    placement.metrics = read_metrics(placement.metrics.interval, given.metric_max_age, findings);
    if let Some(keys) = given.encryption {
        placement.encryption = encryption::read_keys(&keys, "placement.encryption", findings).into();
    }
    let api = &mut placement.api;
    if given.host.is_some() || given.port.is_some() {
        let host = given.host.unwrap_or_else(|| DEFAULT_HOST.to_owned());
        let is_ipv6 = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6());
        let host = if is_ipv6 { format!("[{host}]") } else { host };
        api.listen = Some(format!("{host}:{}", given.port.unwrap_or(DEFAULT_PORT)));
    }
    // The files of a disabled TLS need not exist.
    if given.is_tls {
        let needed = |what| Some(format!("the file of the server's {what}, because TLS is enabled"));
        api.tls = access::server_tls(&given.pems, "placement.api.tls.", findings, |_| {
            [needed("certificate"), needed("private key"), None]
        });
    }
    if let (Some(dashed), Some(origin)) = (&given.dashed_origin, &given.cors_origin)
        && dashed != origin
    {
        let got = format!("{origin:?}, and {dashed:?} in `cors-origin`");
        findings.report("placement.api.authentication.cors_origin", got, "one of the two names");
    }
    if let Some(origin) = given.cors_origin.or(given.dashed_origin) {
        api.settings.cors_origin = origin;
    }
    let (keystone, keycloak, fixed) = (given.keystone, given.keycloak, given.fixed);
    api.authentication = Authentication {
        keystone: keystone
            .is_enabled
            .then(|| read_url("keystone", keystone.value, "http://localhost:5000/v3", findings)),
        keycloak: keycloak.is_enabled.then(|| {
            let endpoint = read_url("keycloak", keycloak.value, "http://localhost:9080", findings);
            (endpoint, given.realm.unwrap_or_else(|| "krake".to_owned()))
        }),
        fixed: fixed.is_enabled.then(|| fixed.value.unwrap_or_else(|| "system".to_owned())),
    };
    findings.warnings.extend(api.authentication.strategies_without_effect());
    if let Some(path) = given.tosca_file {
        placement.scheduler.cluster_creation.tosca = read_tosca(&path, findings);
    }
    if !findings.unused.is_empty() {
        findings.warn(format!("keys of Krake that have no effect here: {}", findings.unused.join(", ")));
    }
    placement
}

fn read_metrics(interval: Duration, max_age: Option<Duration>, findings: &mut ConfigFindings) -> Metrics {
    let default = Metrics::with_interval(interval);
    let max_age = max_age.unwrap_or(default.max_age);
    // A value that expires before the next fetch would appear and disappear.
    if !(interval..=MAX_METRIC_AGE).contains(&max_age) {
        let expected = "a duration from `metrics_interval` to 24h";
        findings.report("placement.metric_max_age", format!("{max_age:?}"), expected);
    }
    Metrics { max_age, ..default }
}

fn read_url(strategy: &str, given: Option<String>, default: &str, findings: &mut ConfigFindings) -> String {
    let endpoint = given.unwrap_or_else(|| default.to_owned());
    let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    if rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('/')) {
        let field = format!("placement.api.authentication.strategy.{strategy}.endpoint");
        findings.report(field, shown_text(&endpoint), "an address that begins with http:// or https://");
    }
    endpoint
}

/// The YAML template at a path. Krake's own example names a file that may be missing, and none is needed until an
/// application requests a cluster.
fn read_tosca(path: &str, findings: &mut ConfigFindings) -> Option<JsonObject> {
    const FIELD: &str = "placement.scheduler.automatic_cluster_creation.tosca_file";
    let text = match super::read_bounded(Path::new(path), MAX_TOSCA) {
        Ok(text) => text,
        Err(error) => {
            findings.warn(format!(
                "Madako creates no clusters automatically: cannot read {path} of `{FIELD}`: {error}"
            ));
            return None;
        }
    };
    let read = yaml::parse::<serde_json::Value>(&text)
        .and_then(|template| JsonObject::from_text(&template.to_string()).map_err(|error| error.to_string()));
    let template = match read {
        Ok(template) => template,
        Err(why) => {
            findings.report(FIELD, format!("{path:?}: {why}"), "the path of a TOSCA template in YAML");
            return None;
        }
    };
    // The store must not contain clusters that Krake's clients cannot read.
    let Err(error) = cluster_template(&template).finish("the template") else { return Some(template) };
    for Problem { field, got, expected } in error.problems {
        let got = if got.is_empty() { "nothing".to_owned() } else { got };
        findings.report(FIELD, format!("{path:?}: `{field}` is {got}"), expected);
    }
    None
}

#[cfg(test)]
mod tests;
