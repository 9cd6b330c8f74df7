//! The configuration of a simulated data center: its racks and machines, and the rates of its events.

use std::time::Duration;

use madako_json::input::{InputError, Problems};
use time::OffsetDateTime;

use crate::addressing::AddressPlan;

/// Upper bound of machines in one data center: ten times the size that benchmarks use.
pub const MAX_MACHINES: u32 = 1_000_000;

/// Initially empty places of a rack, for machines that an operator adds.
const SPARE_PLACES: u32 = 4;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleCount {
    pub role: String,
    /// Number of machines, distributed over the racks round-robin.
    pub machines: u32,
}

/// Rates of events per machine, as mean times. `None` disables the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rates {
    /// Time until a healthy machine breaks.
    pub break_after: Option<Duration>,
    /// Percentage of failures after which the machine is unreachable; after the others it is unhealthy.
    pub unreachable_percent: u8,
    /// Time until a broken machine is repaired, changes to the other broken state, or is retired.
    pub repair_takes: Option<Duration>,
    /// Percentage of repairs that end in the other broken state.
    pub changes_percent: u8,
    /// Percentage of repairs that end in retirement.
    pub given_up_percent: u8,
    /// Time until a healthy machine is updated to a new operating system.
    pub update_after: Option<Duration>,
    pub update_takes: Option<Duration>,
    pub initialize_takes: Option<Duration>,
    /// Interval at which a machine's retire date is brought forward.
    pub age_every: Option<Duration>,
    /// Amount by which the retire date is brought forward.
    pub age_by: Duration,
    /// Time from the retire date until the machine is retired.
    pub retire_overdue_after: Option<Duration>,
    pub retiring_takes: Option<Duration>,
    /// Time until a retired machine is removed or returns.
    pub retired_kept: Option<Duration>,
    /// Percentage of retired machines that return to service.
    pub returns_percent: u8,
    /// Time until a removed machine is replaced by a new one.
    pub replaced_after: Option<Duration>,
    pub rack_outage_after: Option<Duration>,
    pub rack_outage_takes: Option<Duration>,
}

impl Rates {
    /// No events happen by themselves.
    #[must_use]
    pub fn no_events() -> Self {
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

    /// Years pass in minutes: of about sixty machines one breaks, ages or retires every few seconds, so that a node of
    /// the cluster passes through all states within two minutes. About three quarters are healthy at any time.
    #[must_use]
    pub fn for_demo() -> Self {
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
            // The planner prefers machines that retire years later, so a retire date must jump over those years for its
            // passing to be observable.
            age_every: seconds(200),
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
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatacenterConfig {
    pub seed: u64,
    pub start: OffsetDateTime,
    pub racks: u32,
    /// Machines of each role. The role `boot` is refused here; use the field `boot`.
    pub roles: Vec<RoleCount>,
    /// True if each rack has one machine with the role `boot`.
    pub boot: bool,
    pub addresses_per_machine: u32,
    /// Time from registration to the retire date.
    pub lifetime: Duration,
    /// Percentage of machines that are broken at the start.
    pub broken_percent: u8,
    pub rates: Rates,
}

impl DatacenterConfig {
    /// A data center without events, with these numbers of machines and one boot machine per rack.
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
            rates: Rates::no_events(),
        }
    }

    /// The data center of `madako demo`: 6 racks with 36 compute, 18 storage, 6 gpu and 6 boot machines.
    #[must_use]
    pub fn for_demo(seed: u64, start: OffsetDateTime) -> Self {
        Self {
            broken_percent: 5,
            rates: Rates::for_demo(),
            ..Self::new(seed, start, 6, &[("compute", 36), ("storage", 18), ("gpu", 6)])
        }
    }

    #[must_use]
    pub fn count_machines(&self) -> u64 {
        let boot = if self.boot { u64::from(self.racks) } else { 0 };
        boot + self.roles.iter().map(|role| u64::from(role.machines)).sum::<u64>()
    }

    /// Validates the configuration and plans the addresses.
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
        let machines = self.count_machines();
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

/// sabakan's rule for roles (its `machines.go`): a Kubernetes label value that is not empty.
pub(crate) fn is_role(role: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    role.len() <= 63
        && edge(role.chars().next())
        && edge(role.chars().next_back())
        && role.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}
