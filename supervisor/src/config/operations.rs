//! The sections `operations`, `ssh`, `pki`, `images` and `etcd_backup`: whether and with which keys the service acts on nodes.
//!
//! Without `operations.mode` the service acts if it has both keys. With an explicit mode, a missing key comes from Vault or
//! the store; a node without a key and an operation without authorities say so. No message contains a part of a key.

use std::mem;

use madako_domain::backup::BackupSchedule;
use madako_domain::images::is_image;
use madako_domain::limits::MAX_IMAGE;
use madako_json::strict::Kind;
use madako_node::HostKeyPolicy;
use madako_operation_runner::page::Mode;
use madako_operation_runner::{KubernetesMode, Settings};
use madako_pki::Keys;
use madako_ssh::SshKey;
use strum::VariantNames as _;

use super::settings::ConfigFindings;
use super::{GivenSettings, backup, encryption, pem};

#[derive(Debug, Clone, Copy, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum GivenMode {
    Act,
    Observe,
    Off,
}

#[derive(Debug, Clone)]
pub struct Ssh {
    /// For nodes of which neither Vault nor the store has a key.
    pub key: Option<SshKey>,
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

impl Operations {
    /// True if operations on the components of Kubernetes are decided on, so that its API servers are known.
    #[must_use]
    pub fn keeps_kubernetes(&self) -> bool {
        self.mode.is_some() && self.settings.kubernetes != KubernetesMode::Off
    }
}

pub(super) const IMAGE: Kind = Kind::Checked(
    "the name of an image with at most 640 characters, such as ghcr.io/cybozu/etcd:3.5.15.1",
    is_image,
);
const _: () = assert!(MAX_IMAGE == 640);

pub(super) const MODE: Kind = Kind::OneOf(GivenMode::VARIANTS);
pub(super) const HOST_KEYS: Kind = Kind::OneOf(HostKeyPolicy::VARIANTS);

/// Reads the sections. The backup needs the mode.
pub(super) fn read_operations(given: &mut GivenSettings, findings: &mut ConfigFindings) -> Operations {
    let missing = match (given.has_ssh, &given.pki) {
        (true, Some(_)) => None,
        (false, Some(_)) => Some("section `ssh`"),
        (true, None) => Some("section `pki`"),
        (false, None) => Some("sections `ssh` and `pki`"),
    };
    let mode = match (given.mode, missing) {
        (Some(GivenMode::Act), _) | (None, None) => Some(Mode::Act),
        (Some(GivenMode::Observe), _) => Some(Mode::Observe),
        (Some(GivenMode::Off), _) => None,
        (None, Some(missing)) => {
            findings.warn(format!(
                "Madako does not act on nodes: the configuration has no {missing} (`operations: {{mode: act}}` uses the \
                 keys in Vault, and `operations: {{mode: off}}` switches this warning off)"
            ));
            None
        }
    };
    let mut ssh = mem::take(&mut given.ssh);
    match &ssh.key_file {
        Some(path) => ssh.key = read_key(path, findings),
        // An explicit mode means that the keys may be elsewhere.
        None if given.has_ssh && given.mode.is_none() => {
            findings.report_missing(KEY_FILE, "the path of a private key");
        }
        None => {}
    }
    Operations {
        mode,
        ssh,
        pki: given.pki.take().map(|keys| encryption::read_keys(&keys, "pki", findings)),
        settings: mem::take(&mut given.operations),
        backup: given.backup.take().and_then(|schedule| backup::read_backup(schedule, mode, findings)),
    }
}

const KEY_FILE: &str = "ssh.key_file";

fn read_key(path: &str, findings: &mut ConfigFindings) -> Option<SshKey> {
    let key = madako_ssh::read_key(&pem::read_private(KEY_FILE, path, findings)?);
    key.map_err(|error| findings.report(KEY_FILE, format!("{path:?} ({error})"), error.expected_key())).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use madako_domain::images::ImageName;

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
        assert_eq!(pki.unwrap().key_ids().count(), 1);
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
                let requested =
                    if sections.contains("any") { HostKeyPolicy::Any } else { HostKeyPolicy::Pin };
                assert_eq!(config.operations.ssh.host_keys, requested);
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
        let part = "ssh\" (the text is not a private key in the form of OpenSSH or PEM), expected an RSA, Ed25519 or ECDSA key";
        assert!(message.contains(part) && !message.contains("hunter2"), "{message}");
        keys.write("ssh", SSH_KEY, 0o644);
        let message = refusal(&format!(
            "{}operations: {{mode: on, modes: 1}}\nimages: {{etcd: '--privileged', tools: 'a b', paus: c}}",
            keys.sections()
        ));
        for part in [
            "operations.mode: got true, expected one of act, observe, off",
            "operations.modes: got an unknown field, expected a known field such as \"mode\"",
            "ssh\", whose mode is 0644, expected a file without access for others",
            "pki\", whose mode is 0604, expected a file without access for others",
            "line 1 of the list of encryption keys is not a key of 32 bytes in Base64",
            "images.etcd: got \"--privileged\", expected the name of an image",
            "images.tools: got \"a b\", expected the name of an image",
            "images.paus: got an unknown field, expected a known field such as \"pause\"",
        ] {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
        assert!(!message.contains("hunter2") && message.lines().count() == 1, "{message}");
        for (text, part) in [
            ("ssh:", "ssh.key_file: expected the path of a private key"),
            ("pki:", "pki.key_file: expected the path of a file with keys, or `key_env`"),
            ("ssh: {key_file: /none}", "ssh.key_file: got \"/none\", expected a file that can be read"),
            ("ssh: {key_file: /, host_keys: none}", "ssh.host_keys: got \"none\", expected one of pin, any"),
            (
                "pki: {key_env: PATH}",
                "pki.key_env: got \"PATH\" (line 1 of the list of encryption keys is not a key",
            ),
            (
                "operations: {mode: watch}",
                "operations.mode: got \"watch\", expected one of act, observe, off",
            ),
            ("ssh: /root/.ssh/id_rsa", "expected an object"),
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
                "ssh\" (the private key is encrypted with a passphrase), expected a private key without passphrase (",
            ),
            (
                "ssh-ed25519 AAAA",
                "ssh\" (the key is a public key, not the private key of the pair), expected the private key of the pair",
            ),
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
        let configured = operations.settings.configured_images.0;
        assert_eq!(configured, [(ImageName::Tools, tools)].into());
    }
}
