//! Reduces the kubeconfig of a new cluster to one context, its cluster and its user, with embedded certificates.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::input::{STDIN, read_documents};
use crate::limits::MAX_FILE_BYTES;

/// The kubeconfig with one context (by default the current one), and the name of its cluster.
///
/// # Errors
/// The file, the context, or a referenced file cannot be used.
pub(super) fn select_context(file: &str, context: Option<&str>) -> Result<(Value, String), Failure> {
    let mut documents = read_documents(file)?;
    let wrong = |why: String| Failure::bad_input(format_args!("{file} is not a usable kubeconfig: {why}"));
    if documents.len() != 1 || !documents[0].is_object() {
        return Err(wrong("expected one object".to_owned()));
    }
    let mut config = documents.swap_remove(0);
    let wanted = context.or(config["current-context"].as_str());
    let wanted = wanted
        .ok_or_else(|| wrong("it has no current-context, and --context names none".to_owned()))?
        .to_owned();
    let one = |kind: &str, name: &str| {
        let items = config[kind].as_array().into_iter().flatten();
        let mut named = items.filter(|item| item["name"] == name);
        named.next().cloned().ok_or_else(|| wrong(format!("{kind} has no entry {name:?}")))
    };
    let found = one("contexts", &wanted)?;
    let named = |of: &str| {
        let name = found["context"][of].as_str();
        name.ok_or_else(|| wrong(format!("context {wanted:?} names no {of}"))).map(str::to_owned)
    };
    let (cluster_name, user_name) = (named("cluster")?, named("user")?);
    let (mut cluster, mut user) = (one("clusters", &cluster_name)?, one("users", &user_name)?);
    // As in kubectl, paths are relative to the file.
    let base = if file == STDIN { Path::new("") } else { Path::new(file).parent().unwrap_or(Path::new("")) };
    embed_files(&mut cluster["cluster"], "certificate-authority", base)?;
    embed_files(&mut user["user"], "client-certificate", base)?;
    embed_files(&mut user["user"], "client-key", base)?;
    config["clusters"] = json!([cluster]);
    config["contexts"] = json!([found]);
    config["users"] = json!([user]);
    config["current-context"] = wanted.into();
    Ok((config, cluster_name))
}

/// Replaces a file name by the base64 of its content.
fn embed_files(part: &mut Value, name: &str, base: &Path) -> Result<(), Failure> {
    let Some(fields) = part.as_object_mut() else { return Ok(()) };
    let Some(path) = fields.remove(name) else { return Ok(()) };
    let path = base.join(path.as_str().unwrap_or_default());
    let unusable = |why: &dyn std::fmt::Display| {
        Failure::bad_input(format_args!("{name} {} of the kubeconfig cannot be read: {why}", path.display()))
    };
    let mut bytes = Vec::new();
    fs::File::open(&path)
        .and_then(|opened| opened.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| unusable(&error))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(unusable(&format_args!("longer than {MAX_FILE_BYTES} bytes")));
    }
    fields.insert(format!("{name}-data"), STANDARD.encode(bytes).into());
    Ok(())
}
