//! Who asks: authenticators in turn, then anonymous if that is allowed.

use std::sync::Arc;

use async_trait::async_trait;
use axum::http::request::Parts;

use super::problem::Problem;

/// The user of requests that nobody authenticated.
pub const ANONYMOUS: &str = "system:anonymous";

/// A way to find out who asks.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// The name of the user. `None`: the request says nothing that this authenticator understands, so the next one
    /// is asked.
    ///
    /// # Errors
    /// The request brings something that is wrong, such as an expired token.
    async fn authenticate(&self, request: &Parts) -> Result<Option<String>, Problem>;
}

/// Everybody is one user (Krake's `static` strategy).
#[derive(Debug, Clone)]
pub struct StaticUser(pub String);

#[async_trait]
impl Authenticator for StaticUser {
    async fn authenticate(&self, _: &Parts) -> Result<Option<String>, Problem> {
        Ok(Some(self.0.clone()))
    }
}

/// The common name of the certificate that a client showed and that was verified. The listener puts it among the
/// extensions of each request of its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The common name of its subject.
    pub common_name: String,
}

/// The user is who the client's certificate says.
#[derive(Debug, Clone, Copy)]
pub struct ByCertificate;

#[async_trait]
impl Authenticator for ByCertificate {
    async fn authenticate(&self, request: &Parts) -> Result<Option<String>, Problem> {
        Ok(request.extensions.get::<ClientCertificate>().map(|shown| shown.common_name.clone()))
    }
}

/// The user of a request.
pub(super) async fn user(
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
        user(authenticators, anonymous, &parts).await
    }

    #[tokio::test]
    async fn the_first_who_knows_the_user_decides() {
        let both: Vec<Arc<dyn Authenticator>> =
            vec![Arc::new(ByCertificate), Arc::new(StaticUser("system".into()))];
        assert_eq!(ask(&both, false, Some("alice")).await.unwrap(), "alice");
        assert_eq!(ask(&both, false, None).await.unwrap(), "system");
        assert_eq!(ask(&both[..1], true, None).await.unwrap(), ANONYMOUS);
        assert_eq!(ask(&both[..1], false, None).await.unwrap_err().status(), StatusCode::UNAUTHORIZED);
        assert_eq!(ask(&[], false, None).await.unwrap_err().status(), StatusCode::UNAUTHORIZED);
    }
}
