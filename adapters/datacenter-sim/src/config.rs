//! What a simulated data center is made of, and how lively it is.

use std::time::Duration;

use madako_json::input::{InputError, Problems};
use time::OffsetDateTime;

use crate::addressing::AddressPlan;

/// Most machines that one data center may have: ten times what the project is measured with.
pub const MAX_MACHINES: u32 = 1_000_000;

/// Places of a rack that are empty in the beginning, for machines that an operator adds.
const SPARE_PLACES: u32 = 4;

/// One day.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How many machines there are of a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleCount {
    /// Role, such as `compute`.
    pub role: String,
    /// Number of machines, dealt out over the racks in turn.
    pub machines: u32,
}

/// How often things happen to each machine, as mean times. `None` means that it never happens by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rates {
    /// A healthy machine breaks.
    pub break_after: Option<Duration>,
    /// Of those that break, so many are unreachable and the others unhealthy.
    pub unreachable_percent: u8,
    /// A broken machine is mended, or gets worse, or is given up.
    pub repair_takes: Option<Duration>,
    /// Of the repairs, so many end with the other broken state.
    pub changes_percent: u8,
    /// Of the repairs, so many end with retirement.
    pub given_up_percent: u8,
    /// A healthy machine gets a new operating system.
    pub update_after: Option<Duration>,
    /// From updating to uninitialized.
    pub update_takes: Option<Duration>,
    /// From uninitialized to healthy.
    pub initialize_takes: Option<Duration>,
    /// A machine's retire date is brought forward.
    pub age_every: Option<Duration>,
    /// By so much.
    pub age_by: Duration,
    /// A machine whose retire date has passed is retired.
    pub retire_overdue_after: Option<Duration>,
    /// From retiring to retired.
    pub retiring_takes: Option<Duration>,
    /// A retired machine is taken away, or returns.
    pub retired_kept: Option<Duration>,
    /// Of the retired machines, so many return to service.
    pub returns_percent: u8,
    /// A machine that was taken away is replaced by a new one.
    pub replaced_after: Option<Duration>,
    /// A rack loses its power.
    pub rack_outage_after: Option<Duration>,
    /// The power of a rack is back.
    pub rack_outage_takes: Option<Duration>,
}

impl Rates {
    /// Nothing happens by itself.
    #[must_use]
    pub fn still() -> Self {
        Self {
            break_after: None,
            unreachable_percent: 50,
            repair_takes: None,
            changes_percent: 0,
            given_up_percent: 0,
            update_after: None,
            update_takes: None,
            initialize_takes: None,
            age_every: None,
            age_by: Duration::ZERO,
            retire_overdue_after: None,
            retiring_takes: None,
            retired_kept: None,
            returns_percent: 0,
            replaced_after: None,
            rack_outage_after: None,
            rack_outage_takes: None,
        }
    }

    /// Years pass in minutes: of some sixty machines one breaks, ages or retires every few seconds, so that within two
    /// minutes a node of the cluster is seen to go through all of it. About three quarters are healthy at any time.
    #[must_use]
    pub fn demo() -> Self {
        let seconds = |n| Some(Duration::from_secs(n));
        Self {
            break_after: seconds(400),
            unreachable_percent: 40,
            repair_takes: seconds(30),
            changes_percent: 15,
            given_up_percent: 25,
            update_after: seconds(1200),
            update_takes: seconds(15),
            initialize_takes: seconds(10),
            // The planner chooses machines that have years before them: the date of one must jump over these to be seen
            // to pass.
            age_every: seconds(300),
            age_by: DAY * 3 * 365,
            retire_overdue_after: seconds(15),
            retiring_takes: seconds(12),
            retired_kept: seconds(50),
            returns_percent: 20,
            replaced_after: seconds(20),
            rack_outage_after: None,
            rack_outage_takes: seconds(40),
        }
    }

    /// As a real data center of good hardware, for simulations that run over simulated months.
    #[must_use]
    pub fn realistic() -> Self {
        let hours = |n: u64| Some(Duration::from_secs(n * 60 * 60));
        Self {
            break_after: Some(DAY * 200),
            unreachable_percent: 40,
            repair_takes: hours(12),
            changes_percent: 10,
            given_up_percent: 5,
            update_after: Some(DAY * 30),
            update_takes: Some(Duration::from_secs(20 * 60)),
            initialize_takes: Some(Duration::from_secs(5 * 60)),
            age_every: None,
            age_by: Duration::ZERO,
            retire_overdue_after: Some(DAY * 60),
            retiring_takes: hours(24),
            retired_kept: Some(DAY * 7),
            returns_percent: 10,
            replaced_after: Some(DAY * 14),
            rack_outage_after: Some(DAY * 400),
            rack_outage_takes: hours(2),
        }
    }
}

