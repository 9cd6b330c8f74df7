use super::*;

#[track_caller]
fn said(text: &str) -> String {
    match QueryVariables::from_json(text) {
        Ok(variables) => {
            let warnings: Vec<_> = variables.warnings().iter().map(ToString::to_string).collect();
            format!("accepted; {}", warnings.join("; "))
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn variables_are_checked_whole() {
    for (text, expected) in [
        (
            r#"{"having": {"labels": [{"name": "foo", "value": "bar"}], "racks": [0, 1], "roles": ["worker", "gpu"],
                "states": ["HEALTHY"], "minDaysBeforeRetire": 90}, "notHaving": {"states": ["UNINITIALIZED", "RETIRED"]}}"#,
            "accepted; ",
        ),
        (r#"{"having": null, "notHaving": {"roles": ["boot"], "racks": null}}"#, "accepted; "),
        (
            r#"{"notHaving": {}}"#,
            "accepted; notHaving.roles: it does not name the role \"boot\": boot servers are chosen as well",
        ),
        (
            "{}",
            "accepted; notHaving: without the field, the registry's default for it is off too: \
             boot servers and retired machines are chosen as well",
        ),
        ("[]", "set of query variables is not valid; got a list, expected an object"),
        (
            "having: {}",
            "set of query variables is not valid; got expected value at line 1 column 1, expected one JSON object",
        ),
        (
            r#"{"having": {}, "having": {}}"#,
            "set of query variables is not valid; got a second field \"having\" at line 1 column 23, \
             expected one JSON object",
        ),
        (
            r#"{"nothaving": {}, "having": {"role": ["a"], "racks": ["1"], "states": ["healthy", 5, ""], "labels": [{}]}}"#,
            "set of query variables is not valid; nothaving: got an unknown field, expected a known field such as \"notHaving\"; \
             having.role: got an unknown field, expected a known field such as \"roles\"; \
             having.racks[0]: got \"1\", expected a whole number from -2147483648 to 2147483647; \
             having.states[1]: got the number 5, expected a text: put it in quotes; \
             having.states[0]: got \"healthy\", expected one of UNINITIALIZED, HEALTHY, UNHEALTHY, UNREACHABLE, UPDATING, RETIRING, RETIRED; \
             having.states[2]: got \"\", expected one of UNINITIALIZED, HEALTHY, UNHEALTHY, UNREACHABLE, UPDATING, RETIRING, RETIRED; \
             having.labels[0].name: expected the name of a label",
        ),
    ] {
        assert_eq!(said(text), expected, "{text}");
    }
}

#[test]
fn accepted_dates_equal_those_of_go() {
    for good in [
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:59.123456789+09:00",
        "0001-01-01T00:00:00Z",
        "2024-02-29T23:59:00-00:30",
    ] {
        assert!(parse_date(good).is_some(), "{good}");
    }
    for bad in [
        "2016-12-31T23:59:60Z",
        "2026-01-31 12:00:00Z",
        "2026-01-31t12:00:00Z",
        "2026-01-31T12:00:00z",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00Z",
        "2026-01-31",
        "2026-02-30T12:00:00Z",
        "",
    ] {
        assert!(parse_date(bad).is_none(), "{bad}");
    }
}

#[test]
fn null_has_the_meaning_of_go() {
    let machine: Machine = serde_json::from_str(
        r#"{"spec": {"serial": "s", "labels": [{"name": null, "value": null}], "rack": null, "indexInRack": null,
            "role": null, "ipv4": null, "registerDate": null, "retireDate": null, "bmc": null},
            "status": {"state": "HEALTHY", "duration": null}}"#,
    )
    .unwrap();
    assert_eq!(
        (machine.spec.rack, machine.spec.bmc.clone(), machine.status.duration),
        (0, Bmc::default(), 0.0)
    );
    assert_eq!(machine.spec.retire_date, ZERO_TIME);
    assert!(
        serde_json::from_str::<Machine>(r#"{"spec": {"serial": "s"}, "status": {"state": "HEALTHY"}}"#)
            .is_err()
    );
}

#[test]
fn labels_that_kubernetes_refuses_are_reported() {
    let with = |role: &str, labels: &[(&str, &str)]| {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| serde_json::json!({"name": name, "value": value})).collect();
        let machine: Machine = serde_json::from_value(serde_json::json!({
            "spec": {"serial": "s", "labels": labels, "role": role, "registerDate": null, "retireDate": null},
            "status": {"state": "HEALTHY"},
        }))
        .unwrap();
        let bad = machine.bad_labels();
        assert_eq!(machine.has_good_labels(), bad.is_empty());
        bad
    };
    let longest = "a".repeat(63);
    assert_eq!(with("", &[("a", ""), (&longest, &longest), ("A.b_c-9", "x")]), []);
    for role in ["a/b c", "日本", "-a", &"a".repeat(80)] {
        assert_eq!(with(role, &[]), [BadLabel::Role(role.into())]);
    }
    for name in ["", "foo bar", "a/b", &"a".repeat(64)] {
        assert_eq!(with("a", &[("good", "x"), (name, "x")]), [BadLabel::Name(name.into())]);
    }
    assert_eq!(with("a", &[("x", "v v")]), [BadLabel::Value { name: "x".into(), value: "v v".into() }]);
}
