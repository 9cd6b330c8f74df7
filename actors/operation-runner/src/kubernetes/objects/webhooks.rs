//! The certificates of admission webhooks in user-defined resources, which annotations ask for.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use madako_domain::objects::Manifest;
use madako_domain::resource::{ANNOTATION_INJECT_CA, ANNOTATION_ISSUE_CERT};
use madako_protocol::authorities::{CertificateRequest, IssuedCertificate};
use serde_json::{Value, json};

use crate::kubernetes::certificates::webhook_certificate_request;

/// Fields of a Secret's `data`.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// True if each `clientConfig` of the manifest gets the certificate of the webhooks' authority.
#[must_use]
pub fn needs_authority(manifest: &Manifest) -> bool {
    let kind = manifest.name().key.kind.as_str();
    matches!(kind, "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration")
        && manifest.annotation(ANNOTATION_INJECT_CA) == Some("true")
}

/// The certificate that a Secret gets; `None`: it asks for none.
#[must_use]
pub fn needed_certificate(manifest: &Manifest) -> Option<CertificateRequest> {
    let key = &manifest.name().key;
    let service =
        manifest.annotation(ANNOTATION_ISSUE_CERT).filter(|it| !it.is_empty() && key.kind == "Secret")?;
    Some(webhook_certificate_request(key.namespace.as_deref()?, service))
}

/// The manifest with the certificate of the authority in each `clientConfig`.
///
/// # Errors
/// Its `webhooks` have another form.
pub fn with_authority(manifest: &Manifest, certificate: &str) -> Result<Manifest, String> {
    let mut content = manifest.content().clone();
    let webhooks = content["webhooks"].as_array_mut().ok_or("webhooks: expected a list")?;
    for webhook in webhooks {
        let config = webhook.as_object_mut().ok_or("webhooks: expected objects")?;
        let config = config.entry("clientConfig").or_insert_with(|| json!({}));
        let config = config.as_object_mut().ok_or("webhooks.clientConfig: expected an object")?;
        config.insert("caBundle".to_owned(), json!(BASE64_STANDARD.encode(certificate)));
    }
    Manifest::new(content).map_err(|wrong| wrong.to_string())
}

/// The Secret with a certificate and its key.
///
/// # Errors
/// Its `data` has another form.
pub fn with_certificate(manifest: &Manifest, issued: &IssuedCertificate) -> Result<Manifest, String> {
    let encode = |text: &str| json!(BASE64_STANDARD.encode(text));
    with_pair(manifest, encode(&issued.certificate), encode(issued.private_key.reveal()))
}

/// The Secret with the certificate and the key that the present object has: an apply of it would change nothing else.
///
/// # Errors
/// Its `data` has another form.
pub fn keep_present_certificate(manifest: &Manifest, present: &Value) -> Result<Manifest, String> {
    let find = |field: &str| present["data"].get(field).cloned().unwrap_or_else(|| json!(""));
    with_pair(manifest, find(CERTIFICATE), find(KEY))
}

/// The certificate in PEM that a Secret has; `None`: it has none that can be read.
#[must_use]
pub fn present_certificate(secret: &Value) -> Option<String> {
    let encoded = secret["data"][CERTIFICATE].as_str()?;
    String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()
}

fn with_pair(manifest: &Manifest, certificate: Value, key: Value) -> Result<Manifest, String> {
    let mut content = manifest.content().clone();
    let secret = content.as_object_mut().ok_or("expected an object")?;
    secret.insert("type".to_owned(), json!("kubernetes.io/tls"));
    let data = secret.entry("data").or_insert_with(|| json!({}));
    let data = data.as_object_mut().ok_or("data: expected an object")?;
    data.insert(CERTIFICATE.to_owned(), certificate);
    data.insert(KEY.to_owned(), key);
    Manifest::new(content).map_err(|wrong| wrong.to_string())
}

#[cfg(test)]
mod tests {
    use madako_protocol::secret::Secret;

    use super::*;

    fn manifest(kind: &str, annotation: (&str, &str), field: (&str, Value)) -> Manifest {
        let (name, value) = annotation;
        let namespace = if kind == "Secret" { json!("ns") } else { Value::Null };
        let metadata = json!({"name": "a", "namespace": namespace, "annotations": {name: value}});
        let mut content = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata});
        content[field.0] = field.1;
        Manifest::new(content).unwrap()
    }

    #[test]
    fn annotated_webhooks_trust_the_authority() {
        let kind = "ValidatingWebhookConfiguration";
        let webhooks = json!([{"name": "x", "clientConfig": {"service": {"name": "s"}}}, {"name": "y"}]);
        let annotated = manifest(kind, (ANNOTATION_INJECT_CA, "true"), ("webhooks", webhooks.clone()));
        assert!(needs_authority(&annotated));
        assert!(!needs_authority(&manifest(kind, (ANNOTATION_INJECT_CA, "no"), ("webhooks", webhooks))));
        let injected = with_authority(&annotated, "CA").unwrap();
        let expected = json!([
            {"name": "x", "clientConfig": {"service": {"name": "s"}, "caBundle": "Q0E="}},
            {"name": "y", "clientConfig": {"caBundle": "Q0E="}},
        ]);
        assert_eq!(injected.content()["webhooks"], expected);
        let wrong = manifest(kind, (ANNOTATION_INJECT_CA, "true"), ("webhooks", json!([1])));
        assert!(with_authority(&wrong, "CA").is_err());
    }

    #[test]
    fn annotated_secret_gets_a_pair_for_its_service() {
        let annotated = manifest("Secret", (ANNOTATION_ISSUE_CERT, "svc"), ("data", json!({"x": "eA=="})));
        let request = needed_certificate(&annotated).unwrap();
        assert_eq!(request.common_name, "ns/svc");
        let issued = IssuedCertificate { certificate: "C".to_owned(), private_key: Secret::new("K") };
        let content = with_certificate(&annotated, &issued).unwrap().content().clone();
        assert_eq!(content["type"], "kubernetes.io/tls");
        assert_eq!(content["data"], json!({"x": "eA==", "tls.crt": "Qw==", "tls.key": "Sw=="}));
        assert_eq!(present_certificate(&content).unwrap(), "C");
        let kept = keep_present_certificate(&annotated, &content).unwrap();
        assert_eq!(*kept.content(), content);
        let missing = keep_present_certificate(&annotated, &Value::Null).unwrap();
        assert_eq!(missing.content()["data"], json!({"x": "eA==", "tls.crt": "", "tls.key": ""}));
        for unreadable in [json!({}), json!({"data": {"tls.crt": "?"}}), json!({"data": {"tls.crt": "/w=="}})]
        {
            assert_eq!(present_certificate(&unreadable), None);
        }
        assert!(
            needed_certificate(&manifest("Secret", (ANNOTATION_ISSUE_CERT, ""), ("data", json!({}))))
                .is_none()
        );
        assert!(
            needed_certificate(&manifest("ConfigMap", (ANNOTATION_ISSUE_CERT, "s"), ("data", json!({}))))
                .is_none()
        );
    }
}
