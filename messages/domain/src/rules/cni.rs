//! The rules of the CNI configuration file that CKE puts on nodes (the CNI specification 1.1, as libcni 1.2, which
//! CKE calls, reads it).

use madako_json::input::Problems;
use madako_json::strict::tree::{Tree, shown_text};
use madako_json::strict::walk::{Kind, Path, Schema, SchemaWalk, UnknownFieldPolicy};

static NETWORK: Schema = Schema {
    fields: &[
        ("cniVersion", Kind::Text),
        ("name", Kind::Text),
        ("type", Kind::Text),
        ("capabilities", Kind::Map(&Kind::Bool)),
        ("ipam", Kind::Object(&IPAM)),
        ("dns", Kind::Object(&DNS)),
        ("prevResult", Kind::FreeForm),
        ("cni.dev/valid-attachments", Kind::List(&Kind::Object(&ATTACHMENT))),
    ],
};
static IPAM: Schema = Schema { fields: &[("type", Kind::Text)] };
static DNS: Schema = Schema {
    fields: &[
        ("nameservers", Kind::List(&Kind::Text)),
        ("domain", Kind::Text),
        ("search", Kind::List(&Kind::Text)),
        ("options", Kind::List(&Kind::Text)),
    ],
};
static ATTACHMENT: Schema = Schema { fields: &[("containerID", Kind::Text), ("ifname", Kind::Text)] };

/// Checks a file: its name, and its content according to the name's extension.
pub(super) fn check_file(file: &Tree, path: &Path<'_>, problems: &mut Problems) {
    let text = |field| file.get(field).and_then(Tree::text).unwrap_or_default();
    let (name, content) = (text("name"), text("content"));
    if name.is_empty() {
        if !content.is_empty() {
            problems.add(path.field("name"), "", "a file name, since there is content");
        }
        return;
    }
    if !name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'-')) {
        problems.add(
            path.field("name"),
            shown_text(name),
            "a file name of letters, digits, '-', '_' and '.'",
        );
        return;
    }
    let path = path.field("content");
    // The content is JSON in a string; paths within it continue the field's path.
    let tree = match Tree::from_json(content) {
        Ok(tree @ Tree::Object(_)) => tree,
        Ok(other) => return problems.add(path, other.short_text(), "a JSON object"),
        Err(error) => {
            let got = if content.is_empty() { String::new() } else { error.to_string() };
            return problems.add(path, got, "a JSON object");
        }
    };
    if name.ends_with(".conflist") {
        check_list(&tree, &path, problems);
    } else {
        check_network(tree, path, problems);
    }
}

fn check_network(tree: Tree, path: Path<'_>, problems: &mut Problems) {
    let typed = tree.get("type").is_some();
    let mut walk = SchemaWalk { root: &NETWORK, unknown: UnknownFieldPolicy::Keep, problems };
    let good = walk.check_object(tree, &NETWORK, path);
    match good.get("type").and_then(Tree::text) {
        Some("") => problems.add(path.field("type"), "\"\"", "the name of a plugin"),
        None if !typed => problems.add(path.field("type"), "", "the name of a plugin"),
        _ => {}
    }
}

/// Names of a list's own fields match exactly, because libcni reads them one by one.
fn check_list(tree: &Tree, path: &Path<'_>, problems: &mut Problems) {
    let field = |name: &str| tree.fields().iter().find(|(known, _)| known == name).map(|(_, value)| value);
    match field("name") {
        Some(Tree::Text(_)) => {}
        other => problems.add(path.field("name"), other.map_or_else(String::new, Tree::short_text), "a text"),
    }
    let version = field("cniVersion");
    if let Some(other) = version.filter(|version| version.text().is_none()) {
        problems.add(path.field("cniVersion"), other.short_text(), "a text");
    }
    match field("cniVersions") {
        None => {}
        Some(Tree::List(versions)) => {
            let path = path.field("cniVersions");
            for (index, version) in versions.iter().enumerate() {
                if !version.text().is_some_and(is_version) {
                    problems.add(path.item(index), version.short_text(), "a version such as 1.0.0");
                }
            }
            if let Some(version) = version.and_then(Tree::text).filter(|version| !is_version(version)) {
                problems.add(path.field("cniVersion"), shown_text(version), "a version such as 1.0.0");
            }
        }
        Some(other) => problems.add(path.field("cniVersions"), other.short_text(), "a list of texts"),
    }
    for name in ["disableCheck", "disableGC"] {
        match field(name) {
            None | Some(Tree::Bool(_)) => {}
            Some(Tree::Text(text)) if matches!(text.to_lowercase().as_str(), "true" | "false") => {}
            Some(other) => problems.add(path.field(name), other.short_text(), "true or false"),
        }
    }
    let path = path.field("plugins");
    match field("plugins") {
        Some(Tree::List(plugins)) if !plugins.is_empty() => {
            for (index, plugin) in plugins.iter().enumerate() {
                match plugin {
                    Tree::Object(_) => check_network(plugin.clone(), path.item(index), problems),
                    other => problems.add(path.item(index), other.short_text(), "an object"),
                }
            }
        }
        Some(Tree::List(_)) | None => problems.add(path, "", "at least one plugin"),
        Some(other) => problems.add(path, other.short_text(), "a list of plugins"),
    }
}

/// True for one to three numbers separated by points. The empty text means 0.1.0.
fn is_version(text: &str) -> bool {
    text.is_empty() || {
        let parts: Vec<&str> = text.split('.').collect();
        parts.len() <= 3 && parts.iter().all(|part| part.parse::<i64>().is_ok())
    }
}
