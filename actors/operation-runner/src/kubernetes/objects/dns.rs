//! The texts of both DNS ConfigMaps, byte for byte as CKE 1.30 writes them (its `op/clusterdns`, `op/nodedns`): a
//! ConfigMap is updated when its text differs.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::SYSTEM_NAMESPACE;

/// The name of the cluster's DNS server: of its Deployment, its Service and its ConfigMap.
pub const CLUSTER_DNS: &str = "cluster-dns";
/// The name of the DNS cache of the nodes: of its DaemonSet and its ConfigMap.
pub const NODE_DNS: &str = "node-dns";
pub(crate) const COREFILE: &str = "Corefile";
pub(crate) const UNBOUND_CONF: &str = "unbound.conf";

/// The private zones of IPv4, which unbound neither answers itself nor validates.
const PRIVATE_ZONES: [&str; 2] = ["10.in-addr.arpa.", "168.192.in-addr.arpa."];
/// First labels of the zones `N.172.in-addr.arpa.` of 172.16.0.0/12.
const PRIVATE_172: std::ops::RangeInclusive<u8> = 16..=31;

/// The ConfigMap of the cluster's DNS server. `upstreams` are the servers for names outside of the cluster.
#[must_use]
pub fn cluster_dns(domain: &str, upstreams: &[String]) -> Value {
    config_map(CLUSTER_DNS, COREFILE, &format_corefile(domain, upstreams))
}

/// The ConfigMap of the nodes' DNS caches. `server` is the address of the Service of the cluster's DNS server.
#[must_use]
pub fn node_dns(server: IpAddr, domain: &str, upstreams: &[String]) -> Value {
    config_map(NODE_DNS, UNBOUND_CONF, &unbound_conf(server, domain, upstreams))
}

fn config_map(name: &str, file: &str, text: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
        "data": {file: text},
    })
}

fn format_corefile(domain: &str, upstreams: &[String]) -> String {
    let mut fallthrough = String::new();
    let mut forward = String::new();
    if !upstreams.is_empty() {
        fallthrough = "      fallthrough in-addr.arpa ip6.arpa\n".to_owned();
        forward = format!("    forward . {}\n", upstreams.join(" "));
    }
    format!(
        ".:1053 {{\n    errors\n    health\n    ready\n    log\n    kubernetes {domain} in-addr.arpa ip6.arpa {{\n      \
         pods verified\n{fallthrough}    }}\n{forward}    prometheus :9153\n    cache 30\n    reload\n    \
         loadbalance\n}}\n"
    )
}

/// Options of unbound's section `server` before the zones, in order.
const SERVER: [(&str, &str); 30] = [
    ("do-daemonize", "no"),
    ("interface", "0.0.0.0"),
    ("interface-automatic", "yes"),
    ("access-control", "0.0.0.0/0 allow"),
    ("chroot", "\"\""),
    ("username", "\"\""),
    ("directory", "\"/etc/unbound\""),
    ("logfile", "\"\""),
    ("use-syslog", "no"),
    ("log-time-ascii", "yes"),
    ("log-queries", "yes"),
    ("log-replies", "yes"),
    ("log-local-actions", "yes"),
    ("log-servfail", "yes"),
    ("num-threads", "4"),
    ("incoming-num-tcp", "1000"),
    ("outgoing-num-tcp", "1000"),
    ("num-queries-per-thread", "4096"),
    ("outgoing-range", "8192"),
    ("rrset-roundrobin", "yes"),
    ("extended-statistics", "yes"),
    ("rrset-cache-size", "256m"),
    ("rrset-cache-slabs", "4"),
    ("msg-cache-size", "256m"),
    ("msg-cache-slabs", "4"),
    ("infra-cache-slabs", "4"),
    ("key-cache-slabs", "4"),
    ("so-rcvbuf", "4m"),
    ("pidfile", "\"/tmp/unbound.pid\""),
    ("infra-host-ttl", "60"),
];
const SERVER_LAST: [(&str, &str); 3] =
    [("prefetch", "yes"), ("tcp-upstream", "yes"), ("so-reuseport", "yes")];
const TRUST: [(&str, &str); 2] = [
    ("root-hints", "\"/usr/local/unbound/etc/unbound/root.hints\""),
    ("trust-anchor-file", "\"/usr/local/unbound/etc/unbound/root.key\""),
];
/// The blanks around the socket are CKE's, and the text is compared.
const REMOTE_CONTROL: [(&str, &str); 3] = [
    ("control-enable", "yes"),
    ("control-interface", " /var/run/unbound/unbound.sock "),
    ("control-use-cert", "no"),
];

