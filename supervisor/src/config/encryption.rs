//! The sections `placement.encryption` and `pki`: keys for the encryption of secrets at rest.
//!
//! Without the former, placement's secrets are not encrypted, as Krake could not read them. No message contains a part
//! of a key.

use madako_pki::Keys;

use super::document::Fields;
use super::pem;

pub(super) fn read(mut section: Fields) -> Keys {
    let file = section.filled("key_file");
    let variable = section.filled("key_env");
    let keys = match (file, variable) {
        (Some(path), None) => from_file(&mut section, &path),
        (None, Some(name)) => from_environment(&mut section, &name),
        (Some(_), Some(_)) => {
            section.report("key_env", "a second source of keys", "`key_file` or `key_env`");
            None
        }
        (None, None) => {
            section.report_missing("key_file", "the path of a file with keys, or `key_env`");
            None
        }
    };
    section.finish();
    keys.unwrap_or_default()
}

fn from_file(section: &mut Fields, path: &str) -> Option<Keys> {
    let text = pem::read_private(section, "key_file", path)?;
    parsed(section, "key_file", &format!("{path:?}"), &text)
}

fn from_environment(section: &mut Fields, name: &str) -> Option<Keys> {
    // Such a name is invalid, and the standard library does not promise a clean error for it.
    let valid = !name.contains(['=', '\0']);
    match std::env::var(name).ok().filter(|_| valid) {
        Some(text) => parsed(section, "key_env", &format!("{name:?}"), &text),
        None => {
            section.report("key_env", format!("{name:?}"), "the name of an environment variable with keys");
            None
        }
    }
}

fn parsed(section: &mut Fields, field: &'static str, place: &str, text: &str) -> Option<Keys> {
    Keys::parse(text).map_err(|expected| section.report(field, place, expected.to_string())).ok()
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
        assert_eq!(config.clients.encryption.ids().count(), 1);
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
            message.contains("32 bytes in Base64 in line 1") && !message.contains("hunter2"),
            "{message}"
        );
        assert!(refusal("{key_file: /none}").contains("placement.encryption.key_file: got \"/none\""));
    }

    #[test]
    fn keys_come_from_the_environment() {
        // Every process has this variable, and it is no key.
        let message = refusal("{key_env: PATH}");
        assert!(
            message.contains("placement.encryption.key_env: got \"PATH\", expected 32 bytes"),
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
        assert_eq!(config.clients.encryption.ids().count(), 0);
        assert!(refusal("").contains("placement.encryption.key_file"));
        assert!(refusal("{key_file: a, key_env: b}").contains("`key_file` or `key_env`"));
    }
}
