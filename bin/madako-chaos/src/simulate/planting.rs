//! Lists the bugs that `madako-chaos simulate` can plant into the service. Only in builds with debug assertions.

use madako_console::{Format, Table, show_value};
use madako_domain::canary::Canary;
use serde_json::{Value, json};

use crate::cli::Failure;

pub(super) fn list_bugs(output: Format) -> Result<(), Failure> {
    let of = |canary: &Canary| json!({"canary": canary.name(), "part": canary.part().name(), "what": canary.text()});
    let all: Vec<Value> = Canary::ALL.iter().map(of).collect();
    show_value(output, &all, |_| {
        let mut table = Table::new(["CANARY", "PART", "WHAT GOES WRONG"]);
        for canary in Canary::ALL {
            table.add_row([
                canary.name().to_owned(),
                canary.part().name().to_owned(),
                canary.text().to_owned(),
            ]);
        }
        table.to_text()
    })?;
    Ok(())
}
