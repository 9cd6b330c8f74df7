//! Access to the API server: a kubeconfig, validated completely and read once.
//!
//! Guarantees: all problems are reported at once, by field and never by content. Files that the kubeconfig names are
//! read with the same size limit. The environment (`KUBECONFIG`, `HTTPS_PROXY`) has no effect.
//!
//! Does not: run credential plugins (`exec`, `auth-provider`), because a program named in a file would run with the
//! service's rights and without a limit. A token file, which such a plugin or the kubelet renews, is read again when it
//! changes.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use kube::Config;
use kube::client::ConfigExt;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use madako_json::input::{InputError, Problems};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::CONNECT_TIMEOUT;
pub use crate::limits::MAX_FILE_BYTES;
use crate::limits::{MAX_DEPTH, MAX_EVENTS};

/// Read and write permission for other users.
const OTHERS: u32 = 0o006;

/// Address and credentials of the API server. `Debug` shows only the address.
#[derive(Clone)]
pub struct ApiServerAccess {
    config: Config,
    server: String,
}

impl fmt::Debug for ApiServerAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("server", &self.server).finish_non_exhaustive()
    }
}

impl ApiServerAccess {
    /// Reads the current context of a kubeconfig. Relative paths start at the file's directory.
    ///
    /// # Errors
    /// Every field that is invalid or not supported.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let subject = format!("kubeconfig {}", path.display());
        let mut problems = Problems::default();
        let found = Self::parse(path, &mut problems);
        problems.finish(&subject)?;
        Ok(found.expect("without a problem there is an access"))
    }

    /// Access to an API server with a client certificate, all in PEM; `server` is its URL.
    ///
    /// # Errors
    /// A part that TLS cannot use. The error contains no part of it.
    pub(crate) fn with_certificate(
        server: &str,
        trusted: &str,
        certificate: &str,
        key: &str,
    ) -> Result<Self, &'static str> {
        let url = server.parse::<Uri>().map_err(|_| "the address of the API server is not part of a URL")?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(trusted.as_bytes()).collect();
        let found = found.map_err(|_| "the certificate of the authority is not PEM")?;
        let mut config = Config::new(url);
        config.root_cert = Some(found.into_iter().map(|der| der.to_vec()).collect());
        config.auth_info = AuthInfo {
            client_certificate_data: Some(STANDARD.encode(certificate)),
            client_key_data: Some(STANDARD.encode(key).into()),
            ..AuthInfo::default()
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.default_retry = false;
        config.disable_compression = true;
        config.rustls_client_config().map_err(|_| "TLS cannot use the client certificate")?;
        Ok(Self { config, server: server.to_owned() })
    }

    /// The API server's address, without credentials.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    fn parse(path: &Path, problems: &mut Problems) -> Option<Self> {
        let (text, mode) = match read_file(path) {
            Ok(read) => read,
            Err(expected) => {
                problems.add("", "", expected);
                return None;
            }
        };
        let file = match parse(&text) {
            Ok(file) => file,
            Err(why) => {
                problems.add("", "", format!("the YAML or JSON of a kubeconfig ({why})"));
                return None;
            }
        };
        let (cluster, user, names) = current_context(file, problems)?;
        if mode.is_some_and(|mode| mode & OTHERS != 0) && user.as_ref().is_some_and(holds_secret) {
            let mode = format!("{:04o}", mode.unwrap_or_default() & 0o7777);
            problems.add(
                "mode of the file",
                mode,
                "no access for others, because it holds credentials (chmod o-rwx)",
            );
        }
        let directory = path.parent().unwrap_or(Path::new(""));
        let reader = Reader { directory, problems };
        reader.read_access(cluster, user.unwrap_or_default(), &names)
    }
}

fn parse(text: &str) -> Result<Kubeconfig, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH, max_events: MAX_EVENTS },
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error: serde_saphyr::Error| {
        // Only the location: a parser's message may quote a wrong value, which may be a token.
        match error.without_snippet().location() {
            Some(place) => format!("line {}, column {}", place.line(), place.column()),
            None => "it is not readable".to_owned(),
        }
    })
}

/// KubeconfigNames of the current context's parts in messages.
struct KubeconfigNames {
    cluster: String,
    user: String,
}

