//! The roles of CKE in Vault, and its requests for certificates. Pure.

use std::time::Duration;

use madako_domain::authority::Authority;
use madako_domain::canary::{Canary, is_planted};
use madako_protocol::authorities::{CertificateRequest, Usage};
use serde_json::Value;

use super::client::RequestBody;

/// The administrator of etcd, whose certificates have a role of their own.
const ROOT: &str = "root";
/// Validity of most certificates in CKE's roles.
const TEN_YEARS: &str = "87600h";

/// A request of CKE.
#[derive(Debug, Clone)]
pub(crate) struct IssueRequest {
    pub(crate) role: &'static str,
    /// True if the role is written before each use and deleted after it, since it names the group of one user.
    pub(crate) one_time: bool,
    pub(crate) role_body: RequestBody,
    pub(crate) body: RequestBody,
}

/// The role and the body for a certificate, as CKE has them for that certificate.
///
/// Certificates of members and of components have no time of their own: their role limits it.
pub(crate) fn issue_request(request: &CertificateRequest) -> IssueRequest {
    let CertificateRequest { authority, common_name, organization, .. } = request;
    let mut role_body = RequestBody::default();
    let mut set = |name: &str, value: &str| drop(role_body.0.insert(name.to_owned(), value.into()));
    let (role, ttl, max_ttl) = match authority {
        Authority::EtcdClient if common_name == ROOT => ("admin", "2h", "24h"),
        Authority::Kubernetes => match component_role(common_name) {
            Some(role) => (role, TEN_YEARS, TEN_YEARS),
            None => ("admin", "2h", "48h"),
        },
        Authority::KubernetesWebhook => ("system", "175200h", "175200h"),
        Authority::Server
        | Authority::EtcdPeer
        | Authority::EtcdClient
        | Authority::KubernetesAggregation => ("system", TEN_YEARS, TEN_YEARS),
    };
    set("ttl", ttl);
    set("max_ttl", max_ttl);
    set("allow_any_name", "true");
    match authority {
        Authority::Server => set("client_flag", "false"),
        Authority::EtcdPeer => {}
        Authority::EtcdClient | Authority::KubernetesAggregation => set("server_flag", "false"),
        Authority::Kubernetes if request.usage == Usage::Tokens => {
            set("client_flag", "false");
            set("server_flag", "false");
            set("key_usage", "DigitalSignature,CertSign");
            set("no_store", "true");
        }
        Authority::Kubernetes => {
            set("enforce_hostnames", "false");
            if !organization.is_empty() {
                set("organization", organization);
            }
        }
        Authority::KubernetesWebhook => {
            set("enforce_hostnames", "false");
            set("server_flag", "true");
            set("client_flag", "false");
        }
    }
    let one_time = is_of_user(request);
    IssueRequest { role, one_time, role_body, body: certificate_body(request) }
}

/// True for a user of Kubernetes; the other certificates of that authority are those of components.
fn is_of_user(request: &CertificateRequest) -> bool {
    request.authority == Authority::Kubernetes && component_role(&request.common_name).is_none()
}

/// CKE's role for a component of Kubernetes, by the common name of its certificate.
fn component_role(common_name: &str) -> Option<&'static str> {
    match common_name {
        "kubernetes" => Some("system"),
        "system:kube-scheduler" => Some("kube-scheduler"),
        "system:kube-controller-manager" => Some("kube-controller-manager"),
        "system:kube-proxy" => Some("kube-proxy"),
        "service-account" => Some("service-account"),
        name if name.starts_with("system:node:") => Some("kubelet"),
        _ => None,
    }
}

fn certificate_body(request: &CertificateRequest) -> RequestBody {
    let mut body = RequestBody::default();
    let mut set = |name: &str, value: String| drop(body.0.insert(name.to_owned(), Value::String(value)));
    let named = if is_planted(Canary::CertificateForAnother) { "localhost" } else { &request.common_name };
    set("common_name", named.to_owned());
    // Vault adds the common name unless it is excluded. That of API servers is excluded, and is one of their names.
    let is_added = request.authority == Authority::Server;
    let names = request.dns_names.iter().filter(|name| !is_added || **name != request.common_name);
    let names: Vec<&str> = names.map(String::as_str).collect();
    if !names.is_empty() {
        set("alt_names", names.join(","));
    }
    if !request.addresses.is_empty() {
        set("ip_sans", request.addresses.join(","));
    }
    if !is_added {
        set("exclude_cn_from_sans", "true".to_owned());
    }
    if request.authority == Authority::EtcdClient || is_of_user(request) {
        set("ttl", format_seconds(request.validity));
    }
    body
}

