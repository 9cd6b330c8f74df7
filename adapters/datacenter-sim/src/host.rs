//! A simulated host: commands of repairs and reboots that act on the simulated machines, behind the port of the real host.
//!
//! For: the demo, the simulation, and tests of repairs.
//!
//! Guarantees: the effect of a command depends only on the data center's seed, the machine and the number of earlier
//! commands on that machine. A health check reports the real state, regardless of the registry's faults. Every run of a
//! command with an effect is recorded with the epoch of its permit. As with the real port, dropping a run ends it at
//! once.
//!
//! Does not: start processes; simulate drains.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use madako_domain::machine::MachineState;
use madako_protocol::host::{Host, HostCommand, HostEnd, HostError, HostOutcome};
use madako_protocol::permit::Permit;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::chance::Kind;
use crate::datacenter::Datacenter;
use crate::service::SimulatedRegistry;

/// Program that resets a machine, which may heal it.
pub const RESET: &str = "simulated-reset";
/// Program that prints `true` for a healthy machine.
pub const HEALTH_CHECK: &str = "simulated-health-check";
/// Success command for a healed machine; it has no effect on the machine.
pub const SUCCESS: &str = "simulated-success";

/// Program that reboots a machine.
pub const REBOOT: &str = "simulated-reboot";
/// Program that prints `true` if a machine has booted since a time, its last argument.
pub const BOOT_CHECK: &str = "simulated-boot-check";

/// Number of recorded runs; the oldest are dropped.
pub const MAX_RUNS: usize = 10_000;

const CHECK_TAKES: Duration = Duration::from_millis(300);

/// Mean time of a boot, where no other one is given.
const BOOT_TAKES: Duration = Duration::from_secs(60);
/// Time of a boot that hangs until an operator notices: longer than the service waits.
const BOOT_HANGS: Duration = Duration::from_secs(40 * 60);
/// Boots that hang, in percent.
const HANGING_BOOTS: u8 = 5;

/// Receives the address of each rebooted machine, and a future that ends with its boot.
pub type OnReboot = Arc<dyn Fn(&str, BoxFuture<'static, ()>) + Send + Sync>;

/// Behaviour of repair commands, as percentages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandBehaviour {
    /// Successful resets that heal their machine.
    pub heals_percent: u8,
    pub fails_percent: u8,
    /// Commands that never end by themselves.
    pub hangs_percent: u8,
    /// Commands whose result is unknown although they had their effect.
    pub lost_percent: u8,
    /// Health checks whose output is not usable.
    pub confused_percent: u8,
    pub takes: Duration,
}

