//! Spontaneous events of simulated machines and racks. Each position of a rack has three timelines: the states of its
//! machine, its retire date, and its retirement. When a timeline advances, its next step is chosen and queued.

use std::time::Duration;

use madako_domain::machine::MachineState;

use crate::chance::Kind;
use crate::datacenter::{Datacenter, DatacenterEventKind, Entry, MachineStep, Timeline, add_duration};

/// Mean start time of a machine after a power outage if the rates disable initialization: a server's self-test and a
/// network boot.
const START_TAKES: Duration = Duration::from_secs(180);

impl Datacenter {
    /// Runs a queue entry, unless it is void.
    pub(crate) fn run_entry(&mut self, entry: Entry) {
        match entry.line {
            Timeline::Power(rack) => {
                if self.racks[rack as usize].switches == entry.generation {
                    self.switch_power(rack, entry.step == MachineStep::PowerOff);
                }
            }
            Timeline::Life(place) => {
                if self.place(place).stays == entry.generation {
                    self.take_step(place, entry.step);
                }
            }
            Timeline::Age(place) => {
                if self.place(place).ages == entry.generation {
                    self.age_machine(place);
                }
            }
            Timeline::Retirement(place) => {
                if self.place(place).retirements == entry.generation {
                    self.retire(place);
                }
            }
        }
    }

    /// Sets a machine's state now and chooses its next step.
    pub(crate) fn enter_state(&mut self, place: u32, state: MachineState) {
        let now = self.now;
        let here = self.place(place);
        let rack = here.rack;
        let Some(occupant) = here.occupant.as_mut() else { return };
        let from = occupant.state;
        occupant.state = state;
        occupant.since = now;
        let serial = occupant.spec.serial.clone();
        here.stays += 1;
        here.parked = None;
        self.note(rack, Some(serial), DatacenterEventKind::State { from, to: state });
        if from == MachineState::Retired {
            // The machine is back in service and may still be overdue for retirement.
            self.plan_retirement(place);
        }
        self.plan_life(place);
    }

    /// Chooses the next step of the line `Life`.
    pub(crate) fn plan_life(&mut self, place: u32) {
        let here = &self.places[place as usize];
        let (stay, generation) = (here.stays, here.stays);
        let Some(occupant) = &here.occupant else { return };
        let rates = &self.config.rates;
        let chance = &self.chance;
        let takes = |kind, mean: Option<_>| mean.map(|mean| chance.draw_duration(kind, place, stay, mean));
        let until = |kind, mean: Option<_>| mean.map(|mean| chance.draw_wait(kind, place, stay, mean));
        let next = match occupant.state {
            MachineState::Uninitialized => takes(Kind::InitializeTakes, rates.initialize_takes)
                .map(|after| (after, MachineStep::Enter(MachineState::Healthy))),
            MachineState::Healthy => {
                let breaks = until(Kind::BreakAfter, rates.break_after)
                    .map(|after| (after, MachineStep::Enter(self.draw_broken_state(place))));
                let updates = until(Kind::UpdateAfter, rates.update_after)
                    .map(|after| (after, MachineStep::Enter(MachineState::Updating)));
                breaks.into_iter().chain(updates).min()
            }
            MachineState::Unhealthy | MachineState::Unreachable => {
                takes(Kind::RepairTakes, rates.repair_takes)
                    .map(|after| (after, MachineStep::Enter(self.repair_outcome(place, occupant.state))))
            }
            MachineState::Updating => takes(Kind::UpdateTakes, rates.update_takes)
                .map(|after| (after, MachineStep::Enter(MachineState::Uninitialized))),
            MachineState::Retiring => takes(Kind::RetiringTakes, rates.retiring_takes)
                .map(|after| (after, MachineStep::Enter(MachineState::Retired))),
            MachineState::Retired => takes(Kind::RetiredKept, rates.retired_kept).map(|after| {
                let returns =
                    chance.is_within_percent(Kind::RetiredOutcome, place, stay, rates.returns_percent);
                (
                    after,
                    if returns {
                        MachineStep::Enter(MachineState::Uninitialized)
                    } else {
                        MachineStep::Remove
                    },
                )
            }),
        };
        if let Some((after, step)) = next {
            self.push(add_duration(self.now, after), Timeline::Life(place), generation, step);
        }
    }

