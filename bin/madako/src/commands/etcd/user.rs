//! `madako etcd user-add`: a user of the cluster's etcd, and its role.

use madako_protocol::etcd::EtcdError;

use super::members::{command_permit, open_members};
use crate::cli::Global;
use crate::failure::Failure;

/// Names that ckecli refuses: the administrator of etcd, and the user of CKE's own backups.
const RESERVED: [&str; 2] = ["root", "backup"];

/// A name that no user of the cluster itself has.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    match RESERVED.contains(&text) {
        true => Err(format!("expected another name than {}", RESERVED.join(" and "))),
        false => super::user_name(text),
    }
}

pub(super) fn parse_prefix(text: &str) -> Result<String, String> {
    match text.is_empty() {
        true => Err("expected the beginning of the keys that the user may read and write".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// As ckecli, the command prints nothing.
pub(super) async fn run(name: &str, prefix: &str, global: &Global) -> Result<(), Failure> {
    let (etcd, addresses) = open_members(global).await?;
    Ok(etcd.add_user(&command_permit(), &addresses, name, prefix).await?)
}

impl From<EtcdError> for Failure {
    fn from(error: EtcdError) -> Self {
        Self::Failed(error.into())
    }
}
