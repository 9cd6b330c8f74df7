//! The URL of the registry's GraphQL endpoint, from what an operator types.

use madako_json::input::{InputError, Problem};
use url::Url;

/// The path at which sabakan serves GraphQL.
const GRAPHQL_PATH: &str = "/graphql";

/// Turns the URL of a sabakan server into that of its GraphQL endpoint.
///
/// As CKE's `set-url` does: an absolute URL is taken; `/graphql` is added unless its path ends with it.
/// Beyond that, only `http` and `https` are taken, since nothing else could be asked.
///
/// # Errors
/// What is wrong and what is expected. What was typed is not repeated: it may hold a password.
pub fn endpoint_url(typed: &str) -> Result<String, InputError> {
    let mut url = Url::parse(typed.trim()).map_err(|error| refused(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refused(format!("scheme {:?}", url.scheme())));
    }
    if !url.path().ends_with(GRAPHQL_PATH) {
        let joined = format!("{}{GRAPHQL_PATH}", url.path().trim_end_matches('/'));
        url.set_path(&joined);
    }
    Ok(url.to_string())
}

fn refused(got: String) -> InputError {
    InputError {
        subject: "URL of the registry".to_owned(),
        problems: vec![Problem {
            field: "url".to_owned(),
            got,
            expected: "an absolute http or https URL with a host, such as http://10.0.0.1:10080".to_owned(),
        }],
    }
}
