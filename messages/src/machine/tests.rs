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
            "accepted; notHaving: without it the registry's default for it does not hold either: \
             boot servers and retired machines are chosen as well",
        ),
        ("[]", "set of query variables is not valid; got a list, expected an object"),
        (
            "having: {}",
            "set of query variables is not valid; got expected value at line 1 column 1, expected one JSON object",
        ),
        (
            r#"{"having": {}, "having": {}}"#,
            "set of query variables is not valid; got the field \"having\" is there twice at line 1 column 23, expected one JSON object",
        ),
        (
            r#"{"nothaving": {}, "having": {"role": ["a"], "racks": ["1"], "states": ["healthy", 5, ""], "labels": [{}]}}"#,
            "set of query variables is not valid; nothaving: got an unknown field, expected a known one: \"notHaving\", perhaps; \
             having.role: got an unknown field, expected a known one: \"roles\", perhaps; \
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
