//! `krakectl.yaml`: address of the API, user, and certificates.
//!
//! The command searches in the order of krakectl: the named file, `krakectl.yaml` in the working directory, in
//! `$XDG_CONFIG_HOME` (or `~/.config`), in `/etc/krakectl`. It uses the first existing file, and without one the defaults of
//! krakectl. A named file must exist: krakectl would silently use another API. `--api-url` replaces only the address.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use madako_json::input::{InputError, Problem};
use reqwest::Url;
use serde_json::Value;

use crate::failure::Failure;
use crate::input::{MAX_SETTINGS_BYTES, parse_documents, read_bounded};
use crate::output::print_warning;

const FILE: &str = "krakectl.yaml";
const SYSTEM: &str = "/etc/krakectl/krakectl.yaml";
const DEFAULT_URL: &str = "http://localhost:8080";
const DEFAULT_USER: &str = "system:admin";
/// Keys of the file.
const KNOWN: [&str; 3] = ["api_url", "user", "tls"];

/// File names of certificates and key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tls {
    /// The trusted authority; `None`: those of the system.
    pub(super) ca: Option<PathBuf>,
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
}

#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// Scheme, host and port.
    pub(super) url: Url,
    pub(super) origin: String,
    user: Option<String>,
    pub(super) tls: Option<Tls>,
}

impl Settings {
    /// Reads the named file, or the first existing one. `api_url`: the address of `--api-url`.
    ///
    /// # Errors
    /// The file or the address cannot be read or is invalid.
    pub(super) fn load(named: Option<&Path>, api_url: Option<&str>) -> Result<Self, Failure> {
        if let Some(path) = named {
            let text =
                read_bounded(path, MAX_SETTINGS_BYTES).map_err(|error| unreadable_file(path, &error))?;
            return Self::parse(&text, &path.display().to_string(), api_url);
        }
        for path in config_paths() {
            match read_bounded(&path, MAX_SETTINGS_BYTES) {
                Ok(text) => return Self::parse(&text, &path.display().to_string(), api_url),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(error) => return Err(unreadable_file(&path, &error)),
            }
        }
        Self::parse(
            &format!("api_url: {DEFAULT_URL}\nuser: {DEFAULT_USER}"),
            "krakectl's defaults, as there is no krakectl.yaml",
            api_url,
        )
    }

    /// The user, also the default namespace.
    ///
    /// # Errors
    /// The file names none.
    pub(super) fn required_user(&self) -> Result<String, Failure> {
        self.user.clone().ok_or_else(|| {
            Failure::bad_input(format_args!(
                "{} names no user, whose name is the default namespace: give --namespace",
                self.origin
            ))
        })
    }

    fn parse(text: &str, origin: &str, api_url: Option<&str>) -> Result<Self, Failure> {
        let documents = parse_documents(text)
            .map_err(|why| Failure::bad_input(format_args!("{origin} is not valid YAML: {why}")))?;
        let mut reading = ConfigReader { problems: Vec::new() };
        let file = match documents.as_slice() {
            [file @ Value::Object(_)] => file,
            _ => {
                return Err(Failure::bad_input(format_args!("{origin} must be one mapping of settings")));
            }
        };
        if api_url.is_none() && KNOWN.iter().all(|name| file[*name].is_null()) {
            return Err(Failure::bad_input(format_args!(
                "{origin} has no setting of krakectl, which this command reads ({}): name a file of krakectl, or the API by \
                 --api-url",
                KNOWN.join(", ")
            )));
        }
        for name in file.as_object().into_iter().flatten().map(|(name, _)| name) {
            if !KNOWN.contains(&name.as_str()) {
                print_warning(format_args!("{origin}: the setting {name} is unknown and has no effect"));
            }
        }
        let url = match api_url {
            Some(text) => reading.read_url("--api-url", text),
            None => {
                reading.read_text(file, "api_url", true).and_then(|text| reading.read_url("api_url", &text))
            }
        };
        let user = reading.read_text(file, "user", false);
        let tls = reading.read_tls(&file["tls"]);
        match (url, reading.problems.is_empty()) {
            (Some(url), true) => Ok(match api_url {
                None => Self { url: with_scheme(url, tls.is_some()), origin: origin.to_owned(), user, tls },
                // The typed scheme stays: http sends no certificate of the file.
                Some(_) => {
                    let tls = tls.filter(|_| url.scheme() == "https");
                    let origin = format!("--api-url, beside {origin}");
                    Self { url: hide_path_and_query(url), origin, user, tls }
                }
            }),
            _ => Err(InputError { subject: origin.to_owned(), problems: reading.problems }.into()),
        }
    }
}

fn unreadable_file(path: &Path, error: &io::Error) -> Failure {
    Failure::bad_input(format_args!("{} cannot be read: {error}", path.display()))
}

fn config_paths() -> Vec<PathBuf> {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    let own = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
    [Some(PathBuf::from(FILE)), own.map(|own| own.join(FILE)), Some(PathBuf::from(SYSTEM))]
        .into_iter()
        .flatten()
        .collect()
}

/// The address with the scheme that follows from `tls`, as in krakectl.
fn with_scheme(mut url: Url, tls: bool) -> Url {
    let scheme = if tls { "https" } else { "http" };
    if url.scheme() != scheme {
        print_warning(format_args!(
            "the client uses {scheme} instead of {}, because TLS is {} in krakectl's settings",
            url.scheme(),
            if tls { "enabled" } else { "disabled" }
        ));
        // `set_scheme` can exchange http and https.
        let _ = url.set_scheme(scheme);
    }
    hide_path_and_query(url)
}

