//! The addresses of providers: judged before anything is sent, and shown without what may be secret.

use madako_protocol::placement::providers::FetchError;
use url::Url;

/// The root of a provider's HTTP interface.
pub(crate) struct Address {
    root: Url,
    /// Scheme, host and port: user, password, path and query may be secret.
    pub(crate) shown: String,
}

impl Address {
    /// Reads the address of a definition.
    ///
    /// # Errors
    /// It is no `http` or `https` URL with a host. What it is is not repeated: it may hold a password.
    pub(crate) fn read(written: &str) -> Result<Self, FetchError> {
        let refused =
            |why: &str| FetchError::Definition { why: format!("its url is no http or https URL: {why}") };
        let mut root = Url::parse(written.trim()).map_err(|error| refused(&error.to_string()))?;
        if !matches!(root.scheme(), "http" | "https") {
            return Err(refused("it has another scheme"));
        }
        root.set_query(None);
        root.set_fragment(None);
        let port = root.port().map(|port| format!(":{port}")).unwrap_or_default();
        let shown = format!("{}://{}{port}", root.scheme(), root.host_str().unwrap_or_default());
        Ok(Self { root, shown })
    }

    /// The URL of a path below the root, with parameters.
    pub(crate) fn below(&self, path: &str, parameters: &[(&str, &str)]) -> String {
        let mut url = self.root.clone();
        url.set_path(&format!("{}/{path}", self.root.path().trim_end_matches('/')));
        if !parameters.is_empty() {
            url.query_pairs_mut().extend_pairs(parameters);
        }
        url.into()
    }

    /// Whether it has a user or a password, which go with every request and which an answer may repeat.
    pub(crate) fn has_credentials(&self) -> bool {
        !self.root.username().is_empty() || self.root.password().is_some()
    }
}

/// Parameters as a form.
pub(crate) fn form(parameters: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish()
}
