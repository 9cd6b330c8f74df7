//! The users and roles of etcd. Clients are known by the common names of their certificates; a password only has to
//! exist, and is kept nowhere.

use etcd_client::{AuthClient, Permission};
use madako_protocol::etcd::EtcdError;
use rand::TryRng as _;
use rand::rngs::SysRng;

use crate::failure::{Failure, done};
use crate::limits::PASSWORD_BYTES;
use crate::members::MemberChange;

/// The administrator, whose role etcd defines.
const ROOT: &str = "root";
/// The user of the API servers, and its role.
const API_SERVER: &str = "kube-apiserver";
/// Prefix of the keys of Kubernetes.
const REGISTRY: &str = "/registry/";

/// Creates the users and their roles, and turns authentication on. All of them may exist.
pub(crate) async fn set_up(change: &MemberChange<'_>, mut auth: AuthClient) -> Result<(), EtcdError> {
    for name in [ROOT, API_SERVER] {
        change.send_idempotent(&[done::ROLE_EXISTS], auth.role_add(name)).await?;
        if name == API_SERVER {
            let permission = Permission::read_write(REGISTRY).with_prefix();
            change.send_idempotent(&[], auth.role_grant_permission(name, permission)).await?;
        }
        let password = draw_password().map_err(|failure| failure.into_error(change.name()))?;
        change.send_idempotent(&[done::USER_EXISTS], auth.user_add(name, password, None)).await?;
        change.send_idempotent(&[], auth.user_grant_role(name, name)).await?;
    }
    change.send_idempotent(&[], auth.auth_enable()).await
}

/// Creates a user, and a role of the same name for all keys that begin with the prefix. Continues where an earlier call
/// with the same arguments was interrupted.
///
/// An existing user with a role, and a role with other permissions, are refused and stay as they are.
pub(crate) async fn add_user(
    change: &MemberChange<'_>,
    mut auth: AuthClient,
    name: &str,
    prefix: &str,
) -> Result<(), EtcdError> {
    let refused = |why: String| Failure::Refused(why).into_error(change.name());
    let failed = |failure: Failure| failure.into_error(change.name());
    let known = change.send(auth.user_list()).await?.map_err(failed)?;
    let exists = known.users().iter().any(|user| user == name);
    if exists && !change.send(auth.user_get(name)).await?.map_err(failed)?.roles().is_empty() {
        return Err(refused(format!("the user {name} exists already")));
    }
    let wanted = Permission::read_write(prefix).with_prefix();
    match change.send(auth.role_add(name)).await? {
        Ok(_) => {}
        Err(failure) if failure.has_message(done::ROLE_EXISTS) => {
            let role = change.send(auth.role_get(name)).await?.map_err(failed)?;
            if role.permissions().iter().any(|permission| *permission != wanted) {
                return Err(refused(format!("the role {name} exists already, with other permissions")));
            }
        }
        Err(failure) => return Err(failed(failure)),
    }
    change.send_idempotent(&[], auth.role_grant_permission(name, wanted)).await?;
    if !exists {
        let password = draw_password().map_err(failed)?;
        change.send_idempotent(&[], auth.user_add(name, password, None)).await?;
    }
    change.send_idempotent(&[], auth.user_grant_role(name, name)).await
}

/// A random password. The seeded generator would let a reader of the seed know it.
fn draw_password() -> Result<String, Failure> {
    let mut bytes = [0; PASSWORD_BYTES];
    SysRng.try_fill_bytes(&mut bytes).map_err(|error| {
        Failure::Unavailable(format!(
            "cannot get random bytes for a password from the operating system: {error}"
        ))
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
