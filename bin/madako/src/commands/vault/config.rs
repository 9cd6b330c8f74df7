//! `madako vault config`: checks the settings of the access to Vault, and stores them.

use madako_domain::keys;
use madako_domain::vault::VaultAccess;
use madako_json::input::{InputError, Problem};
use madako_pki::vault::Transports as _;
use madako_protocol::store::Store;
use madako_supervisor::vault::VaultTransports;
use serde_json::Value;

use crate::access::replace;
use crate::failure::Failure;
use crate::input::{display_name, input_file_failure, read_text};

const FIELDS: [&str; 4] = ["endpoint", "ca-cert", "role-id", "secret-id"];

pub(super) async fn run(file: &str, store: &dyn Store) -> Result<(), Failure> {
    let access = read_access(&read_text(file)?).map_err(|problems| match problems {
        Some(error) => input_file_failure(file, error),
        None => Failure::bad_input(format_args!("{} is not a JSON object", display_name(file))),
    })?;
    replace(store, keys::VAULT, serde_json::to_vec(&access)?).await.map(drop)
}

/// The access in a text. `None`: it is not a JSON object; serde's message could quote the secret.
fn read_access(text: &str) -> Result<VaultAccess, Option<InputError>> {
    let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(text) else { return Err(None) };
    let mut problems = Vec::new();
    let mut report = |field: &str, got: &str, expected: &str| {
        problems.push(Problem {
            field: field.to_owned(),
            got: got.to_owned(),
            expected: expected.to_owned(),
        });
    };
    for (name, value) in &fields {
        if !FIELDS.contains(&name.as_str()) {
            report(name, "an unknown field", &format!("one of {}", FIELDS.join(", ")));
        } else if !value.is_string() {
            report(name, "no text", "a text");
        }
    }
    let access: VaultAccess = serde_json::from_str(text).unwrap_or_default();
    let is_text = |name: &str| fields.get(name).is_none_or(Value::is_string);
    let is_url = access.endpoint.starts_with("http://") || access.endpoint.starts_with("https://");
    if is_text("endpoint") && !is_url {
        report(
            "endpoint",
            if access.endpoint.is_empty() { "nothing" } else { "no URL" },
            "an http or https URL",
        );
    }
    if VaultTransports.transport(&access.ca_cert).is_err() {
        report("ca-cert", "no certificate", "a certificate in PEM, or an empty text");
    }
    for (name, text) in [("role-id", access.role_id.as_str()), ("secret-id", access.secret_id.reveal())] {
        if is_text(name) && text.is_empty() {
            report(name, "nothing", "the text that Vault gave for the role");
        }
    }
    if problems.is_empty() {
        return Ok(access);
    }
    Err(Some(InputError { subject: "access to Vault".to_owned(), problems }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_named_without_the_secret() {
        let good = r#"{"endpoint": "https://vault:8200", "role-id": "r", "secret-id": "s"}"#;
        assert_eq!(read_access(good).unwrap().role_id, "r");
        let error = read_access(r#"{"endpoint": "vault", "ca-cert": "x", "role_id": "r", "secret-id": 7}"#)
            .unwrap_err();
        let text = error.unwrap().to_string();
        for part in
            ["endpoint", "ca-cert", "role_id: got an unknown field", "role-id", "secret-id: got no text"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        for text in ["", "[]", "hunter2", r#"{"secret-id": "hunter2""#] {
            assert!(matches!(read_access(text), Err(None)), "{text}");
        }
    }
}
