//! Authenticates requests to the placement API: tries the configured authenticators in turn, then accepts the request
//! as anonymous if that is allowed.

use std::sync::Arc;

use async_trait::async_trait;
use axum::http::request::Parts;

use super::problem::Problem;

/// User of unauthenticated requests.
pub const ANONYMOUS: &str = "system:anonymous";

/// Derives the user of a request.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// The name of the user. `None` if the request has no credentials for this authenticator; the next one is tried.
    ///
    /// # Errors
    /// The credentials are invalid, for example an expired token.
    async fn authenticate(&self, request: &Parts) -> Result<Option<String>, Problem>;
}

/// All requests have the same user (Krake's `static` strategy).
#[derive(Debug, Clone)]
pub struct StaticUser(pub String);

#[async_trait]
impl Authenticator for StaticUser {
    async fn authenticate(&self, _: &Parts) -> Result<Option<String>, Problem> {
        Ok(Some(self.0.clone()))
    }
}

/// Common name of a client's verified certificate. The listener adds it to the extensions of each request of its
/// connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    pub common_name: String,
}

/// The user is the common name of the client's certificate.
#[derive(Debug, Clone, Copy)]
pub struct ByCertificate;

#[async_trait]
impl Authenticator for ByCertificate {
    async fn authenticate(&self, request: &Parts) -> Result<Option<String>, Problem> {
        Ok(request.extensions.get::<ClientCertificate>().map(|shown| shown.common_name.clone()))
    }
}

pub(super) async fn authenticate_user(
    authenticators: &[Arc<dyn Authenticator>],
    allow_anonymous: bool,
    request: &Parts,
) -> Result<String, Problem> {
    for authenticator in authenticators {
        if let Some(user) = authenticator.authenticate(request).await? {
            return Ok(user);
        }
    }
    if allow_anonymous { Ok(ANONYMOUS.to_owned()) } else { Err(Problem::unauthenticated()) }
}

#[cfg(test)]
mod tests {
    use axum::http::{Request, StatusCode};

    use super::*;

    async fn ask(
        authenticators: &[Arc<dyn Authenticator>],
        anonymous: bool,
        cn: Option<&str>,
    ) -> Result<String, Problem> {
        let (mut parts, ()) = Request::new(()).into_parts();
        if let Some(cn) = cn {
            parts.extensions.insert(ClientCertificate { common_name: cn.to_owned() });
        }
        authenticate_user(authenticators, anonymous, &parts).await
    }

    #[tokio::test]
    async fn first_authenticator_that_knows_the_user_decides() {
        let both: Vec<Arc<dyn Authenticator>> =
            vec![Arc::new(ByCertificate), Arc::new(StaticUser("system".into()))];
        assert_eq!(ask(&both, false, Some("alice")).await.unwrap(), "alice");
        assert_eq!(ask(&both, false, None).await.unwrap(), "system");
        assert_eq!(ask(&both[..1], true, None).await.unwrap(), ANONYMOUS);
        assert_eq!(ask(&both[..1], false, None).await.unwrap_err().status(), StatusCode::UNAUTHORIZED);
        assert_eq!(ask(&[], false, None).await.unwrap_err().status(), StatusCode::UNAUTHORIZED);
    }
}
