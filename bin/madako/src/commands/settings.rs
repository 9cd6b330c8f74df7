//! Reads, writes and prints settings in etcd for several commands: switches, single values, variables of a query.

use madako_domain::machine::QueryVariables;
use madako_domain::store::Entry;
use madako_protocol::store::Store;
use serde_json::{Value, json};

use crate::access::{decode, get_entry, modify_entry, replace};
use crate::failure::Failure;
use crate::output::{Format, OutputArgs, Table, print_bytes, print_text, print_warning, show_value};

pub(crate) async fn switch_setting(store: &dyn Store, key: &str, disabled: bool) -> Result<(), Failure> {
    modify_entry(store, key, |_| Ok((disabled.to_string().into_bytes(), ()))).await
}

/// Shows the state of that key. CKE compares the bytes: anything but `true` means enabled.
pub(crate) async fn is_enabled(args: &OutputArgs, store: &dyn Store, key: &str) -> Result<(), Failure> {
    let disabled = get_entry(store, key).await?.is_some_and(|entry| &entry.value[..] == b"true");
    print_scalar(args, "enabled", &(!disabled).to_string(), &json!(!disabled))
}

/// One value: as a bare line, or as a field.
pub(crate) fn print_scalar(args: &OutputArgs, name: &str, text: &str, value: &Value) -> Result<(), Failure> {
    match args.output {
        None => print_text(&format!("{text}\n")),
        Some(format) => show_value(format, &json!({ name: value }), |_| {
            let mut table = Table::new([name.to_uppercase().as_str()]);
            table.add_row([text.to_owned()]);
            table.to_text()
        }),
    }
}

/// The value of a key; without one, the error says with `how` to set it.
pub(crate) async fn stored_setting(
    store: &dyn Store,
    key: &str,
    what: &str,
    how: &str,
) -> Result<Entry, Failure> {
    get_entry(store, key).await?.ok_or_else(|| {
        Failure::failed(format_args!("the key {key} of the store has no {what}: madako {how} stores one"))
    })
}

/// Replaces a value, and reports whether there was one.
pub(crate) async fn replace_and_report(
    what: &str,
    store: &dyn Store,
    key: &str,
    value: Vec<u8>,
) -> Result<(), Failure> {
    let before = replace(store, key, value.clone()).await?;
    print_text(&match before {
        None => format!("{what}: stored\n"),
        Some(entry) if entry.value[..] == value[..] => format!("{what}: stored, unchanged\n"),
        Some(_) => format!("{what}: stored, replacing the previous value\n"),
    })
}

/// Checks variables of a query and stores their text unchanged, as ckecli does.
pub(crate) async fn set_variables(text: &str, store: &dyn Store, key: &str) -> Result<(), Failure> {
    let variables = QueryVariables::from_json(text)?;
    for warning in variables.warnings() {
        print_warning(warning);
    }
    replace_and_report("variables", store, key, text.as_bytes().to_vec()).await
}

/// Shows variables of a query: their text, or another form.
pub(crate) fn show_variables(args: &OutputArgs, key: &str, entry: &Entry) -> Result<(), Failure> {
    match args.output {
        None => print_bytes(&entry.value),
        Some(Format::Table) => print_text(&variables_table(&decode(key, entry)?)),
        Some(format) => {
            let value: Value = decode(key, entry)?;
            show_value(format, &value, |_| String::new())
        }
    }
}

fn variables_table(variables: &Value) -> String {
    let mut table = Table::new(["VARIABLE", "CONDITION", "VALUE"]);
    for name in ["having", "notHaving"] {
        let Some(conditions) = variables[name].as_object() else {
            table.add_row([name.to_owned(), "(none)".to_owned(), String::new()]);
            continue;
        };
        for (condition, value) in conditions {
            table.add_row([name.to_owned(), condition.clone(), value.to_string()]);
        }
    }
    table.to_text()
}
