//! The label of a container, in which CKE and this service keep its parameters.

use std::collections::BTreeMap;

use madako_domain::containers::{Mount, ServiceParams};
use madako_json::go::{escape_html, go_object};
use serde::Serialize;

pub(crate) const LABEL: &str = "com.cybozu.cke";

go_object! {
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Label {
        pub builtin: ServiceParams = "builtin";
        pub extra: ServiceParams = "extra";
        ..drop
    }
}

/// The text as CKE writes it: `null` for an empty list or map.
#[derive(Serialize)]
struct WrittenLabel<'a> {
    builtin: WrittenParams<'a>,
    extra: WrittenParams<'a>,
}

#[derive(Serialize)]
struct WrittenParams<'a> {
    extra_args: Option<&'a [String]>,
    extra_binds: Option<&'a [Mount]>,
    extra_env: Option<&'a BTreeMap<String, String>>,
}

impl<'a> From<&'a ServiceParams> for WrittenParams<'a> {
    fn from(params: &'a ServiceParams) -> Self {
        Self {
            extra_args: Some(&*params.args).filter(|args| !args.is_empty()),
            extra_binds: Some(&*params.binds).filter(|binds| !binds.is_empty()),
            extra_env: Some(&params.env).filter(|env| !env.is_empty()),
        }
    }
}

/// The text of the label: one line of Go's JSON.
pub(crate) fn write_label(builtin: &ServiceParams, extra: &ServiceParams) -> String {
    let written = WrittenLabel { builtin: builtin.into(), extra: extra.into() };
    escape_html(serde_json::to_string(&written).expect("parameters are written as JSON"))
}

/// Reads the text of a label. `None`: neither CKE nor this service wrote it.
pub(crate) fn read_label(text: &str) -> Option<Label> {
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: &str = r#"{"extra_args":null,"extra_binds":null,"extra_env":null}"#;

    #[test]
    fn empty_parameters_are_written_as_cke_writes_them() {
        let empty = ServiceParams::default();
        assert_eq!(write_label(&empty, &empty), format!(r#"{{"builtin":{NOTHING},"extra":{NOTHING}}}"#));
    }

    #[test]
    fn a_label_is_read_as_it_was_written() {
        let params = ServiceParams {
            args: vec!["--a=<b> & 'c'".to_owned(), "two\nlines".to_owned()],
            binds: vec![Mount {
                source: "/a".to_owned(),
                destination: "/b".to_owned(),
                read_only: true,
                propagation: String::new(),
                selinux_label: "Z".to_owned(),
            }],
            env: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
        };
        let text = write_label(&params, &ServiceParams::default());
        assert_eq!(
            text,
            format!(
                "{}{}{NOTHING}}}",
                r#"{"builtin":{"extra_args":["--a=\u003cb\u003e \u0026 'c'","two\nlines"],"extra_binds":[{"source":"/a","#,
                r#""destination":"/b","read_only":true,"propagation":"","selinux_label":"Z"}],"extra_env":{"A":"1"}},"extra":"#,
            )
        );
        assert_eq!(read_label(&text), Some(Label { builtin: params, extra: ServiceParams::default() }));
    }

    #[test]
    fn other_texts_are_not_labels() {
        for text in ["", "x", "null", "[]", "{", r#"{"builtin": []}"#, r#"{"builtin": {"extra_args": "x"}}"#]
        {
            assert_eq!(read_label(text), None, "{text}");
        }
        assert_eq!(read_label(r#"{"builtin": null}"#), Some(Label::default()));
    }
}
