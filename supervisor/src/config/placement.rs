//! The section `placement`: API and scheduler of placement, with the keys of Krake's `api.yaml` and `scheduler.yaml`.
//!
//! Without the section both are off. Krake keys without effect here are accepted and named in one warning, so that
//! Krake's files work unchanged.

use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use madako_app_scheduler::SchedulerConfig;
use madako_domain::placement::cluster_template;
use madako_domain::placement::fit::Compared;
use madako_http::placement::{Authorization, Settings};
use madako_json::input::Problem;
use madako_json::krake::free::JsonObject;
use madako_protocol::placement::providers::MAX_AGE_INTERVALS;
use madako_store::Encryption;

use super::document::Fields;
use super::embedded::ServerTls;
use super::{access, encryption};
use crate::limits::{
    MAX_BODY, MAX_METRIC_AGE, MAX_METRICS_INTERVAL, MAX_RETRIES, MAX_SECONDS, MAX_TOSCA, METRICS_INTERVAL,
};

/// Default address of a separate listener: Krake's.
const DEFAULT_HOST: &str = "0.0.0.0";
const DEFAULT_PORT: u16 = 8080;

const TLS: [[&str; 2]; 3] = [["cert", "tls-cert"], ["key", access::PRIVATE_KEY], ["client_ca", "tls-ca"]];

#[derive(Debug, Clone)]
pub struct Placement {
    /// This instance decides about placement and collects garbage while it leads.
    pub controllers: bool,
    pub api: Api,
    pub scheduler: SchedulerConfig,
    pub metrics: Metrics,
    /// Encryption of secrets in the store.
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
    fn on(&self) -> impl Iterator<Item = Strategy<'_>> {
        let keycloak = self.keycloak.as_ref().map(|(endpoint, realm)| Strategy::Keycloak(endpoint, realm));
        let keystone = self.keystone.as_deref().map(Strategy::Keystone);
        self.fixed.as_deref().map(Strategy::Static).into_iter().chain(keystone).chain(keycloak)
    }

    /// The effective strategy: the first one, as in Krake.
    #[must_use]
    pub fn strategy(&self) -> Option<Strategy<'_>> {
        self.on().next()
    }

    /// Names enabled strategies without effect, for a warning.
    fn without_effect(&self) -> Option<String> {
        let counts = self.strategy()?;
        let off: Vec<_> = self.on().skip(1).map(|strategy| format!("`{strategy}`")).collect();
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
    pub fn every(interval: Duration) -> Self {
        Self { interval, max_age: interval * MAX_AGE_INTERVALS }
    }
}

