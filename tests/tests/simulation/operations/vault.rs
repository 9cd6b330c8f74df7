//! A simulated Vault that issues the certificates of a site, and a story of its outages.

use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::nodes::UnsignedAuthorities;
use madako_datacenter_sim::vault::SimulatedVault;
use madako_domain::containers::Container;
use madako_domain::keys;
use madako_protocol::authorities::Authorities;
use madako_protocol::store::Store;
use madako_simulation::planted::MessageCounter;
use madako_store::{EtcdStore, StoreConfig};

use super::site::{OUTAGE, Site, Stopped, address};
use crate::vault::{issuing, set_up};

/// Time in which an unused token ends.
const PAUSE: Duration = Duration::from_secs(3 * 3600);
/// Time of a late answer, below the deadline of a request.
const LATE: Duration = Duration::from_secs(8);
/// Delay of an answer that is later than any wait for it.
const NEVER: Duration = Duration::from_secs(3600);

impl Site {
    /// Sets a Vault up, which issues from the next start of an instance on.
    pub async fn use_vault(&mut self) {
        let paper = UnsignedAuthorities::new(Arc::clone(&self.world.clock), self.certificate_life);
        let vault = SimulatedVault::new(Arc::new(paper));
        let access = set_up(&vault).await;
        self.put(keys::VAULT, &access).await;
        self.vault = Some(vault);
    }

    /// The authorities of an instance: Vault where the site has one.
    pub fn authorities(&self) -> Arc<dyn Authorities> {
        let paper = UnsignedAuthorities::new(Arc::clone(&self.world.clock), self.certificate_life);
        let Some(vault) = &self.vault else { return Arc::new(paper) };
        let config = StoreConfig { prefix: "/cke/".to_owned(), ..StoreConfig::default() };
        let store: Arc<dyn Store> =
            Arc::new(EtcdStore::from_client(self.client.clone(), &config, 1).unwrap());
        Arc::new(issuing(vault, store, Arc::new(paper)))
    }

    /// Requests with a token that had ended.
    pub fn ended_tokens_used(&self) -> usize {
        let requests = self.vault.iter().flat_map(SimulatedVault::received_requests);
        requests.filter(|request| request.ended).count()
    }
}

/// Operations and reasons of the leader's page.
pub fn held(site: &Site) -> Vec<String> {
    let running = site.running.as_ref();
    let page = running.and_then(|running| running.instance.view().operations.newest());
    let held = page.iter().flat_map(|page| &page.held);
    held.map(|held| format!("{} {}", held.held.what, held.held.reason.name())).collect()
}

#[test]
fn operations_stay_held_between_passes_while_vault_is_sealed_or_does_not_answer() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut site = Site::new(&[], false, &MessageCounter::default()).await;
        // Shorter than the deadline of a request.
        site.world.working.interval = Duration::from_secs(5);
        site.use_vault().await;
        site.images("etcd:1").await;
        let vault = site.vault.clone().unwrap();
        vault.seal(true);
        site.cluster(&[0], &[1, 2]).await;
        stays_held(&mut site, "etcd-bootstrap authorities").await;
        vault.set_delay(NEVER);
        stays_held(&mut site, "etcd-bootstrap authorities").await;
        vault.set_delay(Duration::ZERO);
        vault.seal(false);
        site.settled(&[0]).await.unwrap();
        // This time no refusal came before.
        vault.set_delay(NEVER);
        site.cluster(&[0, 1], &[2]).await;
        stays_held(&mut site, "etcd-add-member authorities").await;
        vault.set_delay(Duration::ZERO);
        site.settled(&[0, 1]).await.unwrap();
        site.stop().await;
        assert_eq!(site.unplanned_failures(), [""; 0]);
    });
}

/// Waits until an operation is held, and looks at it for some passes.
async fn stays_held(site: &mut Site, what: &str) {
    let is_held = |site: &Site| held(site).contains(&what.to_owned());
    site.until(is_held).await.unwrap();
    for _ in 0..240 {
        site.pass(Duration::from_millis(250)).await;
        assert!(is_held(site), "{:?}", held(site));
    }
}

/// True if an operation waits for Vault. A disturbance may put another one in the place of the expected one.
fn waits_for_vault(site: &Site) -> bool {
    held(site).iter().any(|held| held.ends_with(" authorities"))
}

/// Members are added and replaced while Vault is sealed, has lost all tokens, is slow, or was not asked for hours.
pub async fn tell(site: &mut Site) -> Result<(), Stopped> {
    site.use_vault().await;
    site.images("etcd:1").await;
    let vault = site.vault.clone().expect("it was set up");
    vault.seal(true);
    site.cluster(&[0], &[1, 2, 3]).await;
    site.until(waits_for_vault).await?;
    vault.seal(false);
    site.settled(&[0]).await?;

    vault.seal(true);
    site.cluster(&[0, 1, 2], &[3]).await;
    site.until(waits_for_vault).await?;
    // Operations without certificates go on.
    site.nodes.end_container(&address(3), Container::Rivers);
    site.until(|site| site.nodes.view_node(&address(3)).unwrap().containers["rivers"].running).await?;
    vault.seal(false);
    vault.lose_tokens();
    site.settled(&[0, 1, 2]).await?;

    site.pass(PAUSE).await;
    vault.seal(true);
    site.cluster(&[0, 1, 3], &[2]).await;
    site.until(waits_for_vault).await?;
    site.pass(OUTAGE).await;
    let stopped = site.records.lock().unwrap().iter().any(|it| it.record.operation == "stop-etcd");
    assert!(!stopped, "a member stops only after its successor has joined");
    vault.seal(false);
    vault.set_delay(LATE);
    site.settled(&[0, 1, 3]).await?;

    vault.set_delay(Duration::ZERO);
    vault.set_unreachable(true);
    site.nodes.end_container(&address(1), Container::Etcd);
    // The member has its certificates.
    site.until(|site| site.nodes.view_node(&address(1)).unwrap().containers["etcd"].running).await?;
    site.pass(OUTAGE).await;
    vault.set_unreachable(false);
    site.settled(&[0, 1, 3]).await
}
