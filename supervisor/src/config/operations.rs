//! The sections `operations`, `ssh`, `pki`, `images` and `etcd_backup`: whether and with which keys the service acts on nodes.
//!
//! Without `operations.mode` the service acts if it has both keys. With an explicit mode, a missing key comes from Vault or
//! the store; a node without a key and an operation without authorities say so. No message contains a part of a key.

use std::str::FromStr;

use madako_domain::backup::BackupSchedule;
use madako_domain::images::{GivenImages, ImageName, is_image};
use madako_domain::limits::MAX_IMAGE;
use madako_node::HostKeyPolicy;
use madako_operation_runner::Settings;
use madako_operation_runner::page::Mode;
use madako_pki::Keys;
use madako_ssh::SshKey;

use super::document::Fields;
use super::{backup, encryption, pem};

/// The value of `operations.mode`; `None` is `off`.
struct GivenMode(Option<Mode>);

impl FromStr for GivenMode {
    type Err = <Mode as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" { Ok(Self(None)) } else { text.parse().map(|mode| Self(Some(mode))) }
    }
}

/// Access to nodes.
#[derive(Debug, Clone)]
pub struct Ssh {
    /// For nodes of which neither Vault nor the store has a key.
    pub key: Option<SshKey>,
    /// The file of the key.
    pub key_file: Option<String>,
    pub host_keys: HostKeyPolicy,
}

impl Default for Ssh {
    fn default() -> Self {
        Self { key: None, key_file: None, host_keys: HostKeyPolicy::Pin }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Operations {
    /// `None`: off.
    pub mode: Option<Mode>,
    pub ssh: Ssh,
    /// Encryption of the keys of authorities and of SSH keys in the store.
    pub pki: Option<Keys>,
    /// Images, and the number of concurrent updates.
    pub settings: Settings,
    /// `None`: the leader makes no backups of etcd.
    pub backup: Option<BackupSchedule>,
}

pub(super) const SECTIONS: [&str; 5] = ["operations", "ssh", "pki", "images", "etcd_backup"];

/// Reads the [`SECTIONS`]; `root` receives the warning.
pub(super) fn read(root: &Fields, [operations, ssh, pki, images, backup]: [Option<Fields>; 5]) -> Operations {
    let missing = match (&ssh, &pki) {
        (Some(_), Some(_)) => None,
        (None, Some(_)) => Some("section `ssh`"),
        (Some(_), None) => Some("section `pki`"),
        (None, None) => Some("sections `ssh` and `pki`"),
    };
    let given = operations.and_then(read_mode).map(|GivenMode(mode)| mode);
    let needs_key = given.is_none();
    let mode = match (given, missing) {
        (Some(mode), _) => mode,
        (None, None) => Some(Mode::Act),
        (None, Some(missing)) => {
            root.warn(format!(
                "Madako does not act on nodes: the configuration has no {missing} (`operations: {{mode: act}}` uses the \
                 keys in Vault, and `operations: {{mode: off}}` switches this warning off)"
            ));
            None
        }
    };
    let mut settings = Settings::default();
    if let Some(mut images) = images {
        let given = ImageName::ALL.map(|name| Some((name, read_image(&mut images, name)?)));
        settings.configured_images = GivenImages(given.into_iter().flatten().collect());
        images.finish();
    }
    let backup = backup.and_then(|section| backup::read(section, mode));
    let ssh = ssh.and_then(|section| read_ssh(section, needs_key)).unwrap_or_default();
    Operations { mode, ssh, pki: pki.map(encryption::read), settings, backup }
}

fn read_mode(mut section: Fields) -> Option<GivenMode> {
    let given = section.parsed_or_off("mode", "act, observe or off");
    section.finish();
    given
}

/// `needs_key`: no explicit mode says that the keys are elsewhere.
fn read_ssh(mut section: Fields, needs_key: bool) -> Option<Ssh> {
    let key_file = section.filled("key_file");
    let key = match key_file.clone() {
        Some(path) => pem::read_private(&mut section, "key_file", &path).and_then(|text| {
            let key = madako_ssh::read_key(&text);
            key.map_err(|error| section.report("key_file", format!("{path:?}, {error}"), error.expected()))
                .ok()
        }),
        None => {
            if needs_key {
                section.report_missing("key_file", "the path of a private key");
            }
            None
        }
    };
    let host_keys = section.parsed("host_keys", "pin or any").unwrap_or(HostKeyPolicy::Pin);
    section.finish();
    Some(Ssh { key, key_file, host_keys })
}

/// Replaces `image` by a given name. Docker would read a leading dash as an option.
fn read_image(section: &mut Fields, name: ImageName) -> Option<String> {
    let given = section.filled(name.name())?;
    if !is_image(&given) {
        let example = name.of_cke();
        let expected = format!("the name of an image with at most {MAX_IMAGE} characters, such as {example}");
        section.report(name.name(), format!("{:?}", super::document::shorten(&given)), expected);
    }
    Some(given)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::super::{Config, ConfigError};
    use super::*;

    /// Files with an SSH key and a key for authorities.
    struct Keys(tempfile::TempDir);

    impl Keys {
        fn new() -> Self {
            let keys = Self(tempfile::tempdir().unwrap());
            keys.write("ssh", SSH_KEY, 0o600);
            keys.write("pki", PKI_KEY, 0o600);
            keys
        }

        fn write(&self, name: &str, text: &str, mode: u32) {
            let path = self.0.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }

        /// A section with the key of this name.
        fn section(&self, name: &str) -> String {
            format!("{name}: {{key_file: {}}}\n", self.0.path().join(name).display())
        }

        fn sections(&self) -> String {
            self.section("ssh") + &self.section("pki")
        }
    }

    const SSH_KEY: &str = "-----BEGIN OPENSSH PRIVATE KEY-----\n\
        b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n\
        QyNTUxOQAAACDBGymq6p0Mjal+nlsgItFUuAk4LvYLTdWUINOKeLAbvQAAAIib0FYim9BW\n\
        IgAAAAtzc2gtZWQyNTUxOQAAACDBGymq6p0Mjal+nlsgItFUuAk4LvYLTdWUINOKeLAbvQ\n\
        AAAEAvlo1nmO2Wor4E+QbRgdlwc89DZAPtK3ObeiTLAVqFVsEbKarqnQyNqX6eWyAi0VS4\n\
        CTgu9gtN1ZQg04p4sBu9AAAAAAECAwQF\n\
        -----END OPENSSH PRIVATE KEY-----\n";
    const PKI_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("c.yml"), None)
    }

