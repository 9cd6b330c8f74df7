//! What people do meanwhile: they write template, constraints and switches over a connection of their own.

use etcd_client::{Compare, CompareOp, Error, Txn, TxnOp};
use madako_datacenter_sim::host::{HEALTH_CHECK, RESET, SUCCESS};
use madako_domain::guard::GuardState;
use madako_domain::keys;
use madako_faults::DELAY;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::drains::{EVICTION_TIMEOUT, PROTECTED};
use crate::repair::{ATTEMPTS, RepairJudge};
use crate::store_process::StoreProcess;
use crate::world::PREFIX;

/// What the queue may come to by reports: less than users make of it, and more than a rack has machines.
const AUTOMATIC: [u32; 4] = [6, 12, 16, 24];

/// An operator. See the module.
pub struct Operator {
    store: StoreProcess,
    chance: ChaCha8Rng,
    version: u64,
    /// What stands in the way of planning until the operator's next act.
    obstacle: Option<PlanningBlock>,
    /// The section `repair` of the template, if machines are to be repaired.
    repair: Option<serde_json::Value>,
    repairs: Option<RepairJudge>,
    /// Entries of the repair queue up to which the registry's reports become some.
    automatic: u32,
    wanted: Wanted,
}

/// What a calm cluster of this world has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Control plane nodes.
    pub control_plane: u32,
    /// Workers at least.
    pub workers: u32,
}

impl Wanted {
    /// What the project's own world of sixty machines has.
    const USUAL: Self = Self { control_plane: 3, workers: 12 };

    /// What so many machines allow even when a few of them are broken.
    #[must_use]
    pub fn of(machines: u32) -> Self {
        Self { control_plane: if machines < 10 { 1 } else { 3 }, workers: machines / 5 }
    }
}

enum PlanningBlock {
    Disabled,
    BrokenTemplate,
}

impl Operator {
    /// Has written nothing yet.
    #[must_use]
    pub fn new(store: StoreProcess, chance: ChaCha8Rng) -> Self {
        Self {
            store,
            chance,
            version: 0,
            obstacle: None,
            repair: None,
            repairs: None,
            automatic: 0,
            wanted: Wanted::USUAL,
        }
    }

    /// From now on machines are repaired.
    pub fn repairs(&mut self, judge: RepairJudge) {
        let step = |drain: bool, watch: u32| {
            json!({
                "repair_command": [RESET], "need_drain": drain, "command_timeout_seconds": 60,
                "command_retries": ATTEMPTS - 1, "command_interval": 5, "watch_seconds": watch,
            })
        };
        let operation = |name: &str, steps: [serde_json::Value; 2]| {
            json!({
                "operation": name, "repair_steps": steps,
                "health_check_command": [HEALTH_CHECK], "success_command": [SUCCESS],
            })
        };
        self.repair = Some(json!({
            "max_concurrent_repairs": 3,
            "protected_namespaces": {"matchLabels": {"team": PROTECTED}},
            "evict_retries": 2, "evict_interval": 10,
            "eviction_timeout_seconds": EVICTION_TIMEOUT.as_secs(),
            "repair_procedures": [{
                "machine_types": ["iDRAC-9", "IPMI-2.0"],
                "repair_operations": [
                    operation("unhealthy", [step(true, 120), step(false, 300)]),
                    operation("unreachable", [step(false, 120), step(true, 300)]),
                ],
            }],
        }));
        self.repairs = Some(judge);
        self.automatic = AUTOMATIC[1];
    }

    async fn put(&mut self, key: &str, value: String) -> Result<(), Error> {
        self.store.people().await?.put(format!("{PREFIX}{key}"), value, None).await?;
        Ok(())
    }

    /// What a new installation of so many machines needs. Later acts are of that size too.
    ///
    /// # Errors
    /// The store does not take it.
    pub async fn install_for(&mut self, machines: u32) -> Result<(), Error> {
        self.keeps(machines);
        self.install().await
    }

