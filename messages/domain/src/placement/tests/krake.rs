//! Documents that Krake 1.0 read (commit `92f86489`, with marshmallow 3.20.2 on Python 3.11), and the text that it
//! stored for each: the names of fields, their order, defaults and nulls.
//!
//! `krake.txt` has three lines for each: the kind, and whether the document has all fields or only the required ones;
//! the document; Krake's stored text.

use time::macros::datetime;

use crate::placement::kind::Kind;
use crate::placement::metadata::ReasonCode;
use crate::placement::object_value::Object;
use madako_json::krake::timestamp::Timestamp;

const STORED: &str = include_str!("krake.txt");

pub(super) struct Example {
    pub(super) kind: Kind,
    pub(super) minimal: bool,
    pub(super) given: &'static str,
    pub(super) stored: &'static str,
}

pub(super) fn examples() -> Vec<Example> {
    let lines: Vec<_> = STORED.lines().collect();
    let examples = lines.chunks(3).map(|lines| {
        let [head, given, stored] = lines else { panic!("three lines each: {lines:?}") };
        let (name, form) = head.split_once(' ').expect("kind and form");
        let kind = *Kind::ALL.iter().find(|kind| kind.name() == name).expect("a kind");
        Example { kind, minimal: form == "minimal", given, stored }
    });
    examples.collect()
}

#[test]
fn every_kind_has_an_example() {
    for kind in Kind::ALL {
        let examples = examples();
        assert!(examples.iter().any(|example| example.kind == *kind && example.minimal), "{kind}");
    }
}

#[test]
fn what_krake_stored_is_written_back_byte_for_byte() {
    for Example { kind, stored, .. } in examples() {
        let object = Object::from_stored(kind, stored).unwrap();
        assert_eq!((object.kind(), &*object.to_json()), (kind, stored));
        assert_eq!(object.key().name, "it");
        assert_eq!(object.key().namespace.as_deref(), kind.namespaced().then_some("testing"));
    }
}

#[test]
fn what_is_absent_has_krakes_default_where_it_is_stored() {
    for Example { kind, given, stored, .. } in examples() {
        assert_eq!(Object::from_stored(kind, given).unwrap().to_json(), stored);
    }
}

#[test]
fn what_a_request_leaves_out_has_krakes_default() {
    let minimal: Vec<_> = examples().into_iter().filter(|example| example.minimal).collect();
    assert!(minimal.len() >= Kind::ALL.len());
    for Example { kind, given, stored, .. } in minimal {
        let mut object = Object::from_request(kind, given).unwrap().value;
        let namespace = kind.namespaced().then_some("testing");
        let now = Timestamp::new(datetime!(2026-01-31 12:00:00.123456 UTC));
        object.metadata_mut().begin(namespace, "ab12", now);
        assert_eq!(object.to_json(), stored);
    }
}

#[test]
fn no_secret_is_shown_by_debug() {
    for Example { kind, stored, .. } in examples() {
        let object = Object::from_stored(kind, stored).unwrap();
        let shown = format!("{object:?}");
        assert!(!shown.contains("of-the-user"), "{shown}");
        for secret in ["complete_token-", "complete_key-", "shutdown_token-", "shutdown_key-", "secret-"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}

/// Krake's `ReasonCode`.
const CODES: [(&str, u8); 20] = [
    ("INTERNAL_ERROR", 1),
    ("INVALID_RESOURCE", 10),
    ("UNSUPPORTED_RESOURCE", 11),
    ("INVALID_CUSTOM_RESOURCE", 12),
    ("INVALID_TOSCA_MANIFEST", 13),
    ("CLUSTER_NOT_REACHABLE", 20),
    ("NO_SUITABLE_RESOURCE", 50),
    ("KUBERNETES_ERROR", 60),
    ("CREATE_FAILED", 70),
    ("RECONCILE_FAILED", 71),
    ("RECONFIGURE_FAILED", 72),
    ("DELETE_FAILED", 73),
    ("RETRIEVE_FAILED", 74),
    ("NOT_FOUND", 75),
    ("OPENSTACK_ERROR", 80),
    ("INVALID_CLUSTER_TEMPLATE", 81),
    ("INVALID_METRIC", 91),
    ("UNREACHABLE_METRICS_PROVIDER", 92),
    ("UNKNOWN_METRIC", 93),
    ("UNKNOWN_METRICS_PROVIDER", 94),
];

#[test]
fn each_reason_has_krakes_number() {
    let codes = ReasonCode::ALL.iter().map(|code| (code.name(), code.number()));
    assert_eq!(codes.collect::<Vec<_>>(), CODES);
}