impl Default for Placement {
    /// The meaning of an empty section.
    fn default() -> Self {
        Self {
            controllers: true,
            api: default_api(),
            scheduler: SchedulerConfig::default(),
            metrics: Metrics::every(METRICS_INTERVAL),
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
    pub fn refused_on(&self, address: SocketAddr) -> Option<String> {
        let setting = self.open().filter(|_| !self.insecure && !address.ip().to_canonical().is_loopback())?;
        Some(format!(
            "the placement API on {address} would accept anonymous requests (`placement.api.{setting}`): \
             serve it on loopback, require a login, or set `placement.api.insecure: true`"
        ))
    }
}

pub(super) fn read(mut section: Fields) -> Placement {
    let controllers = section.flag("controllers").unwrap_or(true);
    let api = section.section("api").map_or_else(default_api, read_api);
    let scheduler = section.section("scheduler").map(read_scheduler).unwrap_or_default();
    let metrics = read_metrics(&mut section);
    let encryption =
        section.section("encryption").map(encryption::read).map(Encryption::from).unwrap_or_default();
    section.finish();
    let ignored = mem::take(&mut section.findings().ignored);
    if !ignored.is_empty() {
        section.warn(format!("keys of Krake that have no effect here: {}", ignored.join(", ")));
    }
    Placement { controllers, api, scheduler, metrics, encryption }
}

fn read_metrics(section: &mut Fields) -> Metrics {
    let within = Duration::from_secs(1)..=MAX_METRICS_INTERVAL;
    let interval = section.span("metrics_interval", within, "between 1s and 1h");
    let metrics = Metrics::every(interval.unwrap_or(METRICS_INTERVAL));
    // A value that expires before the next round would appear and disappear.
    let within = metrics.interval..=MAX_METRIC_AGE;
    let max_age = section.span("metric_max_age", within, "between `metrics_interval` and 24h");
    Metrics { max_age: max_age.unwrap_or(metrics.max_age), ..metrics }
}

fn default_api() -> Api {
    Api {
        listen: None,
        tls: None,
        settings: Settings::new(""),
        authentication: Authentication::default(),
        insecure: false,
    }
}

fn read_api(mut api: Fields) -> Api {
    api.ignore(&["log", "default_roles", "default_role_bindings"]);
    let mut read = default_api();
    let host = api.filled("host");
    let port: Option<u16> = api.number("port", 1..=u64::from(u16::MAX));
    if host.is_some() || port.is_some() {
        let host = host.unwrap_or_else(|| DEFAULT_HOST.to_owned());
        let host =
            if host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) { format!("[{host}]") } else { host };
        read.listen = Some(format!("{host}:{}", port.unwrap_or(DEFAULT_PORT)));
    }
    let settings = &mut read.settings;
    if let Some(mut etcd) = api.section("etcd") {
        etcd.ignore(&["host", "port"]);
        let retries = etcd.number("retry_transactions", 0..=MAX_RETRIES);
        settings.retry_transactions = retries.unwrap_or(settings.retry_transactions);
        etcd.finish();
    }
    settings.body_bytes = api.number("max_request_bytes", 1..=MAX_BODY).unwrap_or(settings.body_bytes);
    read.insecure = api.flag("insecure").unwrap_or(false);
    read.tls = api.section("tls").and_then(read_tls);
    if let Some(mut docs) = api.section("docs") {
        if let Some(url) = docs.text("problem_base_url") {
            settings.problem_base_url = url;
        }
        docs.finish();
    }
    if let Some(authentication) = api.section("authentication") {
        read_authentication(authentication, &mut read);
    }
    let authorization = api.parsed("authorization", "one of RBAC, always-allow, always-deny");
    read.settings.authorization = authorization.unwrap_or(read.settings.authorization);
    api.finish();
    read
}

/// Krake's fields name files; the inline forms are those of this project's other sections.
fn read_tls(mut tls: Fields) -> Option<ServerTls> {
    let enabled = tls.flag("enabled").unwrap_or(false);
    if !enabled {
        // Files named for a disabled TLS need not exist.
        tls.pass_over(TLS.as_flattened());
    }
    let needed = |what| Some(format!("the file of the server's {what}, because TLS is enabled"));
    let read = enabled
        .then(|| access::server_tls(&mut tls, TLS, |_| [needed("certificate"), needed("private key"), None]));
    tls.finish();
    read.flatten()
}

fn read_authentication(mut authentication: Fields, api: &mut Api) {
    api.settings.allow_anonymous = authentication.flag("allow_anonymous").unwrap_or(false);
    let dashed = authentication.filled("cors-origin");
    let origin = authentication.filled("cors_origin");
    if let (Some(dashed), Some(origin)) = (&dashed, &origin)
        && dashed != origin
    {
        let got = format!("{origin:?}, and {dashed:?} in `cors-origin`");
        authentication.report("cors_origin", got, "one of the two names");
    }
    if let Some(origin) = origin.or(dashed) {
        api.settings.cors_origin = origin;
    }
    if let Some(mut strategy) = authentication.section("strategy") {
        let enabled = &mut api.authentication;
        enabled.keystone =
            read_strategy(&mut strategy, "keystone", |keystone| url(keystone, "http://localhost:5000/v3"));
        enabled.keycloak = read_strategy(&mut strategy, "keycloak", |keycloak| {
            let endpoint = url(keycloak, "http://localhost:9080");
            (endpoint, keycloak.filled("realm").unwrap_or_else(|| "krake".to_owned()))
        });
        enabled.fixed = read_strategy(&mut strategy, "static", |fixed| {
            fixed.filled("name").unwrap_or_else(|| "system".to_owned())
        });
        strategy.finish();
        strategy.findings().warnings.extend(enabled.without_effect());
    }
    authentication.finish();
}

/// An enabled strategy. The other fields of a disabled one are not read.
fn read_strategy<T>(
    strategy: &mut Fields,
    name: &'static str,
    read: impl FnOnce(&mut Fields) -> T,
) -> Option<T> {
    let mut fields = strategy.section(name)?;
    let enabled = fields.flag("enabled").unwrap_or(false);
    enabled.then(|| {
        let value = read(&mut fields);
        fields.finish();
        value
    })
}

fn url(fields: &mut Fields, default: &str) -> String {
    let given = fields.filled("endpoint").unwrap_or_else(|| default.to_owned());
    let plain = given.strip_prefix("http://").or_else(|| given.strip_prefix("https://"));
    if plain.is_none_or(|rest| rest.is_empty() || rest.starts_with('/')) {
        let expected = "an address that begins with http:// or https://";
        fields.report("endpoint", format!("{given:?}"), expected);
    }
    given
}

fn read_scheduler(mut fields: Fields) -> SchedulerConfig {
    fields.ignore(&["api_endpoint", "worker_count", "tls", "log"]);
    let mut config = SchedulerConfig::default();
    let seconds = |fields: &mut Fields, name, default| {
        fields.decimal(name, MAX_SECONDS).map_or(default, Duration::from_secs_f64)
    };
    config.reschedule_after = seconds(&mut fields, "reschedule_after", config.reschedule_after);
    config.stickiness = fields.decimal("stickiness", f64::MAX).unwrap_or(config.stickiness);
    config.debounce = seconds(&mut fields, "debounce", config.debounce);
    let compared = fields.parsed("metric_constraints", "value or weighted");
    config.metric_constraints = compared.unwrap_or(Compared::Value);
    config.candidates = fields.parsed("clusters", "all or namespace").unwrap_or(config.candidates);
    if let Some(mut moves) = fields.section("max_moves") {
        let most = &mut config.max_moves;
        most.percent = moves.number("percent", 0..=100).unwrap_or(most.percent);
        most.at_least = moves.number("at_least", 1..=1_000_000).unwrap_or(most.at_least);
        moves.finish();
    }
    if let Some(mut section) = fields.section("automatic_cluster_creation") {
        let creation = &mut config.cluster_creation;
        if let Some(path) = section.filled("tosca_file") {
            creation.tosca = read_tosca(&mut section, &path);
        }
        creation.deletion_retention =
            seconds(&mut section, "deletion_retention", creation.deletion_retention);
        section.finish();
    }
    fields.finish();
    config
}

/// The YAML template at a path. Krake's own example names a file that may be missing, and none is needed until an
/// application requests a cluster.
fn read_tosca(fields: &mut Fields, path: &str) -> Option<JsonObject> {
    let text = match super::read_bounded(Path::new(path), MAX_TOSCA) {
        Ok(text) => text,
        Err(error) => {
            let field = fields.path("tosca_file");
            fields.warn(format!(
                "Madako creates no clusters automatically: cannot read {path} of `{field}`: {error}"
            ));
            return None;
        }
    };
    let read = super::document::value(&text)
        .and_then(|template| JsonObject::from_text(&template.to_string()).map_err(|error| error.to_string()));
    match read {
        Ok(template) => match cluster_template(&template).finish("the template") {
            Ok(()) => Some(template),
            Err(error) => {
                // Otherwise the store would contain clusters that Krake's clients cannot read.
                for Problem { field, got, expected } in error.problems {
                    let got = if got.is_empty() { "nothing".to_owned() } else { got };
                    fields.report("tosca_file", format!("{path:?}: `{field}` is {got}"), expected);
                }
                None
            }
        },
        Err(why) => {
            let expected = "the path of a TOSCA template in YAML";
            fields.report("tosca_file", format!("{path:?}: {why}"), expected);
            None
        }
    }
}

#[cfg(test)]
mod tests;
