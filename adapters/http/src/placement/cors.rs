//! Cross-origin access (CORS), as in Krake's server (the `aiohttp_cors` package).

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response;

use super::problem::Problem;

const ANY: &str = "*";
/// Response headers that pages may read.
const EXPOSED: HeaderValue = HeaderValue::from_static("ETag");
/// Methods that pages may send; whether a path supports a method is checked with the request itself.
const METHODS: [Method; 5] = [Method::DELETE, Method::GET, Method::OPTIONS, Method::POST, Method::PUT];

fn allows_origin(allowed: &str, origin: &HeaderValue) -> bool {
    allowed == ANY || origin.as_bytes() == allowed.as_bytes()
}

pub(super) fn answer_preflight(allowed: &str, headers: &HeaderMap) -> Result<Response, Problem> {
    let failed = |why: String| {
        Err(Problem::new(StatusCode::FORBIDDEN, format!("CORS preflight request failed: {why}")))
    };
    let Some(origin) = headers.get(header::ORIGIN) else {
        return failed("origin header is not specified in the request".to_owned());
    };
    let Some(method) = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD) else {
        return failed("'Access-Control-Request-Method' header is not specified".to_owned());
    };
    let shown = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let known = Method::from_bytes(method.as_bytes()).is_ok_and(|method| METHODS.contains(&method));
    if !known {
        let (method, origin) = (shown(method), shown(origin));
        return failed(format!("request method '{method}' is not allowed for '{origin}' origin"));
    }
    if !allows_origin(allowed, origin) {
        return failed(format!("origin '{}' is not allowed", shown(origin)));
    }
    let mut response = Response::new(Body::empty());
    response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_METHODS, method.clone());
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    Ok(response)
}

/// Adds the headers that let the origin's pages read an answer.
pub(super) fn add_headers(allowed: &str, origin: Option<&HeaderValue>, response: &mut Response) {
    let Some(origin) = origin.filter(|origin| allows_origin(allowed, origin)) else { return };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    // The answer depends on the origin; caches learn that from `Vary`.
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
}
