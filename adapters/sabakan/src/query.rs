//! The GraphQL query for machines, and the types of its answer.
//!
//! `graphql_client` checks `graphql/cke_search.graphql` against `graphql/schema.graphql` at compile time and generates
//! the types of the answer. It does not support variables whose default is `null` or an enum value, so this module puts
//! the defaults of CKE's query in front of the checked selection.

use graphql_client::GraphQLQuery;
use madako_domain::machine::QueryVariables;
use serde::Serialize;

/// A date in sabakan's format: RFC 3339.
pub(crate) type DateTime = String;
/// An address in sabakan's format: a string.
pub(crate) type IPAddress = String;

#[derive(GraphQLQuery)]
#[graphql(
    schema_path = "graphql/schema.graphql",
    query_path = "graphql/cke_search.graphql",
    response_derives = "Debug"
)]
#[allow(non_camel_case_types, reason = "the derived code looks for the operation by its GraphQL name")]
#[allow(dead_code, reason = "only the module that is derived from it is used")]
pub(crate) struct ckeSearch;

pub(crate) use cke_search as wire;

/// Head of the operation in the checked file.
const CHECKED_HEAD: &str = "query ckeSearch($having: MachineParams, $notHaving: MachineParams)";

/// Head of the operation as it is sent. Without variables, its defaults exclude boot machines and retired ones.
const SENT_HEAD: &str = r#"query ckeSearch($having: MachineParams = null,
                $notHaving: MachineParams = {
                  roles: ["boot"]
                  states: [RETIRED]
                })"#;

#[must_use]
pub fn query_text() -> String {
    wire::QUERY.replacen(CHECKED_HEAD, SENT_HEAD, 1)
}

#[derive(Serialize)]
struct QueryBody<'a> {
    query: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    variables: Option<&'a QueryVariables>,
}

/// The body of a request.
///
/// Without variables the member is missing, so that the query's defaults apply: an explicit `null` would replace them
/// and include boot machines and retired ones. With variables both are sent, an absent one as `null`, as in CKE.
#[must_use]
pub fn request_body(variables: Option<&QueryVariables>) -> Vec<u8> {
    serde_json::to_vec(&QueryBody { query: query_text(), variables })
        .expect("text, numbers and lists always have a JSON form")
}
