//! Checks of this machine: the configuration file, the directory of the store, and the certificates in the configuration.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use madako_pki::read_validity;
use madako_supervisor::config::{Config, DEFAULT_PATH, StoreChoice};
use rustix::process::geteuid;
use time::OffsetDateTime;

use super::Check;
use crate::cli::Global;
use crate::commands::node::format_age;
use crate::limits::{FREE_SPACE, SOON};

pub(super) fn config_path(global: &Global) -> String {
    global.config.as_deref().unwrap_or(Path::new(DEFAULT_PATH)).display().to_string()
}

pub(super) fn check_config(config: &Config, global: &Global) -> Check {
    let path = config_path(global);
    if global.config.is_none() && !Path::new(DEFAULT_PATH).exists() {
        let found =
            format!("there is no {path}: the defaults apply, with the embedded store on 127.0.0.1:2379");
        return Check::with_notice("configuration", found, format!("madako config example > {path}"));
    }
    match config.warnings.as_slice() {
        [] => Check::passed("configuration", path),
        warnings => Check::with_notice(
            "configuration",
            warnings.join("\n"),
            format!("change {path} as the findings say"),
        ),
    }
}

/// The directory of the embedded store: its owner, and its free space.
pub(super) fn check_data_directory(config: &Config) -> Check {
    const NAME: &str = "data";
    let StoreChoice::Embedded(embedded) = &config.store else {
        return Check::not_applicable(NAME, "the state is in an etcd, not on this machine");
    };
    let directory = embedded.data_dir.as_path();
    let shown = directory.display();
    let facts = match directory.metadata() {
        Ok(facts) if facts.is_dir() => facts,
        Ok(_) => {
            return Check::failed(NAME, format!("{shown} is not a directory"), format!("remove {shown}"));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Check::with_notice(NAME, format!("{shown} does not exist"), "madako serve creates it");
        }
        Err(error) => {
            return Check::failed(
                NAME,
                format!("{shown} cannot be read: {error}"),
                "run the command as the user of the service",
            );
        }
    };
    if let Some(file) = find_foreign_file(directory, facts.uid()) {
        let found =
            format!("{} does not belong to the user {} of its directory", file.display(), facts.uid());
        return Check::failed(NAME, found, format!("chown -R {}:{} {shown}", facts.uid(), facts.gid()));
    }
    if facts.mode() & 0o022 != 0 {
        let found = format!("other users may replace the files of {shown}");
        return Check::failed(NAME, found, format!("chmod go-w {shown}"));
    }
    if !geteuid().is_root() && facts.uid() != geteuid().as_raw() {
        let found = format!("{shown} belongs to the user {}", facts.uid());
        return Check::with_notice(
            NAME,
            found,
            "run madako serve as that user, as the unit of the package does",
        );
    }
    let free = match rustix::fs::statvfs(directory) {
        Ok(system) => system.f_bavail.saturating_mul(system.f_frsize),
        Err(error) => {
            return Check::failed(
                NAME,
                format!("the free space of {shown} cannot be read: {error}"),
                "mount it again",
            );
        }
    };
    let mebibytes = free >> 20;
    match free < FREE_SPACE {
        true => Check::failed(
            NAME,
            format!("{shown} has {mebibytes} MiB of free space"),
            "free some space on its file system",
        ),
        false => Check::passed(NAME, format!("{shown}, {mebibytes} MiB free")),
    }
}

/// A file of the store that another user than this one has written, such as root by `madako store restore`.
fn find_foreign_file(directory: &Path, owner: u32) -> Option<PathBuf> {
    // The service cannot read such a directory either, and says so at its start.
    let files = directory.read_dir().ok()?.flatten();
    let is_foreign = |path: &PathBuf| path.symlink_metadata().is_ok_and(|facts| facts.uid() != owner);
    files.map(|file| file.path()).find(is_foreign)
}

/// Certificates that the configuration names.
pub(super) fn check_own_certificates(config: &Config, now: OffsetDateTime) -> Vec<Check> {
    let mut named =
        vec![("tls-ca", config.clients.tls_ca.as_ref()), ("tls-cert", config.clients.tls_cert.as_ref())];
    if let StoreChoice::Embedded(embedded) = &config.store {
        named.push(("embedded.tls-cert", embedded.tls.as_ref().map(|tls| &tls.certificate)));
    }
    let given = named.into_iter().filter_map(|(name, pem)| Some((name, pem?)));
    given
        .map(|(name, pem)| {
            check_certificate(name, pem, now, "issue a new certificate and restart the service")
        })
        .collect()
}

/// True if a certificate is valid now and for some time.
pub(super) fn check_certificate(name: &str, pem: &str, now: OffsetDateTime, fix: &str) -> Check {
    const NAME: &str = "certificate";
    match read_validity(pem) {
        Err(error) => Check::failed(NAME, format!("{name}: {error}"), fix),
        Ok(validity) if validity.to <= now => {
            Check::failed(NAME, format!("{name} ended {} ago", format_age(now - validity.to)), fix)
        }
        Ok(validity) if validity.from > now => Check::failed(
            NAME,
            format!("{name} is valid from {} on", validity.from),
            "check the clock of this machine",
        ),
        Ok(validity) if validity.to - now < SOON => {
            Check::with_notice(NAME, format!("{name} ends in {}", format_age(validity.to - now)), fix)
        }
        Ok(validity) => Check::passed(NAME, format!("{name} ends in {}", format_age(validity.to - now))),
    }
}