impl CommandBehaviour {
    /// Most resets heal; a few hang.
    #[must_use]
    pub fn demo() -> Self {
        Self {
            heals_percent: 70,
            fails_percent: 10,
            hangs_percent: 3,
            lost_percent: 2,
            confused_percent: 5,
            takes: Duration::from_secs(8),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRun {
    /// Name of the host that ran it.
    pub host: String,
    pub epoch: i64,
    pub program: String,
    pub address: String,
    pub began: OffsetDateTime,
    /// `None` while it runs, or if it was cut off.
    pub ended: Option<OffsetDateTime>,
}

#[derive(Clone, Copy)]
struct Boot {
    began: OffsetDateTime,
    ends: OffsetDateTime,
    hangs: bool,
}

/// The machine whose commands all fail, as with a broken BMC.
#[derive(Default)]
enum Failing {
    #[default]
    NoMachine,
    /// The machine of the next command.
    Next,
    Address(String),
}

#[derive(Default)]
struct Log {
    runs: BTreeMap<u64, CommandRun>,
    begun: u64,
    /// Number of commands by machine.
    on: BTreeMap<String, u32>,
    failing: Failing,
    /// The last reboot by machine.
    boots: BTreeMap<String, Boot>,
    on_reboot: Option<OnReboot>,
}

/// Runs the simulated commands. Clones and hosts from [`SimulatedHost::named`] share one log.
#[derive(Clone)]
pub struct SimulatedHost {
    name: String,
    registry: SimulatedRegistry,
    habits: CommandBehaviour,
    /// Mean time of a boot.
    boot_time: Duration,
    log: Arc<Mutex<Log>>,
    /// True while boots may hang.
    may_hang: Arc<watch::Sender<bool>>,
}

impl Failing {
    /// True if the command for this machine fails.
    fn fails(&mut self, address: &str) -> bool {
        if matches!(self, Self::Next) {
            *self = Self::Address(address.to_owned());
        }
        matches!(self, Self::Address(failing) if failing == address)
    }
}

enum CommandFate {
    Ends { code: i32, heals: bool },
    Hangs,
    Lost { heals: bool },
}

impl SimulatedHost {
    #[must_use]
    pub fn new(registry: SimulatedRegistry, habits: CommandBehaviour) -> Self {
        let may_hang = Arc::new(watch::Sender::new(true));
        let boot_time = BOOT_TAKES;
        Self { name: "host".to_owned(), registry, habits, boot_time, log: Arc::default(), may_hang }
    }

    /// The host with another mean time of a boot.
    #[must_use]
    pub fn with_boot_time(self, boot_time: Duration) -> Self {
        Self { boot_time, ..self }
    }

    /// A host of another name over the same machines and the same log.
    #[must_use]
    pub fn named(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }

    /// Lets every later reset and success command for one machine fail, whatever the behaviour: for the machine of the
    /// next command, and no longer for the machine of an earlier call.
    pub fn fail_next_machine(&self) {
        self.lock().failing = Failing::Next;
    }

    /// Calls `on_reboot` for each later reboot.
    pub fn watch_reboots(&self, on_reboot: OnReboot) {
        self.lock().on_reboot = Some(on_reboot);
    }

    /// Completes the boots that hang. No later boot hangs.
    pub fn end_hanging_boots(&self) {
        let now = self.registry.with_datacenter(|datacenter| datacenter.now());
        let mut log = self.lock();
        for boot in log.boots.values_mut().filter(|boot| boot.hangs) {
            boot.ends = boot.ends.min(now);
        }
        drop(log);
        self.may_hang.send_replace(false);
    }

    /// All recorded runs, in start order.
    #[must_use]
    pub fn runs(&self) -> Vec<CommandRun> {
        self.lock().runs.values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        // No code panics while it holds the lock.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a run; returns its number and the number of earlier commands on its machine.
    fn begin(&self, epoch: i64, program: &str, address: &str) -> (u64, u32) {
        let began = self.registry.with_datacenter(|datacenter| datacenter.now());
        let mut log = self.lock();
        let number = log.begun;
        log.begun += 1;
        log.runs.insert(
            number,
            CommandRun {
                host: self.name.clone(),
                epoch,
                program: program.to_owned(),
                address: address.to_owned(),
                began,
                ended: None,
            },
        );
        if log.runs.len() > MAX_RUNS {
            log.runs.pop_first();
        }
        let nth = log.on.entry(address.to_owned()).or_default();
        *nth += 1;
        (number, *nth)
    }

    fn end_command(&self, number: u64) {
        let ended = self.registry.with_datacenter(|datacenter| datacenter.now());
        if let Some(run) = self.lock().runs.get_mut(&number) {
            run.ended = Some(ended);
        }
    }

    async fn check(&self, address: &str, deadline: Duration, nth: u32) -> HostOutcome {
        sleep(CHECK_TAKES.min(deadline)).await;
        let confused = self.habits.confused_percent;
        let answer = self.registry.with_datacenter(|datacenter| {
            let place = datacenter.find_by_address(address)?;
            let answer = if datacenter.chance.is_within_percent(Kind::CheckConfused, place, nth, confused) {
                "maybe"
            } else if datacenter.is_healthy(place) {
                "true"
            } else {
                "false"
            };
            Some(answer)
        });
        match answer {
            Some(answer) => command_outcome(HostEnd::Exited { code: 0 }, answer, CHECK_TAKES),
            None => command_outcome(HostEnd::Exited { code: 1 }, "no such machine", CHECK_TAKES),
        }
    }

    async fn check_boot(&self, address: &str, since: &str, deadline: Duration) -> HostOutcome {
        sleep(CHECK_TAKES.min(deadline)).await;
        let Ok(since) = since.parse::<i64>() else {
            return command_outcome(HostEnd::Exited { code: 2 }, "no time", CHECK_TAKES);
        };
        let now = self.registry.with_datacenter(|datacenter| datacenter.now());
        let boot = self.lock().boots.get(address).copied();
        let has_booted = boot.is_some_and(|boot| boot.began.unix_timestamp() >= since && boot.ends <= now);
        command_outcome(HostEnd::Exited { code: 0 }, if has_booted { "true" } else { "false" }, CHECK_TAKES)
    }

    /// The machine goes down now.
    fn reboot(&self, address: &str, nth: u32) {
        let boot = self.registry.with_datacenter(|datacenter| {
            let place = datacenter.find_by_address(address)?;
            let hangs = datacenter.chance.is_within_percent(Kind::CommandHeals, place, nth, HANGING_BOOTS);
            let takes = datacenter.chance.draw_duration(Kind::CommandTakes, place, nth + 1, self.boot_time);
            Some((datacenter.now(), takes, hangs && *self.may_hang.borrow()))
        });
        let Some((now, takes, hangs)) = boot else { return };
        let takes = if hangs { BOOT_HANGS } else { takes };
        let on_reboot = {
            let mut log = self.lock();
            log.boots.insert(address.to_owned(), Boot { began: now, ends: now + takes, hangs });
            log.on_reboot.clone()
        };
        if let Some(on_reboot) = on_reboot {
            let mut may_hang = self.may_hang.subscribe();
            let boot = async move {
                tokio::select! {
                    () = sleep(takes) => {}
                    // An error says that no host exists any more: nothing ends this boot before its time.
                    Ok(_) = may_hang.wait_for(|may_hang| !may_hang), if hangs => {}
                }
            };
            on_reboot(address, Box::pin(boot));
        }
    }

    async fn run_program(
        &self,
        program: &str,
        address: &str,
        deadline: Duration,
        number: u64,
        nth: u32,
    ) -> CommandResult {
        let habits = self.habits;
        let must_fail = self.lock().failing.fails(address);
        let drawn = self.registry.with_datacenter(|datacenter| {
            let place = datacenter.find_by_address(address)?;
            let chance = &datacenter.chance;
            let takes = chance.draw_duration(Kind::CommandTakes, place, nth, habits.takes);
            let drawn = chance.number_below(Kind::CommandFate, place, nth, 100);
            let heals = program == RESET
                && chance.is_within_percent(Kind::CommandHeals, place, nth, habits.heals_percent);
            let failing = u64::from(habits.fails_percent);
            let hanging = failing + u64::from(habits.hangs_percent);
            let lost = hanging + u64::from(habits.lost_percent);
            let fate = match drawn {
                _ if must_fail => CommandFate::Ends { code: 1, heals: false },
                drawn if drawn < failing => CommandFate::Ends { code: 1, heals: false },
                drawn if drawn < hanging => CommandFate::Hangs,
                drawn if drawn < lost => CommandFate::Lost { heals },
                _ => CommandFate::Ends { code: 0, heals },
            };
            Some((takes, fate))
        });
        let (takes, fate) = drawn.unwrap_or((CHECK_TAKES, CommandFate::Ends { code: 1, heals: false }));
        let hangs = matches!(fate, CommandFate::Hangs) || takes > deadline;
        let took = if hangs { deadline } else { takes };
        sleep(took).await;
        self.end_command(number);
        if hangs {
            return CommandResult::Reported(command_outcome(HostEnd::Deadline, "", took));
        }
        let heal = |heals: bool| {
            if program == REBOOT {
                self.reboot(address, nth);
            } else if heals {
                self.registry.with_datacenter(|datacenter| datacenter.heal_machine(address));
            }
        };
        match fate {
            CommandFate::Ends { code, heals } => {
                if code == 0 {
                    heal(heals);
                }
                CommandResult::Reported(command_outcome(HostEnd::Exited { code }, "", took))
            }
            CommandFate::Lost { heals } => {
                heal(heals);
                CommandResult::Lost
            }
            CommandFate::Hangs => CommandResult::Reported(command_outcome(HostEnd::Deadline, "", took)),
        }
    }
}

enum CommandResult {
    Reported(HostOutcome),
    Lost,
}

fn command_outcome(end: HostEnd, stdout: &str, took: Duration) -> HostOutcome {
    HostOutcome { end, stdout: stdout.to_owned(), stderr: String::new(), cut: false, took }
}

#[async_trait]
impl Host for SimulatedHost {
    async fn run(&self, permit: &Permit, command: HostCommand) -> Result<HostOutcome, HostError> {
        permit.check(Instant::now())?;
        let (program, address) = match command.words.as_slice() {
            [program, .., address] => (program.as_str(), address.as_str()),
            _ => ("", ""),
        };
        match program {
            HEALTH_CHECK => {
                let nth = self.lock().on.get(address).copied().unwrap_or(0);
                Ok(self.check(address, command.deadline, nth).await)
            }
            BOOT_CHECK => match command.words.as_slice() {
                [_, address, since] => Ok(self.check_boot(address, since, command.deadline).await),
                _ => {
                    Ok(command_outcome(HostEnd::Exited { code: 2 }, "not an address and a time", CHECK_TAKES))
                }
            },
            RESET | SUCCESS | REBOOT => {
                let (number, nth) = self.begin(permit.epoch(), program, address);
                match self.run_program(program, address, command.deadline, number, nth).await {
                    CommandResult::Reported(outcome) => Ok(outcome),
                    CommandResult::Lost => Err(HostError::Lost {
                        program: program.to_owned(),
                        why: "its watcher ended".to_owned(),
                    }),
                }
            }
            _ => Err(HostError::NotStarted {
                program: program.to_owned(),
                why: "there is no such command here".to_owned(),
            }),
        }
    }
}

impl Datacenter {
    /// Place of the machine with this first address; the lowest place if several machines share it.
    pub(crate) fn find_by_address(&self, address: &str) -> Option<u32> {
        let claims = |place: &crate::datacenter::MachineSlot| {
            place
                .occupant
                .as_ref()
                .is_some_and(|occupant| occupant.spec.ipv4.first().is_some_and(|first| first == address))
        };
        (0..).zip(&self.places).find(|(_, place)| claims(place)).map(|(number, _)| number)
    }

    pub(crate) fn is_healthy(&self, place: u32) -> bool {
        self.places[place as usize]
            .occupant
            .as_ref()
            .is_some_and(|occupant| occupant.state == MachineState::Healthy)
    }

    /// Heals a broken machine if its rack has power; true if it did.
    pub(crate) fn heal_machine(&mut self, address: &str) -> bool {
        let Some(place) = self.find_by_address(address) else { return false };
        let rack = self.places[place as usize].rack;
        let state = self.places[place as usize].occupant.as_ref().map(|occupant| occupant.state);
        let broken = matches!(state, Some(MachineState::Unhealthy | MachineState::Unreachable));
        let heals = broken && !self.is_without_power(rack);
        if heals {
            self.enter_state(place, MachineState::Healthy);
        }
        heals
    }
}
