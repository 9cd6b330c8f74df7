//! `madako sabakan confirm-removal`: confirms the removal that the removal guard holds.

use madako_domain::guard::{GuardState, POLLS_TO_AGREE};
use madako_domain::keys;
use madako_protocol::store::Store;
use serde_json::{Value, json};

use crate::access::{decode, get_entry, modify_entry};
use crate::failure::Failure;
use crate::output::{Format, Table, show_value};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only shows the held removal
    #[arg(long)]
    dry_run: bool,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

pub(super) async fn run(args: &Args, store: &dyn Store) -> Result<(), Failure> {
    let held = if args.dry_run {
        match get_entry(store, keys::REMOVAL_GUARD).await? {
            None => GuardState::default(),
            Some(entry) => decode(keys::REMOVAL_GUARD, &entry)?,
        }
    } else {
        confirm_removal(store).await?
    };
    show_value(args.output, &json!(held), |_| format_table(&held))
}

/// Confirms exactly the removal that is held at the write; does nothing if none is held.
async fn confirm_removal(store: &dyn Store) -> Result<GuardState, Failure> {
    let Some(entry) = get_entry(store, keys::REMOVAL_GUARD).await? else { return Ok(GuardState::default()) };
    let held: GuardState = decode(keys::REMOVAL_GUARD, &entry)?;
    if held.vanished.is_empty() {
        return Ok(GuardState::default());
    }
    // It is confirmed already.
    if held.confirmed {
        return Ok(held);
    }
    let gone = || {
        Failure::failed("the removal guard no longer holds back an observation, so no removal was confirmed")
    };
    modify_entry(store, keys::REMOVAL_GUARD, |entry| {
        let entry = entry.ok_or_else(gone)?;
        let mut held: GuardState = decode(keys::REMOVAL_GUARD, entry)?;
        held.confirmed = true;
        // Fields of a newer version stay.
        let mut value: Value = decode(keys::REMOVAL_GUARD, entry)?;
        value["confirmed"] = json!(true);
        Ok((serde_json::to_vec(&value)?, held))
    })
    .await
}

fn format_table(held: &GuardState) -> String {
    if held.vanished.is_empty() {
        return "The removal guard holds nothing.\n".to_owned();
    }
    let mut table = Table::new(["VANISHED"]);
    for address in &held.vanished {
        table.add_row([address.clone()]);
    }
    let count = held.vanished.len();
    let state = if held.confirmed {
        format!("Confirmed: the removal of {count} nodes continues at the next poll.")
    } else {
        format!("Held: {count} nodes vanished; {} of {POLLS_TO_AGREE} polls agree.", held.agreed)
    };
    format!("{}\n{state}\n", table.to_text())
}
