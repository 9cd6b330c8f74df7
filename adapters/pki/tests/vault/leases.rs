//! Tests of token leases and late answers of a simulated Vault, on paused time.

use std::time::Duration;

use madako_datacenter_sim::vault::SimulatedVault;
use madako_domain::authority::Authority;
use madako_protocol::authorities::{Authorities as _, AuthorityError};
use madako_protocol::vault::VaultError;
use tokio::time::{Instant, advance};

use crate::servers::{Server, Site};

/// A site on paused time, and its server. Its store works without time.
async fn site() -> (Site, SimulatedVault) {
    let server = Server::simulated().await;
    let simulated = server.simulated.clone().unwrap();
    let site = Site::on(server).await;
    tokio::time::pause();
    (site, simulated)
}

/// Requests with this method and path since the beginning.
fn count(vault: &SimulatedVault, what: &str) -> usize {
    vault.received_requests().iter().filter(|request| request.what == what).count()
}

const LOGIN: &str = "PUT auth/approle/login";
const RENEWAL: &str = "PUT auth/token/renew-self";

#[tokio::test]
async fn a_token_is_renewed_while_it_is_used_and_replaced_after_a_pause_without_an_ended_one() {
    let (site, vault) = site().await;
    site.authorities.ready().await.unwrap();
    let logins = count(&vault, LOGIN);
    for _ in 0..10 {
        advance(Duration::from_secs(1500)).await;
        site.authorities.ready().await.unwrap();
        site.login_keys_are_read().await;
    }
    assert_eq!(count(&vault, LOGIN), logins, "four hours on one token");
    assert!((4..=10).contains(&count(&vault, RENEWAL)), "{}", count(&vault, RENEWAL));
    advance(Duration::from_secs(7200)).await;
    site.login_keys_are_read().await;
    assert_eq!(count(&vault, LOGIN), logins + 1);
    assert!(!vault.received_requests().iter().any(|request| request.ended), "no ended token is used");
}

#[tokio::test]
async fn a_late_answer_ends_at_the_deadline_and_says_so() {
    let (site, vault) = site().await;
    vault.set_delay(Duration::from_secs(3600));
    let begun = Instant::now();
    let error = site.authorities.ready().await.unwrap_err();
    assert!(matches!(&error, AuthorityError::Vault(VaultError::Unreachable { .. })), "{error}");
    assert_eq!(begun.elapsed().as_secs(), 10);
    vault.set_delay(Duration::ZERO);
    site.authorities.ready().await.unwrap();
}

#[tokio::test]
async fn without_access_the_own_authorities_issue() {
    let (site, vault) = site().await;
    site.forget_access().await;
    let before = vault.received_requests().len();
    site.authorities.ready().await.unwrap();
    let why = site.authorities.issue(&crate::contract::root()).await.map(drop).unwrap_err();
    assert!(why.to_string().contains("madako/pki/etcd-client is missing"), "Vault has the key: {why}");
    assert_eq!(vault.received_requests().len(), before);
    site.authorities.certificate(Authority::Server).await.unwrap();
}
