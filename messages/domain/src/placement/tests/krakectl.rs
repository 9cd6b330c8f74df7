//! Tests on the requests of `krakectl` (commit `92f86489`, run by hand with every option of its commands), body by
//! body.
//!
//! `krakectl.txt` has two lines for each: method, path, kind and expected verdict; the body.

use serde_json::Value;

use crate::placement::kind::Kind;
use crate::placement::object_value::Object;
use madako_json::krake::document::RequestError;

const SENT: &str = include_str!("krakectl.txt");

#[test]
fn requests_of_krakectl_are_accepted_and_only_its_known_mistakes_are_ignored() {
    let lines: Vec<_> = SENT.lines().collect();
    let mut kinds = std::collections::BTreeSet::new();
    for lines in lines.chunks(2) {
        let [head, body] = lines else { panic!("two lines each: {lines:?}") };
        let [method, path, kind, verdict] = head.split(' ').collect::<Vec<_>>()[..] else { panic!("{head}") };
        let kind = *Kind::ALL.iter().find(|known| known.name() == kind).expect("a kind");
        kinds.insert((kind, method));
        let requested = match (Object::from_request(kind, body), verdict) {
            (Ok(requested), "taken") => requested,
            // An update of an application puts each hook into a list of its own; Krake refuses that, too.
            (Err(RequestError::Invalid(error)), "refused") => {
                assert!(
                    error.problems.iter().all(|problem| problem.field.starts_with("spec.hooks[")),
                    "{error}"
                );
                continue;
            }
            (other, _) => panic!("{method} {path}: {other:?}"),
        };
        for field in requested.passed_over {
            assert!(
                ["metadata.constraints", "metadata.password"].contains(&&*field),
                "{method} {path}: {field}"
            );
        }
        let sent: Value = serde_json::from_str(body).unwrap();
        assert_eq!(requested.value.metadata().name, sent["metadata"]["name"], "{method} {path}");
    }
    // `krakectl` has no commands for roles.
    assert_eq!(kinds.len(), 2 * (Kind::ALL.len() - 2));
}
