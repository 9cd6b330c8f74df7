//! The verb `delete` of the placement commands: deletes a resource. If the garbage collection deletes others with it
//! (Krake's owner rule), the command lists them and asks first.
//!
//! Guarantees: without `--yes`, a resource with dependents is deleted only after the user agrees at a terminal.
//! Does not: lock anything. Resources that become dependent after the answer are deleted, too.

use std::io::{self, IsTerminal as _};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::CommandScope;
use super::client::{ApiClient, Request};
use super::given::GivenOptions;
use crate::failure::Failure;
use crate::limits::MAX_NAMED;
use crate::output::{Format, Table, escape_unprintable, print_note, print_warning, show_value};

/// The resources that are deleted along with another one, from the API.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Dependents {
    dependents: Vec<Dependent>,
    /// Number of further dependents, which the user may not list.
    hidden: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Dependent {
    kind: String,
    namespace: Option<String>,
    name: String,
}

impl Dependents {
    fn count(&self) -> usize {
        self.dependents.len() + self.hidden
    }

    fn describe(&self, subject: &str) -> String {
        let mut text =
            format!("deleting {subject} also deletes {} that it owns:", count_resources(self.count()));
        for Dependent { kind, namespace, name } in self.dependents.iter().take(MAX_NAMED) {
            let namespace = namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
            text += &format!("\n  {}", escape_unprintable(&format!("{kind} {namespace}{name}")));
        }
        if let Some(more) = self.dependents.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            text += &format!("\n  and {more} more (--dry-run lists all of them)");
        }
        if self.hidden > 0 {
            text += &format!("\n  {} that you may not list", count_resources(self.hidden));
        }
        text
    }

    fn format_table(&self, subject: &str) -> String {
        if self.count() == 0 {
            return format!("Deleting {subject} deletes nothing else.\n");
        }
        let mut table = Table::new(["KIND", "NAMESPACE", "NAME"]);
        for Dependent { kind, namespace, name } in &self.dependents {
            table.add_row([kind.clone(), namespace.clone().unwrap_or_default(), name.clone()]);
        }
        let hidden = match self.hidden {
            0 => String::new(),
            hidden => format!("\nYou may not list {hidden} of them.\n"),
        };
        format!(
            "Deleting {subject} also deletes {} that it owns:\n\n{}{hidden}",
            count_resources(self.count()),
            table.to_text()
        )
    }
}

fn count_resources(count: usize) -> String {
    if count == 1 { "1 resource".to_owned() } else { format!("{count} resources") }
}

/// Deletes the resource, or lists its dependents. Returns the API's document, if it is to be shown.
pub(super) async fn run(
    api: &ApiClient,
    place: &CommandScope,
    given: &GivenOptions,
    format: Format,
) -> Result<Option<Value>, Failure> {
    let name = given.name()?;
    let subject = place.name_of_resource(name);
    // A forced deletion leaves the dependents.
    let dependents = if given.is_flag_set("force") {
        Ok(Dependents::default())
    } else {
        read_dependents(api, place, name).await
    };
    if given.is_flag_set("dry-run") {
        return show_value(format, &dependents?, |dependents| dependents.format_table(&subject))
            .map(|()| None);
    }
    match dependents {
        Ok(dependents) if dependents.count() == 0 => {}
        Ok(dependents) => {
            let text = dependents.describe(&subject);
            if !given.is_flag_set("yes") {
                confirm_deletion(&text, &subject)?;
            } else {
                print_note(text);
            }
        }
        Err(failure) if given.is_flag_set("yes") => {
            let why = failure.message().unwrap_or_default();
            print_warning(format_args!("the command deletes without knowing the dependent resources: {why}"));
        }
        Err(failure) => {
            let why = failure.message().unwrap_or_default();
            return Err(Failure::failed(format_args!(
                "{why}; {subject} was not deleted (--yes deletes without listing the dependent resources)"
            )));
        }
    }
    let mut request = Request::new("DELETE", place.path_segments(&[name]), subject);
    request.query = given.query();
    Ok(api.send(&request).await?.into_document())
}

async fn read_dependents(api: &ApiClient, place: &CommandScope, name: &str) -> Result<Dependents, Failure> {
    let subject = format!("the dependent resources of {}", place.name_of_resource(name));
    let request = Request::new("GET", place.path_segments(&[name, "dependents"]), subject);
    let body = api.send(&request).await?.body;
    serde_json::from_value(body).map_err(|error| {
        Failure::failed(format_args!(
            "the API's answer about {} is not a list of dependents: {error}",
            request.subject
        ))
    })
}

fn confirm_deletion(text: &str, subject: &str) -> Result<(), Failure> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(Failure::bad_input(format_args!(
            "{text}\n{subject} was not deleted: there is no terminal to ask for confirmation; --yes confirms the \
             deletion of all of this"
        )));
    }
    print_note(format_args!("{text}\nDelete {subject} and all of this? Type yes to agree:"));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "yes" | "y" => Ok(()),
        _ => Err(Failure::failed(format_args!("the deletion was not confirmed: {subject} was not deleted"))),
    }
}
