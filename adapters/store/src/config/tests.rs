use super::*;

fn with_endpoints(endpoints: &[&str]) -> StoreConfig {
    StoreConfig { endpoints: endpoints.iter().map(|&e| e.to_owned()).collect(), ..StoreConfig::default() }
}

fn authority() -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate =
        rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn scheme(config: &StoreConfig) -> Option<String> {
    config.dial_endpoints().unwrap()[0].1.uri().scheme_str().map(str::to_owned)
}

#[test]
fn the_scheme_decides_about_tls_and_without_one_the_certificates_do() {
    let (ca, _) = authority();
    for (endpoint, tls, expected) in [
        ("127.0.0.1:2379", false, "http"),
        ("127.0.0.1:2379", true, "https"),
        ("http://127.0.0.1:2379", true, "http"),
        ("https://etcd.example.com:2379/", true, "https"),
        ("[::1]:2379", true, "https"),
    ] {
        let config = StoreConfig { tls_ca: tls.then(|| ca.clone()), ..with_endpoints(&[endpoint]) };
        assert_eq!(scheme(&config).as_deref(), Some(expected), "{endpoint} {tls}");
    }
    with_endpoints(&["unix:///run/etcd.sock"]).check().unwrap();
}

#[test]
fn settings_that_cannot_be_used_are_named() {
    let (cert, key) = authority();
    let tls = |ca: Option<&str>, cert: Option<&str>, key: Option<&str>| StoreConfig {
        tls_ca: ca.map(Into::into),
        tls_cert: cert.map(Into::into),
        tls_key: key.map(Secret::new),
        ..with_endpoints(&["a:1"])
    };
    for (config, expected) in [
        (with_endpoints(&[]), "endpoints of etcd: 0 given"),
        (with_endpoints(&["localhost"]), "expected a port"),
        (with_endpoints(&["ftp://a:1"]), "expected http, https or unix"),
        (with_endpoints(&["http://a:1/v3"]), "expected nothing after the port"),
        (with_endpoints(&["http://u:hunter2@a:1"]), "\"http://a:1\" cannot be used"),
        (with_endpoints(&["u:hunter2@a:1"]), "\"a:1\" cannot be used"),
        (with_endpoints(&["unix://"]), "expected a path"),
        (StoreConfig { timeout: Duration::ZERO, ..with_endpoints(&["a:1"]) }, "timeout: 0ns given"),
        (tls(Some("no pem"), None, None), "tls-ca: expected a certificate"),
        (tls(None, Some(&cert), None), "tls-key: needed beside tls-cert"),
        (tls(None, None, Some(&key)), "tls-cert: needed beside tls-key"),
        (tls(None, Some(&cert), Some("no pem")), "tls-key: expected a private key"),
    ] {
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        assert!(!error.contains("hunter2"), "{error:?} shows a password");
    }
    tls(Some(&cert), Some(&cert), Some(&key)).check().unwrap();
}

#[test]
fn secrets_are_not_shown() {
    let config = StoreConfig {
        username: "u".into(),
        password: Secret::new("hunter2"),
        tls_key: Some(Secret::new("BEGIN KEY")),
        ..StoreConfig::default()
    };
    let shown = format!("{config:?} {:?}", config.credentials());
    assert!(!shown.contains("hunter2") && !shown.contains("BEGIN KEY"), "{shown}");
}
