//! `simulate --canary NAME`: a bug that is planted before a run, to see that the run finds it. Only in builds with the feature
//! `canary`.

use std::io;

use clap::builder::PossibleValuesParser;
use madako_console::{Format, Table, show};
use madako_messages::canary::{Canary, Part, plant};
use serde_json::{Value, json};

/// Options that a build for planted bugs has beside the others.
#[derive(Debug, clap::Args)]
pub(super) struct Planting {
    /// Plants a bug in the service
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Canary::ALL.iter().map(|canary| canary.name())),
          hide_possible_values = true)]
    canary: Option<String>,
    /// Lists the bugs that can be planted, and runs nothing
    #[arg(long, conflicts_with_all = ["canary", "trace", "report"])]
    canaries: bool,
}

fn part(part: Part) -> &'static str {
    match part {
        Part::LeaderAndStore => "leader and store",
        Part::ClusterKeeping => "cluster keeping",
        Part::Repair => "repair",
        Part::Placement => "placement",
    }
}

impl Planting {
    /// Lists the bugs if that was asked for, and plants the one that was asked for otherwise. Whether there is something to run.
    pub(super) fn begin(&self, output: Format) -> io::Result<bool> {
        if self.canaries {
            list(output)?;
            return Ok(false);
        }
        let named = |canary: &&Canary| self.canary.as_deref() == Some(canary.name());
        plant(Canary::ALL.iter().find(named).copied());
        Ok(true)
    }

    /// What repeats it, in a command.
    pub(super) fn words(&self) -> String {
        self.canary.as_ref().map(|name| format!(" --canary {name}")).unwrap_or_default()
    }
}

fn list(output: Format) -> io::Result<()> {
    let of = |canary: &Canary| json!({"canary": canary.name(), "part": part(canary.part()), "what": canary.what()});
    let all: Vec<Value> = Canary::ALL.iter().map(of).collect();
    show(output, &all, |_| {
        let mut table = Table::new(["CANARY", "PART", "WHAT GOES WRONG"]);
        for canary in Canary::ALL {
            table.row([canary.name().to_owned(), part(canary.part()).to_owned(), canary.what().to_owned()]);
        }
        table.text()
    })
}