fn current_context(
    file: Kubeconfig,
    problems: &mut Problems,
) -> Option<(Cluster, Option<AuthInfo>, KubeconfigNames)> {
    let Some(wanted) = file.current_context.filter(|name| !name.is_empty()) else {
        problems.add("current-context", "", "the name of a context");
        return None;
    };
    let context = file.contexts.into_iter().find(|context| context.name == wanted);
    let Some(context) = context.and_then(|context| context.context) else {
        problems.add("current-context", format!("{wanted:?}"), "the name of an entry of `contexts`");
        return None;
    };
    let names = KubeconfigNames {
        cluster: format!("clusters[{}].cluster", context.cluster),
        user: format!("users[{}].user", context.user.as_deref().unwrap_or_default()),
    };
    let cluster = file.clusters.into_iter().find(|cluster| cluster.name == context.cluster);
    let Some(cluster) = cluster.and_then(|cluster| cluster.cluster) else {
        let expected = "the name of an entry of `clusters`";
        problems.add(
            format!("contexts[{wanted}].context.cluster"),
            format!("{:?}", context.cluster),
            expected,
        );
        return None;
    };
    let Some(name) = context.user.filter(|user| !user.is_empty()) else {
        return Some((cluster, None, names));
    };
    let user = file.auth_infos.into_iter().find(|user| user.name == name);
    if user.is_none() {
        let expected = "the name of an entry of `users`";
        problems.add(format!("contexts[{wanted}].context.user"), format!("{name:?}"), expected);
    }
    Some((cluster, user.and_then(|user| user.auth_info), names))
}

fn holds_secret(user: &AuthInfo) -> bool {
    user.token.is_some() || user.password.is_some() || user.client_key_data.is_some()
}

/// Reads the files that a kubeconfig refers to.
struct Reader<'a> {
    directory: &'a Path,
    problems: &'a mut Problems,
}