    /// Broken state that the machine at a place enters at its next failure.
    pub(crate) fn draw_broken_state(&self, place: u32) -> MachineState {
        let stay = self.places[place as usize].stays;
        if self.chance.is_within_percent(Kind::BreakWay, place, stay, self.config.rates.unreachable_percent) {
            MachineState::Unreachable
        } else {
            MachineState::Unhealthy
        }
    }

    fn repair_outcome(&self, place: u32, broken: MachineState) -> MachineState {
        let stay = self.places[place as usize].stays;
        let rates = &self.config.rates;
        let outcome = self.chance.number_below(Kind::RepairOutcome, place, stay, 100);
        let given_up = u64::from(rates.given_up_percent);
        if outcome < given_up {
            MachineState::Retiring
        } else if outcome < given_up + u64::from(rates.changes_percent) {
            if broken == MachineState::Unhealthy {
                MachineState::Unreachable
            } else {
                MachineState::Unhealthy
            }
        } else {
            MachineState::Healthy
        }
    }

    fn take_step(&mut self, place: u32, step: MachineStep) {
        let rack = self.place(place).rack;
        match step {
            MachineStep::Enter(state) if self.racks[rack as usize].dark && needs_power(state) => {
                self.place(place).parked = Some(step);
            }
            MachineStep::Enter(state) => {
                if state == MachineState::Retired
                    && let Some(occupant) = self.place(place).occupant.as_mut()
                {
                    // Retiring a machine includes the deletion of its keys.
                    occupant.has_encryption_key = false;
                }
                self.enter_state(place, state);
            }
            MachineStep::Remove => {
                self.remove_machine(place);
                self.plan_arrival(place);
            }
            MachineStep::Arrive => self.add_machine(place),
            MachineStep::Age | MachineStep::Retire | MachineStep::PowerOff | MachineStep::PowerOn => {
                unreachable!("the line of a machine's states has only such steps")
            }
        }
    }

    fn plan_arrival(&mut self, place: u32) {
        let Some(mean) = self.config.rates.replaced_after else { return };
        let generation = self.place(place).stays;
        let after = self.chance.draw_duration(Kind::ReplacedAfter, place, generation, mean);
        self.push(add_duration(self.now, after), Timeline::Life(place), generation, MachineStep::Arrive);
    }

    /// Adds a new machine at an empty place. If its index has been taken, no machine arrives.
    pub(crate) fn add_machine(&mut self, place: u32) {
        if !self.occupy_place(place, self.now, MachineState::Uninitialized, self.now) {
            return;
        }
        let here = self.place(place);
        let rack = here.rack;
        let serial = here.occupant.as_ref().map(|occupant| occupant.spec.serial.clone());
        self.note(rack, serial, DatacenterEventKind::Registered);
        self.plan_life(place);
    }

    /// Chooses the time at which the retire date is next brought forward.
    pub(crate) fn plan_age(&mut self, place: u32) {
        let Some(mean) = self.config.rates.age_every else { return };
        let here = self.place(place);
        here.ages += 1;
        let generation = here.ages;
        let after = self.chance.draw_wait(Kind::AgeEvery, place, generation, mean);
        self.push(add_duration(self.now, after), Timeline::Age(place), generation, MachineStep::Age);
    }

    fn age_machine(&mut self, place: u32) {
        let by = time::Duration::try_from(self.config.rates.age_by).unwrap_or(time::Duration::ZERO);
        if let Some(occupant) = &self.place(place).occupant {
            let date = occupant.spec.retire_date.saturating_sub(by);
            self.change_retire_date(place, date);
            self.plan_age(place);
        }
    }

    pub(crate) fn change_retire_date(&mut self, place: u32, date: time::OffsetDateTime) {
        let now = self.now;
        let here = self.place(place);
        let rack = here.rack;
        let Some(occupant) = here.occupant.as_mut() else { return };
        let before = std::mem::replace(&mut occupant.spec.retire_date, date);
        let serial = occupant.spec.serial.clone();
        self.note(rack, Some(serial), DatacenterEventKind::RetireDate(date));
        // An overdue machine keeps its planned retirement; otherwise each change would postpone it.
        if before > now || date > now {
            self.plan_retirement(place);
        }
    }

