//! The section `placement`: API and scheduler of placement, with the keys of Krake's `api.yaml` and `scheduler.yaml`.
//!
//! Without the section both are off. Krake keys without effect here are accepted and named in one warning, so that
//! Krake's files work unchanged.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use madako_app_scheduler::{Candidates, SchedulerConfig};
use madako_domain::placement::cluster_template;
use madako_domain::placement::fit::Compared;
use madako_http::placement::{Authorization, Settings};
use madako_json::duration;
use madako_json::input::{Problem, Problems};
use madako_json::krake::free::JsonObject;
use madako_protocol::placement::providers::MAX_AGE_INTERVALS;
use madako_store::{Encryption, Secret};

use super::document::Fields;
use super::embedded::ServerTls;
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy<'a> {
    /// All requests come from this user.
    Static(&'a str),
    /// Tokens of the Keystone at this endpoint.
    Keystone(&'a str),
    /// Tokens of the Keycloak at this endpoint, of this realm.
    Keycloak(&'a str, &'a str),
}

impl Strategy<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::Static(_) => "static",
            Self::Keystone(_) => "keystone",
            Self::Keycloak(..) => "keycloak",
        }
    }
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
        let counts = self.strategy()?.name();
        let off: Vec<&str> = self.on().skip(1).map(Strategy::name).collect();
        (!off.is_empty()).then(|| {
            format!(
                "`placement.api.authentication.strategy`: Madako uses `{counts}` and ignores {}: as in \
                 Krake, the first of static, keystone and keycloak counts",
                off.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
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

/// Reads the section; also returns the name of its field with a secret value, if any.
pub(super) fn read(
    mut section: Fields,
    problems: &mut Problems,
    warnings: &mut Vec<String>,
) -> (Placement, Option<String>) {
    let mut ignored = Vec::new();
    let controllers = section.flag("controllers", problems).unwrap_or(true);
    let (api, secret) = match section.section("api", problems) {
        Some(api) => read_api(api, problems, warnings, &mut ignored),
        None => (default_api(), None),
    };
    let scheduler = match section.section("scheduler", problems) {
        Some(scheduler) => read_scheduler(scheduler, problems, warnings, &mut ignored),
        None => SchedulerConfig::default(),
    };
    let metrics = read_metrics(&mut section, problems);
    let encryption = section.section("encryption", problems);
    let encryption =
        encryption.map_or_else(Encryption::default, |section| encryption::read(section, problems));
    section.finish(problems);
    if !ignored.is_empty() {
        warnings.push(format!("keys of Krake that have no effect here: {}", ignored.join(", ")));
    }
    (Placement { controllers, api, scheduler, metrics, encryption }, secret)
}

fn read_metrics(section: &mut Fields, problems: &mut Problems) -> Metrics {
    let within = Duration::from_secs(1)..=MAX_METRICS_INTERVAL;
    let interval = read_span(section, "metrics_interval", within, "between 1s and 1h", problems);
    let metrics = Metrics::every(interval.unwrap_or(METRICS_INTERVAL));
    // A value that expires before the next round would appear and disappear.
    let within = metrics.interval..=MAX_METRIC_AGE;
    let expected = "between `metrics_interval` and 24h";
    let max_age = read_span(section, "metric_max_age", within, expected, problems);
    Metrics { max_age: max_age.unwrap_or(metrics.max_age), ..metrics }
}

fn read_span(
    section: &mut Fields,
    name: &'static str,
    within: RangeInclusive<Duration>,
    expected: &str,
    problems: &mut Problems,
) -> Option<Duration> {
    let text = section.text(name, problems)?;
    match duration::parse(&text) {
        Ok(span) if within.contains(&span) => return Some(span),
        Ok(_) => section.report(name, format!("{text:?}"), expected, problems),
        Err(expected) => section.report(name, format!("{text:?}"), expected.to_string(), problems),
    }
    None
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

fn read_api(
    mut api: Fields,
    problems: &mut Problems,
    warnings: &mut Vec<String>,
    ignored: &mut Vec<String>,
) -> (Api, Option<String>) {
    api.ignore(&["log", "default_roles", "default_role_bindings"], ignored);
    let mut read = default_api();
    let host = api.filled("host", problems);
    let port = api.number("port", 1, u64::from(u16::MAX), problems);
    if host.is_some() || port.is_some() {
        let host = host.unwrap_or_else(|| DEFAULT_HOST.to_owned());
        let host =
            if host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) { format!("[{host}]") } else { host };
        read.listen = Some(format!("{host}:{}", port.unwrap_or(u64::from(DEFAULT_PORT))));
    }
    if let Some(mut etcd) = api.section("etcd", problems) {
        etcd.ignore(&["host", "port"], ignored);
        if let Some(retries) = etcd.number("retry_transactions", 0, MAX_RETRIES, problems) {
            read.settings.retry_transactions = u32::try_from(retries).unwrap_or(u32::MAX);
        }
        etcd.finish(problems);
    }
    if let Some(bytes) = api.number("max_request_bytes", 1, MAX_BODY, problems) {
        read.settings.body_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    read.insecure = api.flag("insecure", problems).unwrap_or(false);
    let mut secret = None;
    if let Some(mut tls) = api.section("tls", problems) {
        (read.tls, secret) = read_tls(&mut tls, problems, warnings);
        tls.finish(problems);
    }
    if let Some(mut docs) = api.section("docs", problems) {
        if let Some(url) = docs.text("problem_base_url", problems) {
            read.settings.problem_base_url = url;
        }
        docs.finish(problems);
    }
    if let Some(authentication) = api.section("authentication", problems) {
        read_authentication(authentication, &mut read, problems, warnings);
    }
    if let Some(mode) = api.filled("authorization", problems) {
        match mode.as_str() {
            "RBAC" => read.settings.authorization = Authorization::Rbac,
            "always-allow" => read.settings.authorization = Authorization::AlwaysAllow,
            "always-deny" => read.settings.authorization = Authorization::AlwaysDeny,
            other => {
                let expected = "one of RBAC, always-allow, always-deny";
                api.report("authorization", format!("{other:?}"), expected, problems);
            }
        }
    }
    api.finish(problems);
    (read, secret)
}

/// Krake's fields name files; the inline forms are those of this project's other sections.
fn read_tls(
    tls: &mut Fields,
    problems: &mut Problems,
    warnings: &mut Vec<String>,
) -> (Option<ServerTls>, Option<String>) {
    let enabled = tls.flag("enabled", problems).unwrap_or(false);
    if !enabled {
        // Files named for a disabled TLS need not exist.
        tls.ignore(&["cert", "key", "client_ca", access::PRIVATE_KEY, "tls-cert", "tls-ca"], &mut Vec::new());
        return (None, None);
    }
    let secret = access::secret_among(tls, &[access::PRIVATE_KEY]);
    let certificate = access::certificate(tls, ["cert", "tls-cert"], problems);
    let key = access::private_key(tls, ["key", access::PRIVATE_KEY], problems, warnings);
    let client_ca = access::certificate(tls, ["client_ca", "tls-ca"], problems);
    for (missing, field, what) in [
        (certificate.is_none(), "cert", "the file of the server's certificate, because TLS is enabled"),
        (key.is_none(), "key", "the file of the server's private key, because TLS is enabled"),
    ] {
        if missing {
            tls.report_missing(field, what, problems);
        }
    }
    let (Some(certificate), Some(key)) = (certificate, key) else { return (None, secret) };
    access::check_match(tls, &certificate, &key, problems);
    let tls = ServerTls {
        certificate: certificate.text,
        key: Secret::new(key.text),
        client_ca: client_ca.map(|ca| ca.text),
    };
    (Some(tls), secret)
}

fn read_authentication(
    mut authentication: Fields,
    api: &mut Api,
    problems: &mut Problems,
    warnings: &mut Vec<String>,
) {
    api.settings.allow_anonymous = authentication.flag("allow_anonymous", problems).unwrap_or(false);
    let dashed = authentication.filled("cors-origin", problems);
    let origin = authentication.filled("cors_origin", problems);
    if let (Some(dashed), Some(origin)) = (&dashed, &origin)
        && dashed != origin
    {
        let got = format!("{origin:?}, and {dashed:?} in `cors-origin`");
        authentication.report("cors_origin", got, "one of the two names", problems);
    }
    if let Some(origin) = origin.or(dashed) {
        api.settings.cors_origin = origin;
    }
    if let Some(mut strategy) = authentication.section("strategy", problems) {
        if let Some((true, mut keystone)) = enabled(&mut strategy, "keystone", problems) {
            let endpoint = keystone.filled("endpoint", problems);
            api.authentication.keystone =
                Some(url(&mut keystone, endpoint, "http://localhost:5000/v3", problems));
            keystone.finish(problems);
        }
        if let Some((true, mut keycloak)) = enabled(&mut strategy, "keycloak", problems) {
            let endpoint = keycloak.filled("endpoint", problems);
            let endpoint = url(&mut keycloak, endpoint, "http://localhost:9080", problems);
            let realm = keycloak.filled("realm", problems).unwrap_or_else(|| "krake".to_owned());
            api.authentication.keycloak = Some((endpoint, realm));
            keycloak.finish(problems);
        }
        if let Some((true, mut fixed)) = enabled(&mut strategy, "static", problems) {
            let name = fixed.filled("name", problems).unwrap_or_else(|| "system".to_owned());
            api.authentication.fixed = Some(name);
            fixed.finish(problems);
        }
        strategy.finish(problems);
        warnings.extend(api.authentication.without_effect());
    }
    authentication.finish(problems);
}

/// A strategy, and whether it is enabled. The other fields of a disabled strategy are not read.
fn enabled(strategy: &mut Fields, name: &'static str, problems: &mut Problems) -> Option<(bool, Fields)> {
    let mut fields = strategy.section(name, problems)?;
    let on = fields.flag("enabled", problems).unwrap_or(false);
    Some((on, fields))
}

fn url(fields: &mut Fields, given: Option<String>, default: &str, problems: &mut Problems) -> String {
    let given = given.unwrap_or_else(|| default.to_owned());
    let plain = given.strip_prefix("http://").or_else(|| given.strip_prefix("https://"));
    if plain.is_none_or(|rest| rest.is_empty() || rest.starts_with('/')) {
        fields.report(
            "endpoint",
            format!("{given:?}"),
            "an address that begins with http:// or https://",
            problems,
        );
    }
    given
}

fn read_scheduler(
    mut fields: Fields,
    problems: &mut Problems,
    warnings: &mut Vec<String>,
    ignored: &mut Vec<String>,
) -> SchedulerConfig {
    fields.ignore(&["api_endpoint", "worker_count", "tls", "log"], ignored);
    let mut config = SchedulerConfig::default();
    if let Some(seconds) = fields.decimal("reschedule_after", 0.0, MAX_SECONDS, problems) {
        config.reschedule_after = Duration::from_secs_f64(seconds);
    }
    if let Some(weight) = fields.decimal("stickiness", 0.0, f64::MAX, problems) {
        config.stickiness = weight;
    }
    if let Some(seconds) = fields.decimal("debounce", 0.0, MAX_SECONDS, problems) {
        config.debounce = Duration::from_secs_f64(seconds);
    }
    match fields.filled("metric_constraints", problems).as_deref() {
        None | Some("value") => config.metric_constraints = Compared::Value,
        Some("weighted") => config.metric_constraints = Compared::Weighted,
        Some(other) => {
            fields.report("metric_constraints", format!("{other:?}"), "value or weighted", problems);
        }
    }
    match fields.filled("clusters", problems).as_deref() {
        None => {}
        Some("all") => config.candidates = Candidates::All,
        Some("namespace") => config.candidates = Candidates::Namespace,
        Some(other) => fields.report("clusters", format!("{other:?}"), "all or namespace", problems),
    }
    if let Some(mut moves) = fields.section("max_moves", problems) {
        if let Some(percent) = moves.number("percent", 0, 100, problems) {
            config.max_moves.percent = percent;
        }
        if let Some(least) = moves.number("at_least", 1, 1_000_000, problems) {
            config.max_moves.at_least = least;
        }
        moves.finish(problems);
    }
    if let Some(mut creation) = fields.section("automatic_cluster_creation", problems) {
        if let Some(path) = creation.filled("tosca_file", problems) {
            config.cluster_creation.tosca = read_tosca(&mut creation, &path, problems, warnings);
        }
        if let Some(seconds) = creation.decimal("deletion_retention", 0.0, MAX_SECONDS, problems) {
            config.cluster_creation.deletion_retention = Duration::from_secs_f64(seconds);
        }
        creation.finish(problems);
    }
    fields.finish(problems);
    config
}

/// The YAML template at a path. Krake's own example names a file that may be missing, and none is needed until an
/// application requests a cluster.
fn read_tosca(
    fields: &mut Fields,
    path: &str,
    problems: &mut Problems,
    warnings: &mut Vec<String>,
) -> Option<JsonObject> {
    let text = match super::read_bounded(Path::new(path), MAX_TOSCA) {
        Ok(text) => text,
        Err(error) => {
            let field = fields.path("tosca_file");
            warnings.push(format!(
                "Madako creates no clusters automatically: cannot read {path} of `{field}`: \
                 {error}"
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
                    fields.report("tosca_file", format!("{path:?}: `{field}` is {got}"), expected, problems);
                }
                None
            }
        },
        Err(why) => {
            let expected = "the path of a TOSCA template in YAML";
            fields.report("tosca_file", format!("{path:?}: {why}"), expected, problems);
            None
        }
    }
}

#[cfg(test)]
mod tests;
