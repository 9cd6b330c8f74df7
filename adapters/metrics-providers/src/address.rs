//! Validates the addresses of metrics providers before a request, and shows them in messages without possible secrets.

use madako_protocol::placement::providers::FetchError;
use url::Url;

pub(crate) struct Address {
    root: Url,
    /// Scheme, host and port: user, password, path and query may be secret.
    pub(crate) shown: String,
}

impl Address {
    /// Reads the address of a definition.
    ///
    /// # Errors
    /// It is not an `http` or `https` URL with a host. The error does not repeat it, because it may contain a password.
    pub(crate) fn read(written: &str) -> Result<Self, FetchError> {
        let refused =
            |why: &str| FetchError::Definition { why: format!("the url is not an http or https URL: {why}") };
        let mut root = Url::parse(written.trim()).map_err(|error| refused(&error.to_string()))?;
        if !matches!(root.scheme(), "http" | "https") {
            return Err(refused("the scheme is neither http nor https"));
        }
        root.set_query(None);
        root.set_fragment(None);
        let port = root.port().map(|port| format!(":{port}")).unwrap_or_default();
        let shown = format!("{}://{}{port}", root.scheme(), root.host_str().unwrap_or_default());
        Ok(Self { root, shown })
    }

    pub(crate) fn build_url(&self, path: &str, parameters: &[(&str, &str)]) -> String {
        let mut url = self.root.clone();
        url.set_path(&format!("{}/{path}", self.root.path().trim_end_matches('/')));
        if !parameters.is_empty() {
            url.query_pairs_mut().extend_pairs(parameters);
        }
        url.into()
    }

    /// True if it has a user or a password. They are part of every request, and an answer may repeat them.
    pub(crate) fn has_credentials(&self) -> bool {
        !self.root.username().is_empty() || self.root.password().is_some()
    }
}

pub(crate) fn encode_query(parameters: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish()
}
