//! Tests that encrypted values decrypt at their place with their key, and nowhere else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use madako_domain::placement::kind::Kind;
use proptest::prelude::*;

use super::*;

const FIRST: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
const SECOND: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

fn with(keys: &[&str]) -> Encryption {
    Encryption::parse(&keys.join("\n")).unwrap()
}

fn cluster(name: &str) -> ObjectKey {
    ObjectKey::new(Kind::Cluster, Some("testing"), name)
}

const VALUE: &str =
    r#"{"metadata": {"name": "c"}, "spec": {"kubeconfig": {"users": ["hunter2"]}, "backoff": 1e400}}"#;

#[test]
fn only_secrets_are_encrypted_and_equal_values_equally() {
    let (encryption, key) = (with(&[FIRST]), cluster("c"));
    let encrypted = encryption.encrypt(&key, VALUE).unwrap();
    assert!(!encrypted.contains("hunter2"), "{encrypted}");
    let (head, tail) =
        (r#"{"metadata": {"name": "c"}, "spec": {"kubeconfig": ["#, r#""], "backoff": 1e400}}"#);
    assert!(encrypted.starts_with(head) && encrypted.ends_with(tail), "{encrypted}");
    assert_eq!(encryption.decrypt(&key, &encrypted).unwrap(), VALUE);
    assert_eq!(
        encryption.encrypt(&key, VALUE).unwrap(),
        encrypted,
        "an unchanged secret keeps its ciphertext"
    );
    assert_eq!(encryption.encrypt(&key, &encrypted).unwrap(), encrypted, "nothing is encrypted twice");
    // Without keys nothing is encrypted; clear text is always readable.
    assert_eq!(Encryption::default().encrypt(&key, VALUE).unwrap(), VALUE);
    assert_eq!(Encryption::default().decrypt(&key, VALUE).unwrap(), VALUE);
    assert_eq!(encryption.decrypt(&key, VALUE).unwrap(), VALUE);
    // A field without a secret stays unchanged.
    let none = r#"{"spec": {"kubeconfig": {}}, "status": {}}"#;
    assert_eq!(encryption.encrypt(&key, none).unwrap(), none);
    assert!(encryption.encrypt(&key, "{").is_err());
    // JSON in Python's dialect is decrypted as well.
    let odd = encrypted.replace("1e400", "NaN");
    assert!(encryption.decrypt(&key, &odd).unwrap().contains("hunter2"));
}

#[test]
fn failed_decryption_is_an_error_with_its_reason() {
    let (first, second, key) = (with(&[FIRST]), with(&[SECOND]), cluster("c"));
    let encrypted = first.encrypt(&key, VALUE).unwrap();
    let id = first.key_ids().next().unwrap().to_owned();
    let field = "/spec/kubeconfig".to_owned();
    let unknown = DecryptError::UnknownKey { field: field.clone(), id: id.clone() };
    let altered = DecryptError::Altered { field: field.clone() };
    let refused =
        |encryption: &Encryption, key: &ObjectKey, text: &str| encryption.decrypt(key, text).unwrap_err();
    assert_eq!(refused(&second, &key, &encrypted), unknown);
    assert_eq!(refused(&Encryption::default(), &key, &encrypted), unknown);
    assert_eq!(refused(&first, &cluster("d"), &encrypted), altered, "it was moved");
    // A value that claims another key's id.
    let renamed = encrypted.replace(&id, second.key_ids().next().unwrap());
    assert_eq!(refused(&second, &key, &renamed), altered);
    for bad in [r#"["madako-sealed"]"#, r#"["madako-sealed", 2, "a", "b"]"#, r#"["madako-sealed", 1, 2, 3]"#]
    {
        let text = format!(r#"{{"spec": {{"kubeconfig": {bad}}}}}"#);
        assert_eq!(refused(&first, &key, &text), DecryptError::Form { field: field.clone() }, "{bad}");
    }
    let short = format!(r#"{{"spec": {{"kubeconfig": ["madako-sealed", 1, "{id}", "AAAA"]}}}}"#);
    assert_eq!(refused(&first, &key, &short), altered);
    // Elsewhere the same text is an ordinary value.
    let elsewhere = r#"{"spec": {"kubeconfig": {"a": ["madako-sealed"]}}, "later": ["madako-sealed"]}"#;
    assert_eq!(first.decrypt(&key, elsewhere).unwrap(), elsewhere);
}

#[test]
fn a_value_moved_to_another_field_does_not_open() {
    let encryption = with(&[FIRST]);
    let key = ObjectKey::new(Kind::Application, Some("testing"), "a");
    let text = r#"{"status": {"complete_token": "a", "shutdown_token": "a"}}"#;
    let encrypted = encryption.encrypt(&key, text).unwrap();
    let parts: serde_json::Value = serde_json::from_str(&encrypted).unwrap();
    let (complete, shutdown) = (&parts["status"]["complete_token"], &parts["status"]["shutdown_token"]);
    assert_ne!(complete, shutdown, "one value at two places has nothing in common");
    let moved = serde_json::json!({"status": {"complete_token": shutdown, "shutdown_token": complete}});
    let error = encryption.decrypt(&key, &moved.to_string()).unwrap_err();
    assert!(matches!(error, DecryptError::Altered { .. }), "{error}");
}

#[test]
fn a_former_key_reads_and_the_first_one_writes() {
    let key = cluster("c");
    let old = with(&[FIRST]).encrypt(&key, VALUE).unwrap();
    let both = with(&[SECOND, FIRST]);
    let opened = both.decrypt(&key, &old).unwrap();
    assert_eq!(opened, VALUE);
    let new = both.encrypt(&key, &opened).unwrap();
    assert_eq!(with(&[SECOND]).decrypt(&key, &new).unwrap(), VALUE, "the former key is not needed any more");
}

#[test]
fn transaction_is_encrypted_where_it_writes_resources() {
    let put = |key: &str, value: &str| Write::Put {
        key: key.to_owned(),
        value: Bytes::copy_from_slice(value.as_bytes()),
        lease: 0,
    };
    let writes = vec![
        put("/kubernetes/clusters/testing/c", VALUE),
        put("/cke/cluster", VALUE),
        put("/core/roles/r", "{}"),
        Write::Delete { key: "/kubernetes/clusters/testing/d".to_owned() },
    ];
    let transaction = Transaction { conditions: vec![], writes: writes.clone() };
    let encryption = with(&[FIRST]);
    let encrypted = encryption.encrypt_transaction(transaction.clone(), str::to_owned).unwrap();
    assert_eq!(encrypted.writes[1..], writes[1..]);
    let expected = encryption.encrypt(&cluster("c"), VALUE).unwrap();
    assert_eq!(encrypted.writes[0], put("/kubernetes/clusters/testing/c", &expected));
    assert_eq!(Encryption::default().encrypt_transaction(transaction, str::to_owned).unwrap().writes, writes);
    let broken =
        Transaction { conditions: vec![], writes: vec![put("/kubernetes/clusters/testing/c", "hunter2")] };
    let error = encryption.encrypt_transaction(broken, str::to_owned).unwrap_err().to_string();
    assert!(error.contains("Cluster testing/c") && !error.contains("hunter2"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Any text and any kubeconfig, with any key: an encrypted value decrypts to the same bytes, and does not decrypt
    /// after a change of any of its characters.
    #[test]
    fn encrypted_objects_decrypt_to_the_same(
        key in any::<[u8; 32]>(),
        token in any::<String>(),
        entries in proptest::collection::btree_map(any::<String>(), any::<String>(), 1..4),
        change in any::<prop::sample::Index>(),
    ) {
        let encryption = Encryption::parse(&STANDARD.encode(key)).unwrap();
        for (kind, value) in [
            (Kind::MetricsProvider, serde_json::json!({"spec": {"type": "influx", "influx": {"token": token}}})),
            (Kind::Cluster, serde_json::json!({"spec": {"kubeconfig": entries}})),
        ] {
            let of = ObjectKey::new(kind, Some("n"), "o");
            let text = value.to_string();
            let encrypted = encryption.encrypt(&of, &text).unwrap();
            prop_assert_eq!(encryption.decrypt(&of, &encrypted).unwrap(), text.as_str());
            // The Base64 is the last text before the closing brackets.
            let end = encrypted.rfind("\"]").unwrap();
            let start = encrypted[..end].rfind('"').unwrap() + 1;
            let at = start + change.index(end - start);
            let other = if &encrypted[at..=at] == "A" { "B" } else { "A" };
            let altered = format!("{}{other}{}", &encrypted[..at], &encrypted[at + 1..]);
            prop_assert!(encryption.decrypt(&of, &altered).is_err());
        }
    }
}