    fn refusal(text: &str) -> String {
        parse(text).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn the_service_acts_if_it_has_both_keys() {
        let keys = Keys::new();
        let config = parse(&keys.sections()).unwrap();
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        let shown = format!("{config:?}");
        let Operations { mode, ssh, pki, settings, backup } = config.operations;
        assert!(backup.is_none());
        assert_eq!((mode, settings), (Some(Mode::Act), Settings::default()));
        assert!(ssh.key.is_some() && ssh.host_keys == HostKeyPolicy::Pin);
        assert_eq!(pki.unwrap().ids().count(), 1);
        assert!(!shown.contains(SSH_KEY.trim()) && !shown.contains(PKI_KEY.trim()), "{shown}");

        for (mode, expected) in
            [("act", Some(Mode::Act)), ("observe", Some(Mode::Observe)), ("off", None), ("'off'", None)]
        {
            let config = parse(&format!("{}operations: {{mode: {mode}}}", keys.sections())).unwrap();
            assert_eq!(config.operations.mode, expected);
            assert!(config.operations.ssh.key.is_some() && config.warnings.is_empty());
        }
    }

    #[test]
    fn without_a_key_the_service_does_not_act_and_names_the_missing_sections() {
        let keys = Keys::new();
        assert_eq!(parse("operations:").unwrap().operations.mode, None);
        for (text, missing) in [
            (String::new(), "no sections `ssh` and `pki` ("),
            (keys.section("ssh"), "no section `pki` ("),
            (keys.section("pki"), "no section `ssh` ("),
        ] {
            let config = parse(&text).unwrap();
            assert_eq!((config.operations.mode, config.warnings.len()), (None, 1), "{text}");
            assert!(config.warnings[0].contains(missing), "{:?}", config.warnings);
            let with_mode = |mode: &str| format!("{text}operations: {{mode: {mode}}}");
            assert!(parse(&with_mode("off")).unwrap().warnings.is_empty());
        }
    }

    #[test]
    fn an_explicit_mode_needs_no_key_since_vault_may_have_them() {
        let keys = Keys::new();
        for (mode, expected) in [("act", Mode::Act), ("observe", Mode::Observe)] {
            for sections in ["", "ssh: {host_keys: any}\n", &keys.section("pki"), &keys.section("ssh")] {
                let config = parse(&format!("{sections}operations: {{mode: {mode}}}")).unwrap();
                assert_eq!(config.operations.mode, Some(expected), "{sections}");
                assert!(config.warnings.is_empty(), "{:?}", config.warnings);
                let asked = if sections.contains("any") { HostKeyPolicy::Any } else { HostKeyPolicy::Pin };
                assert_eq!(config.operations.ssh.host_keys, asked);
            }
        }
    }

    #[test]
    fn every_problem_of_the_sections_is_in_one_message() {
        let keys = Keys::new();
        keys.write("ssh", SSH_KEY, 0o644);
        keys.write("pki", "hunter2", 0o604);
        keys.write("ssh", "hunter2", 0o600);
        let message = refusal(&keys.sections());
        let part = "ssh\", which holds no readable private key, expected an RSA, Ed25519 or ECDSA key";
        assert!(message.contains(part) && !message.contains("hunter2"), "{message}");
        keys.write("ssh", SSH_KEY, 0o644);
        let message = refusal(&format!(
            "{}operations: {{mode: on, modes: 1}}\nimages: {{etcd: '--privileged', tools: 'a b', paus: c}}",
            keys.sections()
        ));
        for part in [
            "operations.mode: got true, expected a text",
            "operations.modes: got an unknown key",
            "ssh\", whose mode is 0644, expected a file without access for others",
            "pki\", whose mode is 0604, expected a file without access for others",
            "32 bytes in Base64 in line 1",
            "images.etcd: got \"--privileged\", expected the name of an image",
            "images.tools: got \"a b\", expected the name of an image",
            "images.paus: got an unknown key, expected one of etcd, tools, kubernetes, pause",
        ] {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
        assert!(!message.contains("hunter2") && message.lines().count() == 1, "{message}");
        for (text, part) in [
            ("ssh:", "ssh.key_file: expected the path of a private key"),
            ("pki:", "pki.key_file: expected the path of a file with keys, or `key_env`"),
            ("ssh: {key_file: /none}", "ssh.key_file: got \"/none\", expected a file that can be read"),
            ("ssh: {key_file: /, host_keys: none}", "ssh.host_keys: got \"none\", expected pin or any"),
            ("pki: {key_env: PATH}", "pki.key_env: got \"PATH\", expected 32 bytes"),
            ("operations: {mode: watch}", "operations.mode: got \"watch\", expected act, observe or off"),
            ("ssh: /root/.ssh/id_rsa", "expected a mapping of settings"),
        ] {
            let message = refusal(text);
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
    }

    #[test]
    fn a_wrong_ssh_key_is_one_sentence_with_its_file_its_fault_and_the_expected_key() {
        let keys = Keys::new();
        for (text, part) in [
            (
                "-----BEGIN ENCRYPTED PRIVATE KEY-----",
                "ssh\", which holds an encrypted private key, expected a private key without passphrase (",
            ),
            ("ssh-ed25519 AAAA", "ssh\", which holds a public key, expected the private key of the pair"),
        ] {
            keys.write("ssh", text, 0o600);
            let message = refusal(&keys.sections());
            assert!(message.contains("ssh.key_file: got \"/") && message.contains(part), "{message}");
        }
    }

    #[test]
    fn images_and_the_check_of_host_keys_can_be_changed() {
        let keys = Keys::new();
        let tools = "registry.example.com:5000/madako-tools:0.1".to_owned();
        let ssh = keys.section("ssh").replace('}', ", host_keys: any}");
        let text = format!("{ssh}{}images: {{tools: '{tools}'}}", keys.section("pki"));
        let operations = parse(&text).unwrap().operations;
        assert_eq!(operations.ssh.host_keys, HostKeyPolicy::Any);
        let configured = GivenImages([(ImageName::Tools, tools)].into());
        assert_eq!(operations.settings.configured_images, configured);
    }
}
