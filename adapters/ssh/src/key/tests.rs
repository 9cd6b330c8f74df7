use std::process::Command;

use super::*;

/// A new key in the form that ssh-keygen writes with these options.
fn generated(options: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    let made = Command::new("ssh-keygen").args(["-q", "-f"]).arg(&path).args(options).output();
    let made = made.expect("ssh-keygen of OpenSSH's client is installed");
    assert!(made.status.success(), "{made:?}");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn keys_of_all_kinds_and_forms_are_read() {
    for (kind, bits, names) in [
        ("rsa", "2048", "ssh-rsa"),
        ("ecdsa", "256", "ecdsa-sha2-nistp256"),
        ("ecdsa", "521", "ecdsa-sha2-nistp521"),
    ] {
        for form in ["RFC4716", "PEM", "PKCS8"] {
            let text = generated(&["-t", kind, "-b", bits, "-N", "", "-m", form]);
            let key = read_key(&text).unwrap_or_else(|error| panic!("{kind} {form}: {error}"));
            assert_eq!(key.0.algorithm().as_str(), names);
            read_key(&text.replace('\n', "\r\n")).unwrap();
        }
    }
    let key = read_key(&generated(&["-t", "ed25519", "-N", ""])).unwrap();
    assert_eq!(format!("{key:?}"), "SshKey(ssh-ed25519)");
}

#[test]
fn encrypted_keys_and_invalid_keys_are_distinguished() {
    for form in ["RFC4716", "PEM", "PKCS8"] {
        let text = generated(&["-t", "rsa", "-b", "2048", "-N", "password", "-m", form]);
        assert_eq!(read_key(&text).unwrap_err(), KeyError::Encrypted, "{form}");
    }
    assert_eq!(read_key(&generated(&["-t", "ed25519", "-N", "password"])).unwrap_err(), KeyError::Encrypted);
}

#[test]
fn wrong_texts_are_refused_without_repeating_them() {
    let good = generated(&["-t", "ed25519", "-N", ""]);
    let lines: Vec<&str> = good.lines().collect();
    let cut = [lines[0], &lines[1][..20], lines[lines.len() - 1]].join("\n");
    let spoiled = good.replace(&lines[1][..8], "!!hidden");
    for (text, error) in [
        ("", KeyError::Unreadable),
        ("hidden", KeyError::Unreadable),
        ("ssh-ed25519 AAAAhidden", KeyError::Public),
        ("-----BEGIN PUBLIC KEY-----\nhidden", KeyError::Public),
        ("-----BEGIN PRIVATE KEY-----\nhidden\n-----END PRIVATE KEY-----", KeyError::Unreadable),
        (&cut, KeyError::Unreadable),
        (&spoiled, KeyError::Unreadable),
        (&"x".repeat(MAX_KEY + 1), KeyError::TooLong),
    ] {
        let refused = read_key(text).unwrap_err();
        assert_eq!(refused, error);
        assert!(!refused.to_string().contains("hidden"));
    }
}
