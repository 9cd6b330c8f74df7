//! `madako status`: the phase of the leader, and the obstacles to planning and repairs.

use madako_domain::guard::{GuardState, POLLS_TO_AGREE};
use madako_domain::keys;
use madako_domain::obstacle::{
    AUTO_REPAIR_DISABLED, INTEGRATION_DISABLED, NO_PLAN, Obstacle, RACK_HELD, REGISTRY_SILENT, REMOVAL_GUARD,
    REPAIR_QUEUE_DISABLED, UNUSABLE_VALUE,
};
use madako_domain::state::{ClusterState, Fault};
use madako_domain::status::ServerStatus;
use madako_protocol::store::Store;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::access::{decode, get};
use crate::failure::Failure;
use crate::output::{Format, OutputArgs, Table, print, show};

/// Shows the phase of the leader; as a table, also the obstacles of plans and repairs.
///
/// The table shows each obstacle with its start time, its rule, its reason and a remedy. The other forms have only
/// CKE's fields. The command exits with 4 while no leader has stored a status.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako status\n  madako status -o table")]
pub(crate) struct Args {
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: Args, store: &dyn Store) -> Result<(), Failure> {
    let entry = get(store, keys::STATUS).await?.ok_or(Failure::NoStatus)?;
    let status: ServerStatus = decode(keys::STATUS, &entry)?;
    let Some(format) = args.output.output else {
        return print(&format!("{}\n", serde_json::to_string(&status)?));
    };
    let stuck = match format {
        Format::Table => {
            let snapshot = store.list("").await?;
            stuck(&ClusterState::decode(snapshot.revision, &snapshot.entries, None))
        }
        Format::Json | Format::Yaml => Vec::new(),
    };
    show(format, &status, |status| {
        let mut table = Table::new(["PHASE", "SINCE"]);
        table.row([status.phase.to_string(), status.timestamp.format(&Rfc3339).unwrap_or_default()]);
        format!("{}\n{}", table.text(), stuck_table(&stuck))
    })
}

/// An obstacle that needs the operator.
#[derive(Debug)]
struct StatusObstacle {
    what: String,
    since: Option<OffsetDateTime>,
    rule: &'static str,
    why: String,
    /// The operator's way out.
    remedy: String,
}

fn stuck_table(stuck: &[StatusObstacle]) -> String {
    if stuck.is_empty() {
        return "Nothing is stuck.\n".to_owned();
    }
    let mut table = Table::new(["STUCK", "SINCE", "RULE", "WHY", "WHAT TO DO"]);
    for StatusObstacle { what, since, rule, why, remedy } in stuck {
        let since = since.and_then(|since| since.format(&Rfc3339).ok());
        let since = since.unwrap_or_else(|| "not known".to_owned());
        table.row([what.clone(), since, (*rule).to_owned(), why.clone(), remedy.clone()]);
    }
    table.text()
}

/// Every obstacle in the state, including the leader's stored notes about those that only the leader observes.
fn stuck(state: &ClusterState) -> Vec<StatusObstacle> {
    let noted = |rule: &str| state.obstacles.as_ref().and_then(|noted| noted.value.get(rule));
    let mut found = Vec::new();
    let mut add = |what: &str, rule: &'static str, why: &str, remedy: &str| {
        let since = noted(rule).map(|noted| noted.since);
        found.push(StatusObstacle {
            what: what.to_owned(),
            since,
            rule,
            why: why.to_owned(),
            remedy: remedy.to_owned(),
        });
    };
    if state.disabled {
        let remedy = "madako sabakan enable lets the leader plan again";
        add("plans", INTEGRATION_DISABLED, "the integration with sabakan is disabled", remedy);
    }
    if let Some(guard) = state.guard.as_ref().filter(|guard| !guard.value.vanished.is_empty()) {
        let remedy = "madako sabakan confirm-removal --dry-run names the nodes; without --dry-run it accepts their removal";
        add("plans", REMOVAL_GUARD, &describe_held(&guard.value), remedy);
    }
    if noted(REGISTRY_SILENT).is_some_and(|_| !state.disabled) {
        let url = state.url.as_ref().map_or("its URL", |url| url.value.as_str());
        let why = "sabakan has returned no valid answer for more than three poll intervals";
        add("plans", REGISTRY_SILENT, why, &format!("check sabakan ({url}) and the leader's log"));
    }
    if let Some(Obstacle { why, .. }) = noted(NO_PLAN).filter(|_| !state.disabled) {
        add(
            "plans",
            NO_PLAN,
            why,
            "madako plan shows the obstacle; change the template, the constraints or the machines",
        );
    }
    if state.repair.disabled {
        let remedy = "madako repair-queue enable resumes repairs";
        add("repairs", REPAIR_QUEUE_DISABLED, "the repair queue is disabled", remedy);
    }
    if state.auto_repair_disabled {
        let why = "for information: machines that sabakan reports are not added to the repair queue";
        add(
            "automatic repairs",
            AUTO_REPAIR_DISABLED,
            why,
            "madako auto-repair enable, unless this is wanted",
        );
    }
    for Fault { key, why } in &state.faults {
        let remedy = match key.strip_prefix(keys::REPAIR_HOLDS) {
            Some(rack) => format!("madako repair-queue release {rack}"),
            None => format!("store a valid value of {key}, or delete the key"),
        };
        add(key, UNUSABLE_VALUE, why, &remedy);
    }
    for (rack, hold) in state.holds.iter().filter(|(_, hold)| hold.value.is_held()) {
        found.push(StatusObstacle {
            what: format!("repairs of {} {rack}", hold.value.label),
            since: hold.value.held_since(),
            rule: RACK_HELD,
            why: format!(
                "{} machines failed together: {}",
                hold.value.count(),
                hold.value.serials().join(", ")
            ),
            remedy: format!(
                "look for the common cause; madako repair-queue release {rack} repairs them one by one"
            ),
        });
    }
    found
}

fn describe_held(guard: &GuardState) -> String {
    let count = guard.vanished.len();
    match guard.confirmed {
        true => format!(
            "{count} nodes vanished from sabakan; their removal is confirmed and continues at the next poll"
        ),
        false => format!(
            "{count} nodes vanished from sabakan at once; {} of {POLLS_TO_AGREE} polls agree",
            guard.agreed
        ),
    }
}
