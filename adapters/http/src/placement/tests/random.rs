//! Random request bodies from the OpenAPI document: valid ones round-trip, invalid ones are refused, and every answer
//! is as described (which [`World::send`] checks).

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use super::*;

const CASES: usize = 200;
/// Minimum number of round trips over all kinds.
const ROUND_TRIPS: usize = 1_000;

struct Draw {
    chance: ChaCha8Rng,
    document: Value,
}

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.chance.next_u32()).unwrap() % bound
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let place = self.below(of.len());
        &of[place]
    }

    /// A value that matches a schema.
    fn value(&mut self, schema: &Value) -> Value {
        if let Some(reference) = schema["$ref"].as_str() {
            let name = reference.rsplit('/').next().unwrap();
            let schema = self.document["components"]["schemas"][name].clone();
            return self.value(&schema);
        }
        if let Some(parts) = schema["allOf"].as_array().cloned() {
            let mut value = self.value(&parts[0]);
            parts[1..].iter().for_each(|part| self.fit(&mut value, part));
            return value;
        }
        if let (Some("object"), Some(choices)) = (schema["type"].as_str(), schema["anyOf"].as_array()) {
            let mut value = self.object(schema);
            let choice = self.one(choices).clone();
            self.fit(&mut value, &choice);
            return value;
        }
        for word in ["anyOf", "oneOf"] {
            if let Some(choices) = schema[word].as_array() {
                let choice = self.one(choices).clone();
                return self.value(&choice);
            }
        }
        if let Some(value) = schema.get("const") {
            return value.clone();
        }
        if let Some(choices) = schema["enum"].as_array() {
            return self.one(choices).clone();
        }
        match schema["type"].as_str() {
            Some("object") => self.object(schema),
            Some("array") => {
                let length = self.below(3);
                (0..length).map(|_| self.value(&schema["items"])).collect()
            }
            Some("string") => self.text(schema["pattern"].as_str()).into(),
            Some("boolean") => (self.below(2) == 0).into(),
            Some("integer") => {
                self.one(&[json!(0), json!(-1), json!(7), json!(i64::MAX), json!(i64::MIN)]).clone()
            }
            Some("number") => {
                self.one(&[json!(0), json!(0.1), json!(1.5e300), json!(5e-324), json!(123_456_789)]).clone()
            }
            Some("null") | None => Value::Null,
            Some(other) => panic!("no such type: {other}"),
        }
    }

    /// Changes a value to match a second schema as well, as far as constants and required members are concerned.
    fn fit(&mut self, value: &mut Value, schema: &Value) {
        if let Some(fixed) = schema.get("const") {
            value.clone_from(fixed);
        }
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        match value {
            Value::Object(members) => {
                for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                    if let Some(member) = members.get_mut(name) {
                        self.fit(member, schema);
                    } else if required.contains(&json!(name)) {
                        members.insert(name.clone(), self.value(schema));
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.fit(item, &schema["items"])),
            _ => {}
        }
    }

    fn object(&mut self, schema: &Value) -> Value {
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let mut object = serde_json::Map::new();
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            if required.contains(&json!(name)) || self.below(2) == 0 {
                object.insert(name.clone(), self.value(schema));
            }
        }
        if let Some(schema) = schema.get("additionalProperties").filter(|schema| schema.is_object()) {
            for _ in 0..self.below(3) {
                let name = self.one(&["a", "k8s.io/tier", "B_9"]).to_string();
                object.insert(name, self.value(schema));
            }
        }
        object.into()
    }

    fn text(&mut self, pattern: Option<&str>) -> String {
        let of: &[&str] = match pattern {
            None => &["", "a", "ä\u{1f600}\"\\\n\u{0}", "http://a/b.yaml", "  ", "null", "\u{7f}\u{2028}"],
            Some(pattern) if pattern.ends_with("ya?ml$") => &["", "http://a/b.yaml", ".yml"],
            Some(pattern) if pattern.ends_with("(csar|zip)$") => &["http://a/b.csar", "c.zip"],
            Some(pattern) if pattern.contains("T([01]") => {
                &["2026-01-02T03:04:05", "1999-12-31T23:59:59.5Z", "2026-01-02T03:04:05.000001+05:30"]
            }
            Some(pattern) if pattern.contains("not") && pattern.contains("than") => {
                &["m > 5", "m is 1e3", "m lte -0.5"]
            }
            Some(pattern) if pattern.contains("in") => &["a is b", "a/b in (c, d)", "a != b"],
            Some(pattern) if pattern.starts_with("^[A-Za-z0-9_]") => &["a", "a-b", "A.b_c", "_"],
            Some(pattern) if pattern.contains("[0-9]{1,15}") => &["0", "7", "12"],
            Some(pattern) => panic!("what fits {pattern}?"),
        };
        (*self.one(of)).to_owned()
    }

    /// Replaces one value somewhere, or adds a field.
    fn spoil(&mut self, value: &mut Value) {
        let junk = [
            json!(null),
            json!(1),
            json!("x"),
            json!([[]]),
            json!({"what": {}}),
            json!(true),
            json!(-0.5),
            json!(""),
        ];
        match value {
            Value::Object(members) if !members.is_empty() && self.below(4) > 0 => {
                let place = self.below(members.len());
                let name = members.keys().with_number(place).unwrap().clone();
                match self.below(6) {
                    0 => drop(members.remove(&name)),
                    1 => drop(members.insert("unheard-of".to_owned(), self.one(&junk).clone())),
                    _ => self.spoil(&mut members[&name]),
                }
            }
            Value::Array(items) if !items.is_empty() && self.below(4) > 0 => {
                let place = self.below(items.len());
                self.spoil(&mut items[place]);
            }
            _ => *value = self.one(&junk).clone(),
        }
    }
}

