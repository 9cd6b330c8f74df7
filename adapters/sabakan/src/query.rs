//! The query that is sent, and the types of what comes back.
//!
//! `graphql_client` checks `graphql/cke_search.graphql` against `graphql/schema.graphql` when this crate is
//! compiled and makes the answer's types. It cannot take variables that default to `null` or to an enum's
//! value, so the defaults of seeds/000 ("Query and variables") are put in front of the checked selection here.

use graphql_client::GraphQLQuery;
use madako_domain::machine::QueryVariables;
use serde::Serialize;

/// A date as sabakan writes it: RFC 3339.
pub(crate) type DateTime = String;
/// An address as sabakan writes it: text.
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

/// The head of the operation as the checked file has it.
const CHECKED_HEAD: &str = "query ckeSearch($having: MachineParams, $notHaving: MachineParams)";

/// The head of the operation as it is sent: without variables, machines that boot others and retired ones
/// are not asked for.
const SENT_HEAD: &str = r#"query ckeSearch($having: MachineParams = null,
                $notHaving: MachineParams = {
                  roles: ["boot"]
                  states: [RETIRED]
                })"#;

/// The text of the query, default variables included.
#[must_use]
pub fn query_text() -> String {
    wire::QUERY.replacen(CHECKED_HEAD, SENT_HEAD, 1)
}

#[derive(Serialize)]
struct Body<'a> {
    query: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    variables: Option<&'a QueryVariables>,
}

/// The body of a request.
///
/// Without variables the member is missing, so that the query's defaults hold: an explicit `null` would
/// replace them, and machines that boot others and retired ones would come in. With variables both are
/// sent, an absent one as `null`, as CKE does.
#[must_use]
pub fn request_body(variables: Option<&QueryVariables>) -> Vec<u8> {
    serde_json::to_vec(&Body { query: query_text(), variables })
        .expect("text, numbers and lists always have a JSON form")
}
