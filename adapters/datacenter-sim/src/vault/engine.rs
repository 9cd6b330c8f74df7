//! The secrets engines of the simulated Vault: PKI for certificates, and key-value for secrets.

use std::time::Duration;

use madako_domain::authority::Authority;
use madako_protocol::authorities::{CertificateRequest, Usage};
use serde_json::{Map, Value, json};

use super::SimulatedVault;
use super::answers::{Answer, ReceivedRequest, data_answer, error_answer, missing_mount_answer};

/// Prefix of the mounts of authorities.
const AUTHORITIES: &str = "cke/ca-";
const SECRETS: &str = "cke/secrets";

/// The answer to a read of something that does not exist.
fn empty_answer() -> Answer {
    error_answer(404, &[])
}

impl SimulatedVault {
    /// The answer of an engine; `None` if the path belongs to none.
    pub(super) async fn answer_engine(&self, received: &ReceivedRequest) -> Option<Answer> {
        if let Some(rest) = received.path.strip_prefix(AUTHORITIES) {
            let (name, rest) = rest.split_once('/')?;
            let mount = format!("{AUTHORITIES}{name}");
            if !self.lock().mounts.contains_key(&mount) {
                return Some(missing_mount_answer(&received.path));
            }
            let authority: Authority = name.parse().ok()?;
            return Some(self.answer_authority(authority, &mount, rest, received).await);
        }
        if received.path.starts_with("cke/secrets/") {
            let mut state = self.lock();
            if !state.mounts.contains_key(SECRETS) {
                return Some(missing_mount_answer(&received.path));
            }
            if !received.is_read() {
                state.secrets.insert(received.path.clone(), received.body.clone());
                return Some((204, None));
            }
            let found = state.secrets.get(&received.path).cloned();
            return Some(found.map_or_else(empty_answer, |found| data_answer(Value::Object(found))));
        }
        received.path.starts_with("cke/").then(|| missing_mount_answer(&received.path))
    }

    async fn answer_authority(
        &self,
        authority: Authority,
        mount: &str,
        rest: &str,
        received: &ReceivedRequest,
    ) -> Answer {
        match rest.split_once('/') {
            Some(("roles", _)) => self.answer_role(received),
            Some(("issue", role)) => {
                let role = self.lock().roles.get(&format!("{mount}/roles/{role}")).cloned();
                match role {
                    None => error_answer(400, &[&format!("unknown role: {}", received.path)]),
                    Some(_) if !self.lock().roots.contains(mount) => {
                        error_answer(500, &["no default issuer currently configured"])
                    }
                    Some(role) => self.issue(authority, &role, received).await,
                }
            }
            Some(("root", "generate/internal")) => match self.authorities.certificate(authority).await {
                Ok(certificate) => {
                    self.lock().roots.insert(mount.to_owned());
                    data_answer(json!({ "certificate": certificate }))
                }
                Err(error) => error_answer(500, &[&error.to_string()]),
            },
            _ if rest == "tidy" => {
                (202, Some(json!({ "warnings": ["Tidy operation successfully started."] })))
            }
            _ => error_answer(404, &["unsupported path"]),
        }
    }

    fn answer_role(&self, received: &ReceivedRequest) -> Answer {
        use madako_protocol::ports::HttpMethod::{Delete, Get, Post, Put};
        let mut state = self.lock();
        match received.method {
            Get => match state.roles.get(&received.path) {
                None => empty_answer(),
                Some(role) => data_answer(Value::Object(role.clone())),
            },
            Put | Post => {
                state.roles.insert(received.path.clone(), received.body.clone());
                data_answer(Value::Object(received.body.clone()))
            }
            Delete => {
                state.roles.remove(&received.path);
                (204, None)
            }
        }
    }

    async fn issue(
        &self,
        authority: Authority,
        role: &Map<String, Value>,
        received: &ReceivedRequest,
    ) -> Answer {
        match self.authorities.issue(&certificate_request(authority, role, received)).await {
            Ok(issued) => data_answer(json!({
                "certificate": issued.certificate,
                "private_key": issued.private_key.reveal(),
            })),
            Err(error) => error_answer(400, &[&error.to_string()]),
        }
    }
}

/// The certificate that a request asks for under a role.
fn certificate_request(
    authority: Authority,
    role: &Map<String, Value>,
    received: &ReceivedRequest,
) -> CertificateRequest {
    let of_role = |name: &str| role.get(name).and_then(Value::as_str).unwrap_or_default();
    let list = |name: &str| -> Vec<String> {
        received.text_field(name).split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect()
    };
    let common_name = received.text_field("common_name").to_owned();
    let mut dns_names = list("alt_names");
    // A real Vault also adds an address as a DNS name, which no client looks at.
    let is_name = common_name.parse::<std::net::IpAddr>().is_err();
    if received.text_field("exclude_cn_from_sans") != "true" && is_name {
        dns_names.push(common_name.clone());
    }
    let usage = match (of_role("server_flag"), of_role("client_flag")) {
        ("false", "false") => Usage::Tokens,
        ("false", _) => Usage::Client,
        (_, "false") => Usage::Server,
        _ => Usage::Both,
    };
    let given = Some(received.text_field("ttl")).filter(|ttl| !ttl.is_empty()).map(parse_duration);
    let validity =
        given.unwrap_or_else(|| parse_duration(of_role("ttl"))).min(parse_duration(of_role("max_ttl")));
    CertificateRequest {
        authority,
        common_name,
        organization: of_role("organization").to_owned(),
        dns_names,
        addresses: list("ip_sans"),
        usage,
        validity,
    }
}

/// A time in hours or seconds.
fn parse_duration(text: &str) -> Duration {
    let (digits, unit) = match text.strip_suffix('h') {
        Some(hours) => (hours, 3600),
        None => (text.trim_end_matches('s'), 1),
    };
    Duration::from_secs(digits.parse::<u64>().unwrap_or(0).saturating_mul(unit))
}
