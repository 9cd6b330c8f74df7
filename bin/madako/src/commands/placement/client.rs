//! Sends requests to the placement API (Krake's), and shows the messages of its refusals.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::BytesMut;
use madako_json::input::{InputError, Problem};
use madako_protocol::causes::root_cause;
use reqwest::{Client, Method, Response, StatusCode, Url, header, redirect};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

use super::config::{Settings, Tls};
use crate::failure::Failure;
use crate::limits::{CONNECT_TIMEOUT, DEADLINE, MAX_ANSWER_BYTES, MAX_ANSWER_SHOWN, MAX_PEM_BYTES, WAIT};
use crate::output::escape_unprintable;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: &'static str,
    pub(super) path: Vec<String>,
    /// Description of the resource, for messages.
    pub(super) subject: String,
    pub(super) query: Vec<(&'static str, String)>,
    /// `If-Match`: only this version of the resource.
    pub(super) if_match: Option<String>,
    pub(super) body: Option<Value>,
}

impl Request {
    pub(super) fn new(method: &'static str, path: Vec<String>, subject: String) -> Self {
        Self { method, path, subject, query: Vec::new(), if_match: None, body: None }
    }
}

#[derive(Debug)]
pub(super) struct Answer {
    status: StatusCode,
    /// Version of the resource; `None`: the service has no `ETag`s.
    pub(super) etag: Option<String>,
    pub(super) body: Value,
}

impl Answer {
    /// The resource; `None` if the answer has no content.
    pub(super) fn into_document(self) -> Option<Value> {
        (self.status != StatusCode::NO_CONTENT && !self.body.is_null()).then_some(self.body)
    }
}

#[derive(Debug)]
pub(super) struct ApiClient {
    client: Client,
    url: Url,
    origin: String,
}

impl ApiClient {
    /// Opens no connection yet. Proxies of the environment are not used, and redirects not followed.
    ///
    /// # Errors
    /// Certificates or keys cannot be used.
    pub(super) fn new(settings: &Settings) -> Result<Self, Failure> {
        let client = Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(redirect::Policy::none())
            .tls_backend_preconfigured(tls_config(settings.tls.as_ref(), settings.url.scheme() == "https")?)
            .build()
            .map_err(|error| Failure::Failed(error.into()))?;
        Ok(Self { client, url: settings.url.clone(), origin: settings.origin.clone() })
    }

    /// # Errors
    /// The API cannot be reached, or refuses.
    pub(super) async fn send(&self, request: &Request) -> Result<Answer, Failure> {
        let (status, etag, body) = self.exchange(request).await?;
        self.check_answer(request, status, etag, &body)
    }

    /// Sends a request; `None` if its resource does not exist.
    ///
    /// # Errors
    /// See [`ApiClient::send`].
    pub(super) async fn find(&self, request: &Request) -> Result<Option<Answer>, Failure> {
        let (status, etag, body) = self.exchange(request).await?;
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        self.check_answer(request, status, etag, &body).map(Some)
    }

    /// Sends a request; `None` if the resource no longer has the version of `if_match`.
    ///
    /// # Errors
    /// See [`ApiClient::send`].
    pub(super) async fn send_unless_changed(&self, request: &Request) -> Result<Option<Answer>, Failure> {
        let (status, etag, body) = self.exchange(request).await?;
        if status == StatusCode::PRECONDITION_FAILED {
            return Ok(None);
        }
        self.check_answer(request, status, etag, &body).map(Some)
    }

    fn check_answer(
        &self,
        request: &Request,
        status: StatusCode,
        etag: Option<String>,
        body: &[u8],
    ) -> Result<Answer, Failure> {
        if !status.is_success() {
            return Err(refusal_failure(request, status, body));
        }
        let body = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(body).map_err(|error| {
                Failure::failed(format_args!(
                    "the answer about {} is not JSON ({error}): check that {} is the address of a Krake API",
                    request.subject, self.url
                ))
            })?
        };
        Ok(Answer { status, etag, body })
    }

    async fn exchange(&self, request: &Request) -> Result<(StatusCode, Option<String>, BytesMut), Failure> {
        let waits = request.query.iter().any(|(name, _)| *name == "blocking");
        let deadline = if waits { DEADLINE + WAIT } else { DEADLINE };
        match tokio::time::timeout(deadline, Box::pin(self.send_request(request))).await {
            Ok(result) => result,
            Err(_) => {
                let unsure = if request.method == "GET" {
                    ""
                } else {
                    "; it is unknown whether the request took effect"
                };
                Err(Failure::failed(format_args!(
                    "no complete answer about {} from the API at {} within {} s{unsure}",
                    request.subject,
                    self.url,
                    deadline.as_secs()
                )))
            }
        }
    }

    async fn send_request(
        &self,
        request: &Request,
    ) -> Result<(StatusCode, Option<String>, BytesMut), Failure> {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.clear().extend(&request.path);
        }
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&request.query);
        }
        let method = Method::from_bytes(request.method.as_bytes()).unwrap_or_default();
        let mut sending = self.client.request(method, url);
        if let Some(version) = &request.if_match {
            sending = sending.header(header::IF_MATCH, version);
        }
        if let Some(body) = &request.body {
            sending =
                sending.header(header::CONTENT_TYPE, "application/json").body(serde_json::to_vec(body)?);
        }
        let mut response = sending.send().await.map_err(|error| self.unreachable_error(&error))?;
        let etag = etag_of(&response);
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable_error(&error))? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(Failure::failed(format_args!(
                    "the answer about {} is longer than {MAX_ANSWER_BYTES} bytes",
                    request.subject
                )));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((response.status(), etag, body))
    }

    fn unreachable_error(&self, error: &reqwest::Error) -> Failure {
        let cause = root_cause(error);
        Failure::failed(format_args!(
            "the API at {} (from {}) does not answer: {cause}; check the address and that the service runs",
            self.url, self.origin
        ))
    }
}

