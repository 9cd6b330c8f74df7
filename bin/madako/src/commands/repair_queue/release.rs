//! `madako repair-queue release`: ends the hold of a rack.

use madako_domain::keys;
use madako_domain::repair::hold::{HeldReport, Hold};
use madako_protocol::store::Store;
use serde::Serialize;

use crate::access::{concurrent_change_failure, decode, get_entry, modify_entry, remove_if};
use crate::failure::Failure;
use crate::output::{Format, Table, show_value};

/// Releases a rack that is held because several of its machines failed at about the same time.
///
/// Repairs of these machines continue as far as other limiters allow. The same reports do not hold the rack again; new
/// ones may. madako repair-queue explain shows the held racks.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  madako repair-queue release 3")]
pub(crate) struct Args {
    /// Value of the rack label; by default the number of the rack
    #[arg(allow_negative_numbers = true)]
    rack: String,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
struct ReleasedRack {
    rack: String,
    released: Vec<HeldReport>,
    /// The stored hold was unreadable, and was removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unreadable: bool,
}

pub(super) async fn run(args: &Args, store: &dyn Store) -> Result<(), Failure> {
    let key = keys::repair_hold_key(&args.rack);
    let not_held = || {
        Failure::failed(format_args!(
            "the rack {} is not held: madako repair-queue explain shows the held racks",
            args.rack
        ))
    };
    let kept = get_entry(store, &key).await?.ok_or_else(not_held)?;
    let released = match decode::<Hold>(&key, &kept) {
        Ok(_) => Some(release_rack(store, &key, not_held).await?),
        // The cause of the hold is unknown: the key is removed if it is unchanged.
        Err(_) if remove_if(store, &key, &kept).await? => None,
        Err(_) => return Err(concurrent_change_failure(&key)),
    };
    let unreadable = released.is_none();
    let released =
        ReleasedRack { rack: args.rack.clone(), released: released.unwrap_or_default(), unreadable };
    show_value(args.output, &released, format_table)
}

/// Ends the hold of the rack.
async fn release_rack(
    store: &dyn Store,
    key: &str,
    not_held: impl Fn() -> Failure,
) -> Result<Vec<HeldReport>, Failure> {
    modify_entry(store, key, |entry| {
        let mut hold: Hold = decode(key, entry.ok_or_else(&not_held)?)?;
        let released = hold.machines().into_values().cloned().collect();
        if !hold.release() {
            return Err(not_held());
        }
        Ok((serde_json::to_vec(&hold)?, released))
    })
    .await
}

fn format_table(released: &ReleasedRack) -> String {
    if released.unreadable {
        return format!(
            "Rack {} is released. The reports of its hold could not be read: reported machines that failed \
             together hold it again.\n",
            released.rack
        );
    }
    let mut table = Table::new(["SERIAL", "ADDRESS", "FAILED"]);
    for report in &released.released {
        let failed = super::format_time(Some(report.changed));
        table.add_row([report.serial.clone(), report.address.clone(), failed]);
    }
    format!("{}\nRack {} is released: these reports do not hold it again.\n", table.to_text(), released.rack)
}
