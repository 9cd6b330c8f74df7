//! Tests that compare the requests to sabakan byte for byte.

use madako_domain::machine::{MachineLabel, MachineParams, MachineState, QueryVariables};

use crate::{endpoint_url, query_text, request_body};

/// The operation of seeds/000 with CKE's selection.
const QUERY: &str = r#"query ckeSearch($having: MachineParams = null,
                $notHaving: MachineParams = {
                  roles: ["boot"]
                  states: [RETIRED]
                }) {
  searchMachines(having: $having, notHaving: $notHaving) {
    spec {
      serial
      labels {
        name
        value
      }
      rack
      indexInRack
      role
      ipv4
      registerDate
      retireDate
      bmc {
        bmcType
      }
    }
    status {
      state
      duration
    }
  }
}
"#;

fn body(variables: Option<&QueryVariables>) -> String {
    String::from_utf8(request_body(variables)).unwrap()
}

/// The expected body: the query in its JSON form and the rest after it.
fn expected(after_query: &str) -> String {
    format!("{{\"query\":{}{after_query}}}", serde_json::to_string(QUERY).unwrap())
}

#[test]
fn the_query_text_is_that_of_cke() {
    assert_eq!(query_text(), QUERY);
}

#[test]
fn query_without_variables_has_no_variables_member() {
    assert_eq!(body(None), expected(""));
}

#[test]
fn with_variables_both_are_sent_and_an_absent_one_is_null() {
    let empty = QueryVariables::default();
    assert_eq!(body(Some(&empty)), expected(r#","variables":{"having":null,"notHaving":null}"#));
    let full = QueryVariables {
        having: Some(MachineParams {
            labels: Some(vec![MachineLabel { name: "foo".to_owned(), value: "bar".to_owned() }]),
            racks: Some(vec![0, 1]),
            roles: Some(vec!["worker".to_owned()]),
            states: Some(vec![MachineState::Healthy, MachineState::Unreachable]),
            min_days_before_retire: Some(90),
        }),
        not_having: None,
    };
    assert_eq!(
        body(Some(&full)),
        expected(concat!(
            r#","variables":{"having":{"labels":[{"name":"foo","value":"bar"}],"racks":[0,1],"roles":["worker"],"#,
            r#""states":["HEALTHY","UNREACHABLE"],"minDaysBeforeRetire":90},"notHaving":null}"#
        ))
    );
    let roles = MachineParams { roles: Some(vec!["boot".to_owned()]), ..MachineParams::default() };
    let some = QueryVariables { having: None, not_having: Some(roles) };
    assert_eq!(
        body(Some(&some)),
        expected(
            r#","variables":{"having":null,"notHaving":{"labels":null,"racks":null,"roles":["boot"],"states":null}}"#
        ),
        "absent fields are null too, but the days are left out, as CKE has it"
    );
}

#[test]
fn endpoint_is_derived_from_a_typed_url() {
    for (typed, expected) in [
        ("http://10.0.0.1:10080", "http://10.0.0.1:10080/graphql"),
        ("http://10.0.0.1:10080/", "http://10.0.0.1:10080/graphql"),
        ("  http://sabakan/graphql\n", "http://sabakan/graphql"),
        ("https://sabakan/some/path/", "https://sabakan/some/path/graphql"),
        ("http://sabakan/x/graphql", "http://sabakan/x/graphql"),
        ("http://[::1]:10080", "http://[::1]:10080/graphql"),
        ("http://user:secret@sabakan", "http://user:secret@sabakan/graphql"),
    ] {
        assert_eq!(endpoint_url(typed).as_deref(), Ok(expected), "{typed}");
    }
}

#[test]
fn malformed_endpoint_is_refused_without_repeating_it() {
    for typed in
        ["", "10.0.0.1:10080", "sabakan", "/graphql", "ftp://user:secret@host/", "http://", "http://a b/"]
    {
        let refused = endpoint_url(typed).expect_err(typed);
        let text = refused.to_string();
        assert!(text.contains("an absolute http or https URL"), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
}