fn etag_of(response: &Response) -> Option<String> {
    Some(response.headers().get(header::ETAG)?.to_str().ok()?.to_owned())
}

/// The message of a refusal; each invalid field has its own line if the service names the fields.
fn refusal_failure(request: &Request, status: StatusCode, body: &[u8]) -> Failure {
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let field = |one: &Value, name: &str| remove_control_characters(one[name].as_str().unwrap_or_default());
    let errors: Vec<Problem> = problem["errors"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| Problem {
            field: field(one, "field"),
            got: field(one, "got"),
            expected: field(one, "expected"),
        })
        .collect();
    if !errors.is_empty() {
        return InputError { subject: request.subject.clone(), problems: errors }.into();
    }
    let title = problem["title"]
        .as_str()
        .map(|title| format!(" {}", remove_control_characters(title)))
        .unwrap_or_default();
    // As in Krake, some details begin with the status.
    let repeated = format!("{}: ", status.as_u16());
    let detail = match &problem["detail"] {
        Value::Null => String::new(),
        Value::String(text) => {
            format!(": {}", remove_control_characters(text.strip_prefix(&repeated).unwrap_or(text)))
        }
        other => format!(": {}", remove_control_characters(&other.to_string())),
    };
    let hint = match status {
        StatusCode::UNAUTHORIZED => "; the client certificate under tls in krakectl.yaml names the user",
        StatusCode::FORBIDDEN => {
            "; roles and role bindings grant permissions to users (madako bootstrap --default-roles stores \
             the first ones)"
        }
        _ => "",
    };
    let message = format!(
        "{} of {} was refused: {}{title}{detail}{hint}",
        request.method,
        request.subject,
        status.as_u16()
    );
    match status {
        StatusCode::BAD_REQUEST
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::UNSUPPORTED_MEDIA_TYPE
        | StatusCode::UNPROCESSABLE_ENTITY => Failure::bad_input(message),
        _ => Failure::failed(message),
    }
}

/// Text of the service without control characters.
fn remove_control_characters(text: &str) -> String {
    escape_unprintable(&text.chars().take(MAX_ANSWER_SHOWN).collect::<String>())
}

fn tls_config(tls: Option<&Tls>, https: bool) -> Result<ClientConfig, Failure> {
    let mut roots = RootCertStore::empty();
    match tls {
        None if !https => {}
        Some(Tls { ca: Some(path), .. }) => {
            for certificate in read_certificates(path)? {
                roots.add(certificate).map_err(|error| unusable_file(path, &error))?;
            }
        }
        None | Some(Tls { ca: None, .. }) => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    // An explicit provider, independent of the process's default.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::Failed(error.into()))?
        .with_root_certificates(roots);
    let Some(tls) = tls else { return Ok(builder.with_no_client_auth()) };
    let key = PrivateKeyDer::from_pem_slice(&read_pem(&tls.key)?)
        .map_err(|error| unusable_file(&tls.key, &error))?;
    builder.with_client_auth_cert(read_certificates(&tls.cert)?, key).map_err(|error| {
        Failure::bad_input(format_args!(
            "the certificate {} and the key {} do not match: {error}",
            tls.cert.display(),
            tls.key.display()
        ))
    })
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let text = read_pem(path)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable_file(path, &error))?;
    if certificates.is_empty() {
        return Err(Failure::bad_input(format_args!(
            "the file {} contains no certificate in PEM",
            path.display()
        )));
    }
    Ok(certificates)
}

fn read_pem(path: &Path) -> Result<Vec<u8>, Failure> {
    let facts = fs::metadata(path).map_err(|error| unusable_file(path, &error))?;
    if facts.len() > MAX_PEM_BYTES {
        return Err(Failure::bad_input(format_args!(
            "the PEM file {} is longer than {MAX_PEM_BYTES} bytes",
            path.display()
        )));
    }
    fs::read(path).map_err(|error| unusable_file(path, &error))
}

/// The readers' errors describe the form of a certificate or key, never its content.
fn unusable_file(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::bad_input(format_args!("the PEM file {} cannot be used: {error}", path.display()))
}
