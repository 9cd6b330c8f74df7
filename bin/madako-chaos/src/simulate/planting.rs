//! Lists the bugs that can be planted. Only in builds with debug assertions.

use madako_console::{Format, Table, show};
use madako_domain::canary::{Canary, Part};
use serde_json::{Value, json};

use crate::cli::Failure;

fn part(part: Part) -> &'static str {
    match part {
        Part::LeaderAndStore => "leader and store",
        Part::ClusterKeeping => "cluster keeping",
        Part::Repair => "repair",
        Part::Placement => "placement",
    }
}

pub(super) fn list(output: Format) -> Result<(), Failure> {
    let of = |canary: &Canary| json!({"canary": canary.name(), "part": part(canary.part()), "what": canary.what()});
    let all: Vec<Value> = Canary::ALL.iter().map(of).collect();
    show(output, &all, |_| {
        let mut table = Table::new(["CANARY", "PART", "WHAT GOES WRONG"]);
        for canary in Canary::ALL {
            table.row([canary.name().to_owned(), part(canary.part()).to_owned(), canary.what().to_owned()]);
        }
        table.text()
    })?;
    Ok(())
}
