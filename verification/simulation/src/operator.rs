//! Simulated operators: they write the template, constraints and switches over their own connection.

use etcd_client::Error;
use madako_datacenter_sim::host::{BOOT_CHECK, HEALTH_CHECK, REBOOT, RESET, SUCCESS};
use madako_domain::guard::GuardState;
use madako_domain::keys;
use madako_faults::{DELAY, World};
use madako_judges::workload::ReadKey;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::drains::{EVICTION_TIMEOUT, PROTECTED};
use crate::repair::{ATTEMPTS, RepairJudge};
use crate::store_process::StoreProcess;
use crate::world::PREFIX;

/// Limits of entries from reports: fewer than users add, and more than the machines of a rack.
const AUTOMATIC: [u32; 4] = [6, 12, 16, 24];

/// Workers that drain or reboot at once.
pub const MAX_CONCURRENT_REBOOTS: u32 = 2;

/// Workers of which one may drain or reboot at a time where an upgrade drains all of them: it takes hours, not days.
const WORKERS_PER_DRAIN: u32 = 12;

/// Machines that are not nodes where Kubernetes is upgraded: some of each role take the places of those that fail.
const SPARE_MACHINES: u32 = 12;

pub struct Operator {
    store: StoreProcess,
    chance: ChaCha8Rng,
    version: u64,
    /// An act that prevents planning until the operator's next act.
    obstacle: Option<PlanningBlock>,
    /// Section `repair` of the template, if the world has repairs.
    repair: Option<serde_json::Value>,
    repairs: Option<RepairJudge>,
    /// The template has a section `reboot`.
    reboots: bool,
    /// The template has options for the components of Kubernetes.
    kubernetes: bool,
    /// Number of entries up to which the service adds entries from reports.
    automatic: u32,
    wanted: ExpectedSize,
}

/// Size of a cluster in this world without faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedSize {
    pub control_plane: u32,
    /// Minimum number of workers.
    pub workers: u32,
}

impl ExpectedSize {
    /// Size in the usual world of sixty machines.
    const USUAL: Self = Self { control_plane: 3, workers: 12 };

    /// The size that this number of machines supports even with a few broken ones.
    #[must_use]
    pub fn for_machines(machines: u32) -> Self {
        Self { control_plane: if machines < 10 { 1 } else { 3 }, workers: machines / 5 }
    }

    /// The size in a world. Where Kubernetes is upgraded, most machines are nodes.
    #[must_use]
    pub fn for_world(world: &World) -> Self {
        let usual = Self::for_machines(world.machines);
        let most = world.machines.saturating_sub(SPARE_MACHINES);
        let workers = if world.runs_kubernetes() { most.max(usual.workers) } else { usual.workers };
        Self { workers, ..usual }
    }
}

enum PlanningBlock {
    Disabled,
    BrokenTemplate,
}

impl Operator {
    #[must_use]
    pub fn new(store: StoreProcess, chance: ChaCha8Rng) -> Self {
        Self {
            store,
            chance,
            version: 0,
            obstacle: None,
            repair: None,
            repairs: None,
            reboots: false,
            kubernetes: false,
            automatic: 0,
            wanted: ExpectedSize::USUAL,
        }
    }

    /// Adds reboots to later templates.
    pub fn enable_reboots(&mut self) {
        self.reboots = true;
    }

    /// Adds options for the components of Kubernetes to later templates, and reboots: an upgrade drains nodes as a reboot does.
    pub fn enable_kubernetes(&mut self) {
        self.kubernetes = true;
        self.enable_reboots();
    }

    /// Adds repairs to later templates.
    pub fn enable_repairs(&mut self, judge: RepairJudge) {
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
        self.store.operator_client().await?.put(format!("{PREFIX}{key}"), value, None).await?;
        Ok(())
    }

    /// Writes the inputs of a new installation of this size. Later acts use the same size.
    pub async fn install_cluster(&mut self, wanted: ExpectedSize) -> Result<(), Error> {
        self.set_cluster_size(wanted);
        self.install().await
    }