/// A data center to be simulated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatacenterConfig {
    /// Chooses the history.
    pub seed: u64,
    /// When the history begins.
    pub start: OffsetDateTime,
    /// Number of racks.
    pub racks: u32,
    /// Machines of each role; a role that is named `boot` is refused, see `boot`.
    pub roles: Vec<RoleCount>,
    /// Whether each rack has its one machine with the role `boot`.
    pub boot: bool,
    /// IPv4 addresses of each machine.
    pub addresses_per_machine: u32,
    /// From registration to retirement.
    pub lifetime: Duration,
    /// Of the machines, so many are broken in the beginning.
    pub broken_percent: u8,
    /// How often things happen.
    pub rates: Rates,
}

impl DatacenterConfig {
    /// A quiet data center with these numbers of machines, one boot machine a rack beside them.
    #[must_use]
    pub fn new(seed: u64, start: OffsetDateTime, racks: u32, roles: &[(&str, u32)]) -> Self {
        Self {
            seed,
            start,
            racks,
            roles: roles
                .iter()
                .map(|&(role, machines)| RoleCount { role: role.to_owned(), machines })
                .collect(),
            boot: true,
            addresses_per_machine: 3,
            lifetime: DAY * 5 * 365,
            broken_percent: 0,
            rates: Rates::still(),
        }
    }

    /// The data center of `madako demo`: 6 racks, 36 compute, 18 storage and 6 gpu machines, and 6 that boot them.
    #[must_use]
    pub fn demo(seed: u64, start: OffsetDateTime) -> Self {
        Self {
            broken_percent: 5,
            rates: Rates::demo(),
            ..Self::new(seed, start, 6, &[("compute", 36), ("storage", 18), ("gpu", 6)])
        }
    }

    /// Number of machines in the beginning.
    #[must_use]
    pub fn machines(&self) -> u64 {
        let boot = if self.boot { u64::from(self.racks) } else { 0 };
        boot + self.roles.iter().map(|role| u64::from(role.machines)).sum::<u64>()
    }

    /// Checks everything and plans the addresses.
    pub(crate) fn check(&self) -> Result<AddressPlan, InputError> {
        let mut problems = Problems::default();
        if self.racks == 0 {
            problems.add("racks", "0", "at least one rack");
        }
        for (index, role) in self.roles.iter().enumerate() {
            let field = format!("roles[{index}].role");
            if role.role == crate::BOOT_ROLE {
                problems.add(field, &role.role, "a role other than boot; `boot` adds those machines");
            } else if !is_role(&role.role) {
                problems.add(field, format!("{:?}", role.role), "a name that sabakan accepts");
            }
        }
        let machines = self.machines();
        if machines > u64::from(MAX_MACHINES) {
            problems.add("roles", format!("{machines} machines"), format!("at most {MAX_MACHINES}"));
        }
        if self.addresses_per_machine == 0 {
            problems.add("addresses_per_machine", "0", "at least one address");
        }
        for (field, percent) in [
            ("broken_percent", self.broken_percent),
            ("rates.unreachable_percent", self.rates.unreachable_percent),
            ("rates.changes_percent", self.rates.changes_percent),
            ("rates.given_up_percent", self.rates.given_up_percent),
            ("rates.returns_percent", self.rates.returns_percent),
        ] {
            if percent > 100 {
                problems.add(field, percent.to_string(), "at most 100");
            }
        }
        let ends = u16::from(self.rates.changes_percent) + u16::from(self.rates.given_up_percent);
        if ends > 100 {
            let field = "rates.changes_percent + rates.given_up_percent";
            problems.add(field, ends.to_string(), "at most 100 together");
        }
        let others = machines.saturating_sub(if self.boot { u64::from(self.racks) } else { 0 });
        let most_in_rack = others.div_ceil(u64::from(self.racks.max(1)));
        let most_in_rack = u32::try_from(most_in_rack).unwrap_or(u32::MAX).saturating_add(SPARE_PLACES);
        let plan = AddressPlan::new(self.racks, most_in_rack, self.addresses_per_machine);
        if plan.is_none() && self.addresses_per_machine > 0 {
            problems.add(
                "racks",
                format!("{} racks of {most_in_rack} places", self.racks),
                "racks whose addresses fit into 10.0.0.0/8 and 172.16.0.0/12",
            );
        }
        problems.finish("simulated data center")?;
        Ok(plan.expect("a configuration without a plan of addresses was refused above"))
    }
}

/// sabakan's rule for roles (its `machines.go`): that of Kubernetes label values, not empty.
pub(crate) fn is_role(role: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    role.len() <= 63
        && edge(role.chars().next())
        && edge(role.chars().next_back())
        && role.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}