#[tokio::test]
async fn valid_bodies_round_trip_and_invalid_bodies_are_refused() {
    let document = openapi::openapi_document("1");
    let mut draw = Draw { chance: ChaCha8Rng::seed_from_u64(4), document: document.clone() };
    let mut round_trips = 0;
    for &kind in Kind::ALL {
        let world = world();
        let (mut taken, mut refused) = (0, 0);
        let path = collection(kind, "testing");
        let schema = json!({"$ref": format!("#/components/schemas/{}Request", kind.name())});
        for case in 0..CASES {
            let mut body = draw.value(&schema);
            let name = format!("x{case}");
            body["metadata"]["name"] = json!(name);
            // Fields that rules across fields require.
            for (field, value) in example(kind, &name)["spec"].as_object().into_iter().flatten() {
                if ["manifest", "kubeconfig", "auth", "im"].contains(&field.as_str()) {
                    body["spec"][field] = value.clone();
                }
            }
            let created = world.say("POST", &path, &body).await;
            if created.status == 200 {
                taken += 1;
                let one = format!("{path}/{name}");
                let read = world.ask("GET", &one).await.with(200);
                assert_eq!(read.body, created.body);
                assert_eq!(world.objects.value(&stored(kind, &name)), Some(created.json()));
                let same = if kind == Kind::GlobalMetricsProvider { 200 } else { 400 };
                world.say("PUT", &one, &created.json()).await.with(same);
            } else {
                created.with(422);
            }
            let mut spoilt = example(kind, &format!("y{case}"));
            draw.spoil(&mut spoilt);
            let answer = world.say("POST", &path, &spoilt).await;
            match answer.status.as_u16() {
                200 | 409 => {}
                _ => {
                    assert!(!answer.with(422).wrong_fields().is_empty());
                    refused += 1;
                }
            }
            let parts = route::subresources_of(kind);
            if !parts.is_empty() {
                let part = draw.one(parts).name();
                let mut spoilt = created_example(&world, kind).await;
                draw.spoil(&mut spoilt);
                let answer = world.say("PUT", &format!("{path}/part/{part}"), &spoilt).await;
                assert!([200, 400, 401, 422].contains(&answer.status.as_u16()), "{answer:?}");
            }
        }
        round_trips += taken;
        assert!(taken > CASES / 10, "{kind}: only {taken} bodies were taken");
        assert!(refused > CASES / 10, "{kind}: only {refused} bodies were refused");
    }
    assert!(round_trips >= ROUND_TRIPS, "only {round_trips}");
}

/// An existing resource, as clients read it.
async fn created_example(world: &World, kind: Kind) -> Value {
    let path = format!("{}/part", collection(kind, "testing"));
    let answer = world.ask("GET", &path).await;
    if answer.status == 200 { answer.json() } else { world.created(kind, "part").await.1 }
}