/// The address without path, query and fragment.
fn hide_path_and_query(mut url: Url) -> Url {
    if !matches!(url.path(), "" | "/") || url.query().is_some() {
        print_warning("path and query of the API's address have no effect, as with krakectl");
    }
    url.set_path("/");
    url.set_query(None);
    url.set_fragment(None);
    url
}

struct ConfigReader {
    problems: Vec<Problem>,
}

impl ConfigReader {
    fn add_problem(&mut self, field: &str, got: &str, expected: &str) {
        let (got, expected) = (got.to_owned(), expected.to_owned());
        self.problems.push(Problem { field: field.to_owned(), got, expected });
    }

    fn read_text(&mut self, parent: &Value, field: &str, required: bool) -> Option<String> {
        let name = field.rsplit('.').next().unwrap_or(field);
        match &parent[name] {
            Value::String(text) if !text.is_empty() => return Some(text.clone()),
            Value::Null if !required => {}
            Value::Null => self.add_problem(field, "", "a text"),
            _ => self.add_problem(field, "another value", "a text"),
        }
        None
    }

    fn read_url(&mut self, field: &str, text: &str) -> Option<Url> {
        // The value may contain a password, so it is not shown.
        let expected = "an http or https URL without user and password";
        let url =
            Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let url = url.filter(|url| url.username().is_empty() && url.password().is_none());
        if url.is_none() {
            self.add_problem(field, "another value", expected);
        }
        url
    }

    fn read_tls(&mut self, tls: &Value) -> Option<Tls> {
        if !tls.is_null() && !tls.is_object() {
            self.add_problem(
                "tls",
                "another value",
                "a mapping with enabled, client_ca, client_cert and client_key",
            );
            return None;
        }
        match &tls["enabled"] {
            Value::Bool(true) => {}
            Value::Bool(false) => return None,
            Value::Null if tls.is_null() => return None,
            _ => {
                self.add_problem("tls.enabled", "", "true or false");
                return None;
            }
        }
        let mut file = |field: &str, required| {
            let path = PathBuf::from(self.read_text(tls, field, required)?);
            let there = fs::metadata(&path).is_ok_and(|facts| facts.is_file());
            if !there {
                self.add_problem(field, &path.display().to_string(), "an existing file");
            }
            Some(path)
        };
        let ca = file("tls.client_ca", false);
        let (cert, key) = (file("tls.client_cert", true), file("tls.client_key", true));
        Some(Tls { ca, cert: cert?, key: key? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, Failure> {
        Settings::parse(text, "it.yaml", None)
    }

    fn message(text: &str) -> String {
        let failure = parse(text).unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        failure.message().unwrap()
    }

    #[test]
    fn scheme_follows_the_tls_setting_and_the_path_is_ignored() {
        for (text, url) in [
            ("api_url: http://a:8080", "http://a:8080/"),
            ("api_url: https://a/\ntls: {enabled: false}", "http://a/"),
            ("api_url: http://a:1/base?x\ntls:", "http://a:1/"),
        ] {
            assert_eq!(parse(text).unwrap().url.as_str(), url, "{text}");
        }
        let file = file!().rsplit('/').next().map(|_| "Cargo.toml").unwrap();
        let tls =
            format!("api_url: http://a\ntls: {{enabled: yes, client_cert: {file}, client_key: {file}}}");
        let settings = parse(&tls).unwrap();
        assert_eq!(settings.url.as_str(), "https://a/");
        assert_eq!(settings.tls.unwrap().ca, None);
    }

    #[test]
    fn the_api_url_option_replaces_only_the_address_of_the_file() {
        let typed = |text: &str, url: &str| Settings::parse(text, "it.yaml", Some(url));
        let settings = typed("api_url: http://a\nuser: me", "http://b:1").unwrap();
        assert_eq!(
            (settings.url.as_str(), settings.required_user().unwrap()),
            ("http://b:1/", "me".to_owned())
        );
        // Then the file needs no address; the typed scheme stays.
        let tls = "user: me\ntls: {enabled: yes, client_cert: Cargo.toml, client_key: Cargo.toml}";
        assert!(typed(tls, "https://b").unwrap().tls.is_some());
        let plain = typed(tls, "http://b").unwrap();
        assert_eq!((plain.url.as_str(), plain.tls), ("http://b/", None));
        let message = typed("user: me", "ftp://b").unwrap_err().message().unwrap();
        assert!(message.contains("--api-url: "), "{message}");
    }

    #[test]
    fn every_wrong_setting_is_named() {
        let text = "api_url: ftp://a:hunter2@b\nuser: 7\ntls: {enabled: true, client_ca: /no/such}";
        let message = message(text);
        for part in
            ["api_url: ", "user: ", "tls.client_ca: got /no/such", "tls.client_cert: ", "tls.client_key: "]
        {
            assert!(message.contains(part), "{part} is not in {message}");
        }
        assert!(!message.contains("hunter2"), "{message}");
    }

    #[test]
    fn missing_api_or_user_is_reported_only_when_it_is_needed() {
        assert!(message("user: me").contains("api_url"));
        assert!(message("- a").contains("mapping"));
        assert!(message("").contains("mapping"));
        let settings = parse("api_url: http://a").unwrap();
        assert!(settings.required_user().unwrap_err().message().unwrap().contains("--namespace"));
    }
}