/// A time as Vault reads it.
fn format_seconds(time: Duration) -> String {
    format!("{}s", time.as_secs())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn request(authority: Authority, common_name: &str, usage: Usage) -> CertificateRequest {
        CertificateRequest {
            authority,
            common_name: common_name.to_owned(),
            organization: String::new(),
            dns_names: Vec::new(),
            addresses: Vec::new(),
            usage,
            validity: Duration::from_secs(3600),
        }
    }

    #[test]
    fn vault_roles_and_requests_equal_those_of_cke() {
        let address = ["127.0.0.1".to_owned(), "10.0.0.1".to_owned()].to_vec();
        let names = ["localhost", "cke-etcd", "cke-etcd.kube-system", "cke-etcd.kube-system.svc", "node-1"];
        let requests = [
            CertificateRequest {
                dns_names: names.map(str::to_owned).to_vec(),
                addresses: address.clone(),
                ..request(Authority::Server, "node-1", Usage::Server)
            },
            CertificateRequest { addresses: address, ..request(Authority::EtcdPeer, "node-1", Usage::Both) },
            request(Authority::EtcdClient, "backup", Usage::Client),
            request(Authority::EtcdClient, "root", Usage::Client),
            CertificateRequest {
                organization: "system:masters".to_owned(),
                ..request(Authority::Kubernetes, "admin", Usage::Client)
            },
            CertificateRequest {
                dns_names: ["localhost", "kubernetes"].map(str::to_owned).to_vec(),
                ..request(Authority::Kubernetes, "kubernetes", Usage::Both)
            },
            CertificateRequest {
                organization: "system:nodes".to_owned(),
                ..request(Authority::Kubernetes, "system:node:node-1", Usage::Both)
            },
            request(Authority::Kubernetes, "service-account", Usage::Tokens),
            request(Authority::KubernetesAggregation, "front-proxy-client", Usage::Client),
            CertificateRequest {
                dns_names: ["hook", "hook.ns", "hook.ns.svc"].map(str::to_owned).to_vec(),
                ..request(Authority::KubernetesWebhook, "ns/hook", Usage::Server)
            },
        ];
        let mut shown = String::new();
        for request in requests {
            let IssueRequest { role, one_time, role_body, body } = issue_request(&request);
            let json = |body: RequestBody| serde_json::to_string(&body.0).unwrap();
            let _ = writeln!(shown, "{} {role}{}", request.authority, if one_time { " once" } else { "" });
            let _ = writeln!(shown, "  role {}\n  issue {}", json(role_body), json(body));
        }
        assert_eq!(
            shown,
            r#"server system
  role {"allow_any_name":"true","client_flag":"false","max_ttl":"87600h","ttl":"87600h"}
  issue {"alt_names":"localhost,cke-etcd,cke-etcd.kube-system,cke-etcd.kube-system.svc","common_name":"node-1","ip_sans":"127.0.0.1,10.0.0.1"}
etcd-peer system
  role {"allow_any_name":"true","max_ttl":"87600h","ttl":"87600h"}
  issue {"common_name":"node-1","exclude_cn_from_sans":"true","ip_sans":"127.0.0.1,10.0.0.1"}
etcd-client system
  role {"allow_any_name":"true","max_ttl":"87600h","server_flag":"false","ttl":"87600h"}
  issue {"common_name":"backup","exclude_cn_from_sans":"true","ttl":"3600s"}
etcd-client admin
  role {"allow_any_name":"true","max_ttl":"24h","server_flag":"false","ttl":"2h"}
  issue {"common_name":"root","exclude_cn_from_sans":"true","ttl":"3600s"}
kubernetes admin once
  role {"allow_any_name":"true","enforce_hostnames":"false","max_ttl":"48h","organization":"system:masters","ttl":"2h"}
  issue {"common_name":"admin","exclude_cn_from_sans":"true","ttl":"3600s"}
kubernetes system
  role {"allow_any_name":"true","enforce_hostnames":"false","max_ttl":"87600h","ttl":"87600h"}
  issue {"alt_names":"localhost,kubernetes","common_name":"kubernetes","exclude_cn_from_sans":"true"}
kubernetes kubelet
  role {"allow_any_name":"true","enforce_hostnames":"false","max_ttl":"87600h","organization":"system:nodes","ttl":"87600h"}
  issue {"common_name":"system:node:node-1","exclude_cn_from_sans":"true"}
kubernetes service-account
  role {"allow_any_name":"true","client_flag":"false","key_usage":"DigitalSignature,CertSign","max_ttl":"87600h","no_store":"true","server_flag":"false","ttl":"87600h"}
  issue {"common_name":"service-account","exclude_cn_from_sans":"true"}
kubernetes-aggregation system
  role {"allow_any_name":"true","max_ttl":"87600h","server_flag":"false","ttl":"87600h"}
  issue {"common_name":"front-proxy-client","exclude_cn_from_sans":"true"}
kubernetes-webhook system
  role {"allow_any_name":"true","client_flag":"false","enforce_hostnames":"false","max_ttl":"175200h","server_flag":"true","ttl":"175200h"}
  issue {"alt_names":"hook,hook.ns,hook.ns.svc","common_name":"ns/hook","exclude_cn_from_sans":"true"}
"#
        );
    }
}
