//! Prints the report of a chaos run as text.

use std::fmt;

use madako_faults::Count;
use madako_judges::{Exemption, Promise};

use super::{Outcome, Report};
use crate::check::Verdict;
use crate::network::NetworkCarrier;

/// Lines of a table; `report.json` has all of it.
const MOST_LINES: usize = 200;

fn write_table<'a>(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    verdicts: impl Iterator<Item = (&'a String, &'a Verdict)>,
) -> fmt::Result {
    writeln!(f, "| {what} | Verdict | Judged |\n|---|---|---|")?;
    for (name, verdict) in verdicts {
        writeln!(f, "| {name} | {} | {} |", Report::verdict_word(verdict), verdict.judged)?;
    }
    Ok(())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.outcome {
            Outcome::Passed => "passed",
            Outcome::Failed => "FAILED",
            Outcome::Skipped => "no pass: a fault could not be injected",
        };
        writeln!(f, "# {}: {outcome}\n", self.scenario)?;
        writeln!(f, "Seed {}, faults for {}.", self.seed, self.length)?;
        match self.calm_after {
            Some(after) => writeln!(f, "All was calm {after} after the last fault.")?,
            None => writeln!(f, "It did not become calm.")?,
        }
        let made = match self.network {
            NetworkCarrier::Namespaces => {
                "Cuts and losses were made by nft between the namespaces, delays and resets by proxies."
            }
            NetworkCarrier::Proxies { .. } => {
                "Cuts, delays, losses and resets were made by proxies between the processes."
            }
        };
        writeln!(f, "network: {}\n{made}", self.network)?;
        for short in &self.shortfalls {
            writeln!(f, "- {short}")?;
        }
        for idle in self.unexercised_expectations() {
            writeln!(f, "- {idle}")?;
        }
        writeln!(f, "\n![what happened when](timeline.svg)\n\n## Verdicts\n")?;
        let promises: Vec<&str> = Promise::ALL.iter().map(|promise| promise.name()).collect();
        let is_promise = |name: &str| promises.contains(&name);
        let verdicts = self.verdicts.0.iter();
        write_table(f, "Check", verdicts.clone().filter(|(name, _)| !is_promise(name)))?;
        writeln!(f)?;
        write_table(f, "Promise", verdicts.filter(|(name, _)| is_promise(name)))?;
        for (name, verdict) in &self.verdicts.0 {
            for violation in &verdict.violations {
                writeln!(f, "\n- **{name}**: {violation}")?;
            }
        }
        writeln!(f, "\n## Excused\n\n| What | Uses | At most an hour | Longest | At most | Why |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for exemption in Exemption::ALL {
            let used = self.exemptions.get(exemption.name()).copied().unwrap_or_default();
            let [lasted, longest] = exemption.format_durations(used);
            let (name, most, why) = (exemption.name(), exemption.max_per_hour(), exemption.reason());
            writeln!(f, "| {name} | {} | {most} | {lasted} | {longest} | {why} |", used.uses)?;
        }
        writeln!(f, "\n## Counted\n\n| What | Times |\n|---|---|")?;
        for count in Count::ALL {
            writeln!(f, "| {count} | {} |", self.counts.count_of(*count))?;
        }
        let judged = &self.linearizability;
        writeln!(f, "| objects of clients | {} |", judged.objects)?;
        writeln!(f, "| calls of clients that were judged | {} |", judged.calls)?;
        writeln!(f, "| of these, without a known end | {} |", judged.unknown)?;
        let kubernetes = &self.kubernetes;
        writeln!(f, "| nodes cordoned | {} |", kubernetes.cordoned)?;
        writeln!(f, "| nodes uncordoned | {} |", kubernetes.uncordoned)?;
        writeln!(f, "| pods evicted | {} |", kubernetes.evicted)?;
        writeln!(f, "| evictions that a disruption budget forbade | {} |", kubernetes.refused)?;
        writeln!(f, "| pods deleted | {} |", kubernetes.deleted)?;
        writeln!(
            f,
            "\n## Faults\n\n| Begins | Ends | What | Dropped packets | Leader changes | Refused writes | Failed calls | \
             Led after | AcknowledgedWrite after |\n|---|---|---|---|---|---|---|---|---|"
        )?;
        let span = |seconds: Option<f64>| seconds.map_or_else(String::new, |it| format!("{it:.3} s"));
        for fault in self.faults.iter().take(MOST_LINES) {
            let on = fault.on.as_deref().filter(|on| !fault.what.ends_with(on));
            let on = on.map(|on| format!(" ({on})")).unwrap_or_default();
            let why = fault.skipped.as_deref().map(|why| format!(": skipped, {why}")).unwrap_or_default();
            let idle =
                if fault.dropped_packets == Some(0) { ": did nothing, and does not count" } else { "" };
            writeln!(
                f,
                "| {:.1} s | {} | {}{on}{why}{idle} | {} | {} | {} | {} | {} | {} |",
                fault.begins,
                fault.ends.map_or_else(|| "at once".to_owned(), |ends| format!("{ends:.1} s")),
                fault.what,
                fault.dropped_packets.map_or_else(String::new, |packets| packets.to_string()),
                fault.leader_changes,
                fault.refused_writes,
                fault.failed_client_calls,
                span(fault.led_after),
                span(fault.wrote_after),
            )?;
        }
        if self.faults.len() > MOST_LINES {
            writeln!(f, "\nAnd {} more, in report.json.", self.faults.len() - MOST_LINES)?;
        }
        if !self.draws.is_empty() {
            writeln!(f, "\n## Drawn\n")?;
        }
        for draw in self.draws.iter().take(MOST_LINES) {
            writeln!(f, "- {draw}")?;
        }
        Ok(())
    }
}