    /// From now on it works with a cluster of so many machines.
    pub fn keeps(&mut self, machines: u32) {
        self.wanted = Wanted::of(machines);
    }

    /// What a new installation needs.
    ///
    /// # Errors
    /// The store does not take it.
    pub async fn install(&mut self) -> Result<(), Error> {
        self.put(keys::SABAKAN_URL, "http://registry.invalid/graphql".to_owned()).await?;
        self.constraints(self.wanted.control_plane, self.wanted.workers, 0).await?;
        self.template(&[6, 3, 1]).await?;
        // Retiring and retired machines are to be seen.
        self.put(keys::SABAKAN_VARIABLES, r#"{"having":null,"notHaving":{"roles":["boot"]}}"#.to_owned())
            .await
    }

    /// Writes constraints.
    ///
    /// # Errors
    /// The store does not take it.
    pub async fn constraints(&mut self, control_plane: u32, minimum: u32, maximum: u32) -> Result<(), Error> {
        let mut constraints = json!({
            "control-plane-count": control_plane,
            "minimum-workers": minimum,
            "maximum-workers": maximum,
        });
        if self.repair.is_some() {
            constraints["maximum-repair-queue-entries"] = json!(self.automatic);
            constraints["wait-seconds-to-repair-rebooting"] = json!(120);
        }
        self.put(keys::CONSTRAINTS, constraints.to_string()).await
    }

    async fn template(&mut self, weights: &[u32; 3]) -> Result<(), Error> {
        self.version += 1;
        let worker = |role: &str, weight: u32| {
            json!({
                "user": "cybozu",
                "labels": {"cke.cybozu.com/role": role, "cke.cybozu.com/weight": format!("{weight}.0")},
            })
        };
        let mut template = json!({
            "name": "simulated",
            "nodes": [
                {"user": "cybozu", "control_plane": true, "annotations": {"version": self.version.to_string()}},
                worker("compute", weights[0]),
                worker("storage", weights[1]),
                worker("gpu", weights[2]),
            ],
            "service_subnet": "10.68.0.0/16",
            "options": {"kubelet": {"cri_endpoint": "unix:///run/containerd/containerd.sock"}},
        });
        if let Some(repair) = &self.repair {
            template["repair"] = repair.clone();
        }
        self.put(keys::SABAKAN_TEMPLATE, template.to_string()).await
    }

    /// Turns the integration with the registry off or on.
    ///
    /// # Errors
    /// The store does not take it.
    pub async fn disable(&mut self, disabled: bool) -> Result<(), Error> {
        self.obstacle = None;
        self.put(keys::SABAKAN_DISABLED, disabled.to_string()).await
    }

    /// Writes a good template that no other equals.
    ///
    /// # Errors
    /// The store does not take it.
    pub async fn change_template(&mut self) -> Result<(), Error> {
        self.template(&[6, 3, 1]).await
    }

    /// Does something that an operator does. Says what.
    ///
    /// # Errors
    /// The store does not answer; what became of it is not known.
    pub async fn act(&mut self) -> Result<String, Error> {
        // What cannot be written now is tried again.
        match self.obstacle {
            Some(PlanningBlock::Disabled) => {
                self.put(keys::SABAKAN_DISABLED, "false".to_owned()).await?;
                self.obstacle = None;
                return Ok("enables the integration".to_owned());
            }
            Some(PlanningBlock::BrokenTemplate) => {
                self.template(&[6, 3, 1]).await?;
                self.obstacle = None;
                return Ok("mends the template".to_owned());
            }
            None => {}
        }
        Ok(match self.chance.random_range(0..11_u32) {
            0 | 1 => {
                let control_plane =
                    [1, 3, 3, 5][self.chance.random_range(0..4_usize)].min(self.wanted.control_plane + 2);
                // Of twelve in the usual world: five to twenty-four.
                let minimum = self.chance.random_range(5..25) * self.wanted.workers / Wanted::USUAL.workers;
                // So close to the least that it is reached as soon as a few workers are broken.
                let above = [None, None, Some(0), Some(1), Some(3)][self.chance.random_range(0..5_usize)];
                let maximum = above.map_or(0, |above| minimum + above);
                if self.repair.is_some() {
                    self.automatic = AUTOMATIC[self.chance.random_range(0..AUTOMATIC.len())];
                }
                self.constraints(control_plane, minimum, maximum).await?;
                format!("sets constraints {control_plane} {minimum} {maximum}")
            }
            2 => {
                let weights = [0; 3].map(|_: u32| self.chance.random_range(1..8));
                self.template(&weights).await?;
                format!("sets a template with weights {weights:?}")
            }
            3 => {
                self.put(keys::SABAKAN_DISABLED, "true".to_owned()).await?;
                self.obstacle = Some(PlanningBlock::Disabled);
                "disables the integration".to_owned()
            }
            4 => {
                self.put(keys::SABAKAN_TEMPLATE, "{\"name\":\"broken\"".to_owned()).await?;
                self.obstacle = Some(PlanningBlock::BrokenTemplate);
                "stores a broken template".to_owned()
            }
            5 => {
                self.store.people().await?.delete(format!("{PREFIX}{}", keys::STATUS), None).await?;
                "deletes the status".to_owned()
            }
            6 => {
                self.depose().await?;
                "deletes every leader key".to_owned()
            }
            7 => self.confirm_removal().await?,
            8 | 9 => {
                // Where the leader's ways are slow, what it makes of the template is still on its way then.
                let weights = [0; 3].map(|_: u32| self.chance.random_range(1..8));
                self.template(&weights).await?;
                tokio::time::sleep(DELAY.mul_f64(self.chance.random_range(0.0..2.0))).await;
                self.depose().await?;
                format!("sets a template with weights {weights:?} and deletes every leader key")
            }
            _ => {
                let revision =
                    self.store.people().await?.get("none", None).await?.header().unwrap().revision();
                // Refused where nothing was written since the last one.
                let compacted = self.store.people().await?.compact(revision, None).await.is_ok();
                format!("compacts at {revision}: {compacted}")
            }
        })
    }

    /// Ends the term of whoever leads.
    async fn depose(&mut self) -> Result<(), Error> {
        let options = etcd_client::DeleteOptions::new().with_prefix().with_prev_key();
        let key = format!("{PREFIX}{}", keys::LEADER);
        let deleted = self.store.people().await?.delete(key, Some(options)).await?;
        // The oldest led; the others never did.
        let led = deleted.prev_kvs().iter().map(etcd_client::KeyValue::create_revision).min();
        if let (Some(judge), Some(epoch)) = (&self.repairs, led) {
            judge.deposed(epoch);
        }
        Ok(())
    }

    /// Accepts what the removal guard holds, as `madako sabakan confirm-removal` does.
    async fn confirm_removal(&mut self) -> Result<String, Error> {
        let key = format!("{PREFIX}{}", keys::REMOVAL_GUARD);
        let answer = self.store.people().await?.get(key.clone(), None).await?;
        let Some(kv) = answer.kvs().first() else { return Ok("finds nothing to confirm".to_owned()) };
        let mut guard: GuardState = serde_json::from_slice(kv.value()).unwrap();
        if guard.confirmed {
            return Ok("finds a removal confirmed".to_owned());
        }
        guard.confirmed = true;
        let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, kv.mod_revision());
        let put = TxnOp::put(key, serde_json::to_vec(&guard).unwrap(), None);
        let done = self.store.people().await?.txn(Txn::new().when([unchanged]).and_then([put])).await?;
        Ok(format!("confirms a removal: {}", done.succeeded()))
    }

    /// Leaves the inputs so that a cluster can be planned.
    ///
    /// # Errors
    /// The store does not take it.
    pub async fn settle(&mut self) -> Result<(), Error> {
        self.put(keys::SABAKAN_DISABLED, "false".to_owned()).await?;
        self.constraints(self.wanted.control_plane, self.wanted.workers, 0).await?;
        self.template(&[6, 3, 1]).await
    }
}
