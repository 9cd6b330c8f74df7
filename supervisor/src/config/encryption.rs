//! The sections `placement.encryption` and `pki`: keys for the encryption of secrets at rest.
//!
//! Without the former, placement's secrets are not encrypted, as Krake could not read them. No message contains a part
//! of a key.

use madako_json::strict::Kind;
use madako_pki::{ENCRYPTION_KEYS_FORM, Keys};

use super::pem;
use super::settings::{ConfigFindings, section};

#[derive(Default)]
pub(super) struct GivenKeys {
    file: Option<String>,
    variable: Option<String>,
}

section! {
    it: GivenKeys = GivenKeys::default() => {
        "key_file": Kind::Text => it.file;
        "key_env": Kind::Text => it.variable;
    }
}

pub(super) fn read_keys(given: &GivenKeys, path: &str, findings: &mut ConfigFindings) -> Keys {
    let [file_field, env_field] = ["key_file", "key_env"].map(|name| format!("{path}.{name}"));
    let (field, origin, text) = match (&given.file, &given.variable) {
        (Some(file), None) => {
            let Some(text) = pem::read_private(&file_field, file, findings) else { return Keys::default() };
            (file_field, file, text)
        }
        (None, Some(variable)) => {
            // A name with one of these characters is invalid, and the standard library does not promise a clean error.
            let is_name = !variable.contains(['=', '\0']);
            let Some(text) = std::env::var(variable).ok().filter(|_| is_name) else {
                let expected = "the name of an environment variable with keys";
                findings.report(env_field, format!("{variable:?}"), expected);
                return Keys::default();
            };
            (env_field, variable, text)
        }
        (Some(_), Some(_)) => {
            findings.report(env_field, "a second source of keys", "`key_file` or `key_env`");
            return Keys::default();
        }
        (None, None) => {
            findings.report_missing(&file_field, "the path of a file with keys, or `key_env`");
            return Keys::default();
        }
    };
    Keys::parse(&text).unwrap_or_else(|error| {
        findings.report(field, format!("{origin:?} ({error})"), ENCRYPTION_KEYS_FORM);
        Keys::default()
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::super::{Config, ConfigError};

    const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

    fn parse(encryption: &str) -> Result<Config, ConfigError> {
        let text = format!("placement: {{encryption: {encryption}}}");
        Config::parse(&text, Path::new("c.yml"), None)
    }

    fn refusal(encryption: &str) -> String {
        parse(encryption).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn keys_come_from_a_file_of_their_own_that_others_cannot_read() {
        let files = tempfile::tempdir().unwrap();
        let path = files.path().join("keys");
        let (shown, write) = (path.display(), |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        });
        write(KEY, 0o600);
        let config = parse(&format!("{{key_file: {shown}}}")).unwrap();
        assert_eq!(config.clients.encryption.key_ids().count(), 1);
        assert!(!format!("{config:?}").contains(KEY));
        write(KEY, 0o644);
        let message = refusal(&format!("{{key_file: {shown}}}"));
        assert!(
            message.contains("whose mode is 0644, expected a file without access for others"),
            "{message}"
        );
        write("hunter2", 0o600);
        let message = refusal(&format!("{{key_file: {shown}}}"));
        assert!(
            message.contains("line 1 of the list of encryption keys is not a key of 32 bytes in Base64")
                && !message.contains("hunter2"),
            "{message}"
        );
        assert!(refusal("{key_file: /none}").contains("placement.encryption.key_file: got \"/none\""));
    }

    #[test]
    fn keys_come_from_the_environment() {
        // Every process has this variable, and it is not a key.
        let message = refusal("{key_env: PATH}");
        assert!(
            message.contains("placement.encryption.key_env: got \"PATH\" (line 1 of the list of encryption keys is not a key"),
            "{message}"
        );
        assert!(!message.contains("/bin"), "{message}");
        for name in ["MADAKO_NONE_SUCH", "A=B"] {
            assert!(refusal(&format!("{{key_env: {name}}}")).contains("an environment variable"), "{name}");
        }
    }

    #[test]
    fn without_the_section_nothing_is_encrypted_and_one_without_keys_is_refused() {
        let config = Config::parse("placement:", Path::new("c.yml"), None).unwrap();
        assert_eq!(config.clients.encryption.key_ids().count(), 0);
        assert!(refusal("").contains("placement.encryption.key_file"));
        assert!(refusal("{key_file: a, key_env: b}").contains("`key_file` or `key_env`"));
    }
}