impl Reader<'_> {
    fn read_access(
        mut self,
        cluster: Cluster,
        user: AuthInfo,
        names: &KubeconfigNames,
    ) -> Option<ApiServerAccess> {
        let begun = self.problems.len();
        let url = self.server(&cluster, names);
        for (given, field) in [
            (cluster.insecure_skip_tls_verify == Some(true), "insecure-skip-tls-verify"),
            (cluster.proxy_url.is_some_and(|url| !url.is_empty()), "proxy-url"),
        ] {
            if given {
                let expected = match field {
                    "proxy-url" => "no such field: requests go directly to the API server",
                    _ => "no such field: requests go only to a verified API server",
                };
                self.problems.add(format!("{}.{field}", names.cluster), "", expected);
            }
        }
        let field = format!("{}.certificate-authority", names.cluster);
        let authority = self.read_content(
            &field,
            cluster.certificate_authority_data.as_deref(),
            cluster.certificate_authority.as_deref(),
        );
        let root_cert = authority.and_then(|pem| self.read_certificates(&field, &pem));
        let auth_info = self.read_user(user, names);
        let url = url?;
        // kube would panic on it.
        if !is_header(&auth_info) {
            self.problems.add(format!("{}.token", names.user), "", "a token that a header can hold");
        }
        if url.scheme_str() == Some("http") && !is_loopback(&url) && has_credentials(&auth_info) {
            let expected = "https, because credentials are sent there";
            self.problems.add(format!("{}.server", names.cluster), "http", expected);
        }
        if self.problems.len() > begun {
            return None;
        }
        let server = format!(
            "{}://{}",
            url.scheme_str().unwrap_or_default(),
            url.authority().map_or("", |a| a.as_str())
        );
        let mut config = Config::new(url);
        config.root_cert = root_cert;
        config.tls_server_name = cluster.tls_server_name.filter(|name| !name.is_empty());
        config.auth_info = auth_info;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.default_retry = false;
        config.disable_compression = true;
        // Report an unusable TLS configuration now, not at the first request.
        if config.rustls_client_config().is_err() {
            let expected =
                "a certificate, the private key that belongs to it, and authorities that TLS can use";
            self.problems.add(format!("{}.client-certificate", names.user), "", expected);
        } else if config.auth_layer().is_err() {
            self.problems.add(format!("{}.token", names.user), "", "a token, or a file with one");
        }
        self.problems.is_empty().then_some(ApiServerAccess { config, server })
    }

    fn server(&mut self, cluster: &Cluster, names: &KubeconfigNames) -> Option<Uri> {
        let url = cluster.server.as_deref().and_then(|server| server.parse::<Uri>().ok());
        let url = url.filter(|url| {
            matches!(url.scheme_str(), Some("http" | "https"))
                && url.authority().is_some_and(|authority| !authority.as_str().contains('@'))
        });
        if url.is_none() {
            // The value may contain a password.
            let expected = "the API server's URL without user and password, such as https://10.0.0.1:6443";
            self.problems.add(format!("{}.server", names.cluster), "", expected);
        }
        url
    }

    fn read_user(&mut self, user: AuthInfo, names: &KubeconfigNames) -> AuthInfo {
        let programs = "no such field: the service runs no programs for credentials; give a token, a tokenFile \
                        or a client certificate";
        let another = "no such field: the service sends requests as the user itself";
        for (given, field, expected) in [
            (user.exec.is_some(), "exec", programs),
            (user.auth_provider.is_some(), "auth-provider", programs),
            (user.impersonate.is_some(), "as", another),
            (user.impersonate_uid.is_some(), "as-uid", another),
            (user.impersonate_groups.is_some(), "as-groups", another),
            (user.impersonate_user_extra.is_some(), "as-user-extra", another),
        ] {
            if given {
                self.problems.add(format!("{}.{field}", names.user), "", expected);
            }
        }
        let token_file =
            user.token_file.as_deref().filter(|path| !path.is_empty()).map(|path| self.absolute_place(path));
        if let Some(path) = &token_file
            && let Err(expected) = read_file(path)
        {
            self.problems.add(format!("{}.tokenFile", names.user), format!("{:?}", path.display()), expected);
        }
        let certificate = self.read_content(
            &format!("{}.client-certificate", names.user),
            user.client_certificate_data.as_deref(),
            user.client_certificate.as_deref(),
        );
        let field = format!("{}.client-key", names.user);
        let key_file = user.client_key.as_deref();
        let inline = user.client_key_data.as_ref().map(|_| ());
        let key = match (inline, key_file.filter(|path| !path.is_empty())) {
            // An inline key is passed on unchanged.
            (Some(()), _) => user.client_key_data.clone(),
            (None, Some(path)) => {
                let place = self.absolute_place(path);
                match read_file(&place) {
                    Err(expected) => {
                        self.problems.add(&field, format!("{:?}", place.display()), expected);
                        None
                    }
                    Ok((_, Some(mode))) if mode & OTHERS != 0 => {
                        let got = format!("a file with mode {:04o}", mode & 0o7777);
                        self.problems.add(&field, got, "no access for others (chmod o-rwx)");
                        None
                    }
                    Ok((text, _)) => Some(STANDARD.encode(text).into()),
                }
            }
            (None, None) => None,
        };
        if certificate.is_some() != key.is_some() && self.problems.is_empty() {
            let missing = if key.is_none() { &field } else { &format!("{}.client-certificate", names.user) };
            self.problems.add(missing, "", "both a client certificate and its private key, or neither");
        }
        AuthInfo {
            token_file: token_file.map(|path| path.display().to_string()),
            client_certificate: None,
            client_certificate_data: certificate.map(|pem| STANDARD.encode(pem)),
            client_key: None,
            client_key_data: key,
            ..user
        }
    }

    /// The text of a field, inline in base64 or from a file. Inline has priority, as in Kubernetes' own clients.
    fn read_content(&mut self, field: &str, inline: Option<&str>, file: Option<&str>) -> Option<String> {
        if let Some(inline) = inline.filter(|inline| !inline.is_empty()) {
            let text = STANDARD.decode(inline).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            if text.is_none() {
                self.problems.add(format!("{field}-data"), "", "PEM in base64");
            }
            return text;
        }
        let path = self.absolute_place(file.filter(|path| !path.is_empty())?);
        match read_file(&path) {
            Ok((text, _)) => Some(text),
            Err(expected) => {
                self.problems.add(field, format!("{:?}", path.display()), expected);
                None
            }
        }
    }

    fn read_certificates(&mut self, field: &str, pem: &str) -> Option<Vec<Vec<u8>>> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        match found {
            Ok(found) if !found.is_empty() => Some(found.into_iter().map(|der| der.to_vec()).collect()),
            _ => {
                self.problems.add(field, "", "certificates as PEM");
                None
            }
        }
    }

    fn absolute_place(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }
}

/// True if a token is a valid header value. The type of the secret hides its text, so the check uses the serialized
/// form.
fn is_header(user: &AuthInfo) -> bool {
    let written = user.token.is_some().then(|| serde_json::to_value(user)).transpose();
    let Ok(written) = written else { return false };
    let token = written.as_ref().and_then(|user| user.get("token")?.as_str());
    token.is_none_or(|token| HeaderValue::try_from(format!("Bearer {token}")).is_ok())
}

fn has_credentials(user: &AuthInfo) -> bool {
    holds_secret(user) || user.token_file.is_some()
}

fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Text and mode of a file. The error states the expected form.
fn read_file(path: &Path) -> Result<(String, Option<u32>), String> {
    let readable = |error: std::io::Error| format!("a file that can be read ({error})");
    let file = File::open(path).map_err(readable)?;
    let facts = file.metadata().map_err(readable)?;
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(readable)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("a file of at most {MAX_FILE_BYTES} bytes"));
    }
    Ok((text, facts.is_file().then(|| facts.permissions().mode())))
}