/// A file of unbound: sections with lines `key: value`.
struct Sections(String);

impl Sections {
    fn begin_section(&mut self, name: &str) {
        self.0.push_str(name);
        self.0.push_str(":\n");
    }

    fn write_line(&mut self, key: &str, value: impl std::fmt::Display) {
        writeln!(self.0, "  {key}: {value}").expect("a String takes every text");
    }

    fn write_lines(&mut self, lines: &[(&str, &str)]) {
        for (key, value) in lines {
            self.write_line(key, value);
        }
    }

    fn forward(&mut self, zone: &str, servers: &[String]) {
        self.begin_section("forward-zone");
        self.write_line("name", format_args!("\"{zone}\""));
        for server in servers {
            self.write_line("forward-addr", server);
        }
    }
}

fn unbound_conf(server: IpAddr, domain: &str, upstreams: &[String]) -> String {
    let private: Vec<String> = PRIVATE_ZONES
        .iter()
        .map(|zone| (*zone).to_owned())
        .chain(PRIVATE_172.map(|label| format!("{label}.172.in-addr.arpa.")))
        .collect();
    let mut file = Sections("\n".to_owned());
    file.begin_section("server");
    file.write_lines(&SERVER);
    file.write_lines(&SERVER_LAST);
    for zone in &private {
        file.write_line("local-zone", format_args!("\"{zone}\" transparent"));
    }
    file.write_lines(&TRUST);
    for zone in [domain].into_iter().chain(private.iter().map(String::as_str)) {
        file.write_line("domain-insecure", format_args!("\"{zone}\""));
    }
    file.begin_section("remote-control");
    file.write_lines(&REMOTE_CONTROL);
    file.begin_section("stub-zone");
    file.write_line("name", format_args!("\"{domain}\""));
    file.write_line("stub-addr", server);
    let server = [server.to_string()];
    file.forward("in-addr.arpa.", &server);
    file.forward("ip6.arpa.", &server);
    if !upstreams.is_empty() {
        file.forward(".", upstreams);
    }
    file.0
}

#[cfg(test)]
mod tests {
    use super::*;

    // The digests are of texts that CKE's own functions made at commit b3f803d4.

    #[test]
    fn corefile_is_ckes() {
        let own = cluster_dns("cluster.local", &[]);
        assert_eq!(
            own["data"][COREFILE],
            ".:1053 {\n    errors\n    health\n    ready\n    log\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n      \
             pods verified\n    }\n    prometheus :9153\n    cache 30\n    reload\n    loadbalance\n}\n"
        );
        let upstreams = ["192.0.2.1".to_owned(), "192.0.2.2".to_owned()];
        let text = format_corefile("neco.test", &upstreams);
        assert!(
            text.contains("      pods verified\n      fallthrough in-addr.arpa ip6.arpa\n    }\n"),
            "{text}"
        );
        assert!(text.contains("    }\n    forward . 192.0.2.1 192.0.2.2\n    prometheus :9153\n"), "{text}");
        assert_eq!(digest(&text), COREFILE_DIGEST);
    }

    #[test]
    fn unbound_conf_is_ckes() {
        let server = "10.68.0.10".parse().unwrap();
        let text = unbound_conf(server, "cluster.local", &[]);
        assert!(text.starts_with("\nserver:\n  do-daemonize: no\n"), "{text}");
        assert!(text.contains("\n  control-interface:  /var/run/unbound/unbound.sock \n"), "{text}");
        assert!(
            text.ends_with("forward-zone:\n  name: \"ip6.arpa.\"\n  forward-addr: 10.68.0.10\n"),
            "{text}"
        );
        assert_eq!(digest(&text), UNBOUND_DIGEST);
        let upstreams = ["192.0.2.1".to_owned(), "192.0.2.2".to_owned()];
        let text = unbound_conf(server, "neco.test", &upstreams);
        assert!(
            text.ends_with("  name: \".\"\n  forward-addr: 192.0.2.1\n  forward-addr: 192.0.2.2\n"),
            "{text}"
        );
        assert_eq!(digest(&text), UNBOUND_UPSTREAMS_DIGEST);
    }

    fn digest(text: &str) -> String {
        format!("{:x}", md5::compute(text))
    }

    const COREFILE_DIGEST: &str = "6f2ff1b9f5901f3a4a240c546b48262f";
    const UNBOUND_DIGEST: &str = "9c03f2ac81a0b387cdb1d268a76b18cc";
    const UNBOUND_UPSTREAMS_DIGEST: &str = "0129a73dc73508b38e678887c725973c";
}
