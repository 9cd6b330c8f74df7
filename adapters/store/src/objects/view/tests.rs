use bytes::Bytes;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::object_value::Object;
use proptest::prelude::*;

use super::*;

fn stored(key: &ObjectKey, revision: i64) -> Arc<Stored> {
    let text = format!(
        r#"{{"metadata": {{"name": "{}", "uid": "{revision}", "created": "2026-01-01T00:00:00",
            "modified": "2026-01-01T00:00:00"}}, "rules": []}}"#,
        key.name
    );
    let object = Object::from_stored(Kind::Role, &text).unwrap();
    let wire = Bytes::from(object.to_json());
    Arc::new(Stored { key: key.clone(), create_revision: revision, mod_revision: revision, object, wire })
}

fn role(name: &str) -> ObjectKey {
    ObjectKey::new(Kind::Role, None, name)
}

fn put(name: &str, revision: i64) -> ObjectUpdate {
    let value = Some((revision, Ok(stored(&role(name), revision))));
    ObjectUpdate { revision, key: role(name).etcd_key(), value }
}

fn spoil(name: &str, revision: i64) -> ObjectUpdate {
    ObjectUpdate {
        revision,
        key: role(name).etcd_key(),
        value: Some((revision, Err("spoilt".to_owned().into()))),
    }
}

fn delete(name: &str, revision: i64) -> ObjectUpdate {
    ObjectUpdate { revision, key: role(name).etcd_key(), value: None }
}

fn names(view: &View) -> Vec<String> {
    view.with_prefix("/core/roles/").iter().map(|stored| stored.key.name.clone()).collect()
}

fn listed(revision: i64) -> View {
    let mut view = View::default();
    view.replace(revision, BTreeMap::new(), "it was read for the first time");
    view
}

#[test]
fn view_advances_revision_by_revision() {
    let mut view = listed(10);
    assert_eq!(view.advance(11, vec![put("b", 11), put("a", 11)]).0, []);
    assert_eq!(view.advance(13, vec![put("b", 12), delete("a", 13)]).0, []);
    assert_eq!((view.revision(), names(&view)), (13, vec!["b".to_owned()]));
    assert_eq!(view.get("/core/roles/b").unwrap().mod_revision, 12);
    assert_eq!(view.counts_by_kind()[0], 1);
    assert!(!view.advance(14, vec![]).1, "nothing changed for followers");
    assert_eq!(view.revision(), 14, "and still the revision is known");

    let from = view.follow(11).unwrap();
    let reported = view.changes_since(view.generation(), from).unwrap();
    let reported: Vec<_> = reported
        .iter()
        .map(|change| {
            let mod_revision = |stored: &Option<Arc<Stored>>| stored.as_ref().map(|s| s.mod_revision);
            (
                change.revision,
                change.key.name.as_str(),
                mod_revision(&change.before),
                mod_revision(&change.after),
            )
        })
        .collect();
    assert_eq!(reported, [(12, "b", Some(11), Some(12)), (13, "a", Some(11), None)]);
}

#[test]
fn unreadable_resource_is_a_fault_and_appears_deleted_until_it_is_readable() {
    let mut view = listed(1);
    view.advance(2, vec![put("a", 2), put("b", 2)]);
    let (new, news) = view.advance(3, vec![spoil("a", 3)]);
    assert_eq!((new.len(), news, names(&view)), (1, true, vec!["b".to_owned()]));
    assert_eq!(view.faults(), [Fault { key: "/core/roles/a".into(), why: "spoilt".into() }]);
    assert_eq!(view.unread_resource("/core/roles/a").map(|unread| unread.why), Some("spoilt".to_owned()));
    assert_eq!(view.unread_resource("/core/roles/b"), None);
    let (new, news) = view.advance(4, vec![spoil("a", 4)]);
    assert_eq!((new.len(), news), (1, false), "one report per change, and nothing for followers");
    assert!(!view.advance(5, vec![delete("a", 5)]).1);
    assert_eq!(view.faults(), []);
    view.advance(6, vec![spoil("c", 6)]);
    view.advance(7, vec![put("c", 7)]);
    assert_eq!((view.fault_count(), view.counts_by_kind()[0]), (0, 2));
}

#[test]
fn list_replaces_the_view_and_ends_its_followers() {
    let mut view = listed(100);
    view.advance(101, vec![put("a", 101), spoil("x", 101)]);
    let generation = view.generation();
    let next = view.follow(101).unwrap();
    let values = [
        ("/core/roles/b".to_owned(), (3, Ok(stored(&role("b"), 3)))),
        ("/core/roles/x".to_owned(), (101, Err("spoilt".to_owned().into()))),
    ];
    let (new, replaced) = view.replace(5, values.into(), "it is another one");
    assert_eq!(new, [], "this fault was known");
    assert_eq!(replaced.len(), 1);
    assert_eq!((view.revision(), names(&view), view.fault_count()), (5, vec!["b".to_owned()], 1));
    let gap = FollowerGap::Relisted { why: "it is another one".into() };
    assert_eq!(view.changes_since(generation, next).unwrap_err(), gap);
    assert_eq!(view.follow(101).unwrap_err(), gap, "a revision that is still to come");
    assert_eq!(view.follow(4).unwrap_err(), gap, "the changes between the revision and the list are unknown");
    assert!(view.follow(5).is_ok());
}

#[test]
fn a_view_that_was_not_read_yet_cannot_be_followed() {
    let view = View::default();
    assert_eq!(
        view.follow(1).unwrap_err(),
        FollowerGap::Relisted { why: "the store was not read yet".into() }
    );
}

proptest! {
    /// For any sequence of steps: a follower that applies its changes to its first list equals the view, and the view
    /// equals a map of the steps.
    #[test]
    fn followers_and_the_view_agree(
        steps in prop::collection::vec(prop::collection::vec(("[a-e]", 0u8..4), 1..4), 1..40),
        start in 0usize..40,
    ) {
        let mut view = listed(1);
        let mut model: BTreeMap<String, i64> = BTreeMap::new();
        let mut followed = None;
        let mut revision = 1;
        for (n, step) in steps.iter().enumerate() {
            if n == start % steps.len() {
                let observed: BTreeMap<_, _> =
                    view.all_objects().iter().map(|s| (s.key.name.clone(), s.mod_revision)).collect();
                followed = Some((view.ring().end_number(), observed));
            }
            revision += 1;
            let step: BTreeMap<_, _> = step.iter().cloned().collect();
            let steps = step.iter().map(|(name, what)| match what {
                0 => { model.remove(name); delete(name, revision) }
                1 => { model.remove(name); spoil(name, revision) }
                _ => { model.insert(name.clone(), revision); put(name, revision) }
            }).collect();
            view.advance(revision, steps);
        }
        let now: BTreeMap<_, _> = view.all_objects().iter().map(|s| (s.key.name.clone(), s.mod_revision)).collect();
        prop_assert_eq!(&now, &model);
        prop_assert_eq!(view.counts_by_kind()[0], model.len());
        let (mut next, mut seen) = followed.expect("it started somewhere");
        loop {
            let changes = view.changes_since(view.generation(), next).unwrap();
            if changes.is_empty() { break; }
            next += changes.len() as u64;
            for change in changes {
                let before = change.before.as_ref().map(|s| s.mod_revision);
                prop_assert_eq!(seen.get(&change.key.name).copied(), before);
                match &change.after {
                    Some(after) => { seen.insert(change.key.name.clone(), after.mod_revision); }
                    None => { seen.remove(&change.key.name); }
                }
            }
        }
        prop_assert_eq!(seen, model);
    }
}