    /// Chooses the time of the retirement, after the retire date.
    pub(crate) fn plan_retirement(&mut self, place: u32) {
        let Some(mean) = self.config.rates.retire_overdue_after else { return };
        let now = self.now;
        let here = self.place(place);
        let Some(occupant) = &here.occupant else { return };
        let due = occupant.spec.retire_date.max(now);
        here.retirements += 1;
        let generation = here.retirements;
        let after = self.chance.draw_wait(Kind::RetireAfter, place, generation, mean);
        self.push(add_duration(due, after), Timeline::Retirement(place), generation, MachineStep::Retire);
    }

    fn retire(&mut self, place: u32) {
        match self.place(place).occupant.as_ref().map(|occupant| occupant.state) {
            // A machine cannot be retired during an update; retry later.
            Some(MachineState::Updating) => self.plan_retirement(place),
            Some(MachineState::Retiring | MachineState::Retired) | None => {}
            Some(
                MachineState::Uninitialized
                | MachineState::Healthy
                | MachineState::Unhealthy
                | MachineState::Unreachable,
            ) => self.enter_state(place, MachineState::Retiring),
        }
    }

    /// Chooses the time of the next power outage, or of its end.
    pub(crate) fn plan_power(&mut self, rack: u32) {
        let rates = &self.config.rates;
        let Some(outage_after) = rates.rack_outage_after else { return };
        let here = &self.racks[rack as usize];
        let generation = here.switches;
        let (after, step) = if here.dark {
            let Some(mean) = rates.rack_outage_takes else { return };
            (self.chance.draw_duration(Kind::OutageTakes, rack, generation, mean), MachineStep::PowerOn)
        } else {
            (self.chance.draw_wait(Kind::OutageAfter, rack, generation, outage_after), MachineStep::PowerOff)
        };
        self.push(add_duration(self.now, after), Timeline::Power(rack), generation, step);
    }

    fn switch_power(&mut self, rack: u32, off: bool) {
        if off {
            self.cut_power(rack)
        } else {
            self.restore_power(rack)
        }
        self.plan_power(rack);
    }

    /// Cuts the rack's power: reachable machines are unreachable until the power returns.
    ///
    /// A machine in setup or update keeps its state, because sabakan has no transition from there to unreachable; it
    /// continues when the power returns.
    pub(crate) fn cut_power(&mut self, rack: u32) {
        let here = &mut self.racks[rack as usize];
        if here.dark {
            return;
        }
        here.dark = true;
        here.switches += 1;
        self.note(rack, None, DatacenterEventKind::PowerOff);
        for place in self.places_in_rack(rack) {
            let before = self.place(place).occupant.as_ref().map(|occupant| occupant.state);
            if let Some(before @ (MachineState::Healthy | MachineState::Unhealthy)) = before {
                self.enter_state(place, MachineState::Unreachable);
                self.place(place).parked = Some(MachineStep::Enter(before));
            }
        }
    }

    /// Restores the rack's power: postponed steps run after the start time of a machine.
    pub(crate) fn restore_power(&mut self, rack: u32) {
        let here = &mut self.racks[rack as usize];
        if !here.dark {
            return;
        }
        here.dark = false;
        here.switches += 1;
        self.note(rack, None, DatacenterEventKind::PowerOn);
        for place in self.places_in_rack(rack) {
            let here = self.place(place);
            let generation = here.stays;
            if let Some(step) = here.parked.take() {
                let mean = self.config.rates.initialize_takes.unwrap_or(START_TAKES);
                let after = self.chance.draw_duration(Kind::PowerOnTakes, place, generation, mean);
                self.push(add_duration(self.now, after), Timeline::Life(place), generation, step);
            }
        }
    }

    fn places_in_rack(&self, rack: u32) -> Vec<u32> {
        (0..).zip(&self.places).filter(|(_, place)| place.rack == rack).map(|(number, _)| number).collect()
    }
}

/// True if a machine needs power to enter the state by itself.
fn needs_power(state: MachineState) -> bool {
    match state {
        MachineState::Uninitialized
        | MachineState::Healthy
        | MachineState::Unhealthy
        | MachineState::Updating => true,
        MachineState::Unreachable | MachineState::Retiring | MachineState::Retired => false,
    }
}
