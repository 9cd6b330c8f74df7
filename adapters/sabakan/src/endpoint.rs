//! The URL of the registry's GraphQL endpoint, from an operator's input.

use madako_json::input::{InputError, Problem};
use url::Url;

const GRAPHQL_PATH: &str = "/graphql";

/// Turns the URL of a sabakan server into that of its GraphQL endpoint.
///
/// As CKE's `set-url` does: accepts an absolute URL and appends `/graphql` unless its path ends with it. In addition,
/// only `http` and `https` are accepted, because the client supports no other scheme.
///
/// # Errors
/// The problem and the expected form. The input is not repeated, because it may contain a password.
pub fn endpoint_url(typed: &str) -> Result<String, InputError> {
    let mut url = Url::parse(typed.trim()).map_err(|error| refuse_url(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refuse_url(format!("scheme {:?}", url.scheme())));
    }
    if !url.path().ends_with(GRAPHQL_PATH) {
        let joined = format!("{}{GRAPHQL_PATH}", url.path().trim_end_matches('/'));
        url.set_path(&joined);
    }
    Ok(url.to_string())
}

fn refuse_url(got: String) -> InputError {
    InputError {
        subject: "URL of the registry".to_owned(),
        problems: vec![Problem {
            field: "url".to_owned(),
            got,
            expected: "an absolute http or https URL with a host, such as http://10.0.0.1:10080".to_owned(),
        }],
    }
}