    /// Sets the size of the cluster for later acts.
    pub fn set_cluster_size(&mut self, wanted: ExpectedSize) {
        self.wanted = wanted;
    }

    #[must_use]
    pub fn wanted(&self) -> ExpectedSize {
        self.wanted
    }

    /// Writes the inputs of a new installation.
    pub async fn install(&mut self) -> Result<(), Error> {
        self.put(keys::SABAKAN_URL, "http://registry.invalid/graphql".to_owned()).await?;
        self.write_constraints(self.wanted.control_plane, self.wanted.workers, 0).await?;
        self.write_template(&[6, 3, 1]).await?;
        // Queries also return retiring and retired machines.
        self.put(keys::SABAKAN_VARIABLES, r#"{"having":null,"notHaving":{"roles":["boot"]}}"#.to_owned())
            .await
    }

    pub async fn write_constraints(
        &mut self,
        control_plane: u32,
        minimum: u32,
        maximum: u32,
    ) -> Result<(), Error> {
        let mut constraints = json!({
            "control-plane-count": control_plane,
            "minimum-workers": minimum,
            "maximum-workers": maximum,
        });
        if self.reboots {
            constraints["maximum-unreachable-nodes-for-reboot"] = json!(3);
        }
        if self.repair.is_some() {
            constraints["maximum-repair-queue-entries"] = json!(self.automatic);
            constraints["wait-seconds-to-repair-rebooting"] = json!(120);
        }
        self.put(keys::CONSTRAINTS, constraints.to_string()).await
    }

    async fn write_template(&mut self, weights: &[u32; 3]) -> Result<(), Error> {
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
        if self.kubernetes {
            let kubelet = &mut template["options"]["kubelet"];
            kubelet["boot_taints"] =
                json!([{"key": "example.com/boot", "value": "", "effect": "NoSchedule"}]);
            kubelet["cni_conf_file"] =
                json!({"name": "10-simulated.conf", "content": "{\"type\": \"loopback\"}"});
        }
        if self.reboots {
            let of_upgrade = if self.kubernetes { self.wanted.workers / WORKERS_PER_DRAIN } else { 0 };
            template["reboot"] = json!({
                "reboot_command": [REBOOT], "boot_check_command": [BOOT_CHECK],
                "max_concurrent_reboots": MAX_CONCURRENT_REBOOTS.max(of_upgrade),
                "command_timeout_seconds": 60, "command_retries": 1, "command_interval": 5,
                "evict_retries": 2, "evict_interval": 10,
                "eviction_timeout_seconds": EVICTION_TIMEOUT.as_secs(),
                "protected_namespaces": {"matchLabels": {"team": PROTECTED}},
            });
        }
        self.put(keys::SABAKAN_TEMPLATE, template.to_string()).await
    }

    /// Switches the integration with the registry off or on.
    pub async fn set_disabled(&mut self, disabled: bool) -> Result<(), Error> {
        self.obstacle = None;
        self.put(keys::SABAKAN_DISABLED, disabled.to_string()).await
    }

    /// Writes a valid template that differs from all others.
    pub async fn change_template(&mut self) -> Result<(), Error> {
        self.write_template(&[6, 3, 1]).await
    }

    /// Does a random act of an operator, and describes it.
    ///
    /// # Errors
    /// The store does not answer; the outcome of the act is unknown.
    pub async fn act_randomly(&mut self) -> Result<String, Error> {
        // The next act ends a block of planning.
        match self.obstacle {
            Some(PlanningBlock::Disabled) => {
                self.put(keys::SABAKAN_DISABLED, "false".to_owned()).await?;
                self.obstacle = None;
                return Ok("enables the integration".to_owned());
            }
            Some(PlanningBlock::BrokenTemplate) => {
                self.write_template(&[6, 3, 1]).await?;
                self.obstacle = None;
                return Ok("mends the template".to_owned());
            }
            None => {}
        }
        Ok(match self.chance.random_range(0..11_u32) {
            0 | 1 => {
                let control_plane =
                    [1, 3, 3, 5][self.chance.random_range(0..4_usize)].min(self.wanted.control_plane + 2);
                // 5 to 24 in the usual world with its 12 workers.
                let minimum =
                    self.chance.random_range(5..25) * self.wanted.workers / ExpectedSize::USUAL.workers;
                // Close to the minimum, so that a few broken workers reach it.
                let above = [None, None, Some(0), Some(1), Some(3)][self.chance.random_range(0..5_usize)];
                let maximum = above.map_or(0, |above| minimum + above);
                if self.repair.is_some() {
                    self.automatic = AUTOMATIC[self.chance.random_range(0..AUTOMATIC.len())];
                }
                self.write_constraints(control_plane, minimum, maximum).await?;
                format!("sets constraints {control_plane} {minimum} {maximum}")
            }
            2 => {
                let weights = [0; 3].map(|_: u32| self.chance.random_range(1..8));
                self.write_template(&weights).await?;
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
                self.store.operator_client().await?.delete(format!("{PREFIX}{}", keys::STATUS), None).await?;
                "deletes the status".to_owned()
            }
            6 => {
                self.delete_leader_key().await?;
                "deletes every leader key".to_owned()
            }
            7 => self.confirm_removal().await?,
            8 | 9 => {
                // On a slow link, the leader's writes for the template are in flight at the deposition.
                let weights = [0; 3].map(|_: u32| self.chance.random_range(1..8));
                self.write_template(&weights).await?;
                tokio::time::sleep(DELAY.mul_f64(self.chance.random_range(0.0..2.0))).await;
                self.delete_leader_key().await?;
                format!("sets a template with weights {weights:?} and deletes every leader key")
            }
            _ => {
                let revision =
                    self.store.operator_client().await?.get("none", None).await?.header().unwrap().revision();
                // The store refuses a second compaction at the same revision.
                let compacted = self.store.operator_client().await?.compact(revision, None).await.is_ok();
                format!("compacts at {revision}: {compacted}")
            }
        })
    }

    /// Ends the term of the leader.
    async fn delete_leader_key(&mut self) -> Result<(), Error> {
        let options = etcd_client::DeleteOptions::new().with_prefix().with_prev_key();
        let key = format!("{PREFIX}{}", keys::LEADER);
        let deleted = self.store.operator_client().await?.delete(key, Some(options)).await?;
        // The oldest key is the leader's; the others belong to candidates.
        let led = deleted.prev_kvs().iter().map(etcd_client::KeyValue::create_revision).min();
        if let (Some(judge), Some(epoch)) = (&self.repairs, led) {
            judge.note_deposed(epoch);
        }
        Ok(())
    }

    /// Confirms the removals that the removal guard holds, as `madako sabakan confirm-removal` does.
    async fn confirm_removal(&mut self) -> Result<String, Error> {
        let key = format!("{PREFIX}{}", keys::REMOVAL_GUARD);
        let answer = self.store.operator_client().await?.get(key, None).await?;
        let Some(kv) = answer.kvs().first() else { return Ok("finds nothing to confirm".to_owned()) };
        let mut guard: GuardState = serde_json::from_slice(kv.value()).unwrap();
        if guard.confirmed {
            return Ok("finds a removal confirmed".to_owned());
        }
        guard.confirmed = true;
        let write = ReadKey::from(kv).replace_with(serde_json::to_vec(&guard).unwrap());
        let done = self.store.operator_client().await?.txn(write.into()).await?;
        Ok(format!("confirms a removal: {}", done.succeeded()))
    }

    /// Leaves inputs from which the planner can plan a cluster.
    pub async fn write_final_inputs(&mut self) -> Result<(), Error> {
        self.put(keys::SABAKAN_DISABLED, "false".to_owned()).await?;
        self.write_constraints(self.wanted.control_plane, self.wanted.workers, 0).await?;
        self.write_template(&[6, 3, 1]).await
    }
}
