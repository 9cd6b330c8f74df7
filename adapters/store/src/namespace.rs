//! Converts keys of the service to absolute etcd keys below its prefix.
//!
//! The prefix is put before each key unchanged, with or without a trailing slash, as in CKE.

/// The prefix of every key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Namespace(String);

/// A half-open range of keys, in etcd's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) from: Vec<u8>,
    /// The first key after the range; a single zero byte means no end.
    pub(crate) end: Vec<u8>,
}

impl Namespace {
    pub(crate) fn new(prefix: &str) -> Self {
        Self(prefix.to_owned())
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.0
    }

    pub(crate) fn absolute_key(&self, key: &str) -> String {
        format!("{}{key}", self.0)
    }

    /// The relative key. `None` if it is not UTF-8 or not below the prefix.
    pub(crate) fn relative_key(&self, key: &[u8]) -> Option<String> {
        let key = std::str::from_utf8(key).ok()?;
        key.strip_prefix(self.0.as_str()).map(str::to_owned)
    }

    pub(crate) fn key_range(&self, prefix: &str) -> Range {
        let from = self.absolute_key(prefix).into_bytes();
        if from.is_empty() {
            // etcd refuses an empty key; the least key is a zero byte.
            return Range { from: vec![0], end: vec![0] };
        }
        let mut end = from.clone();
        // The least string above all strings with the prefix: the last byte plus one. UTF-8 has no byte 0xff, so it
        // always exists.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        Range { from, end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_is_put_before_each_key_as_it_is() {
        assert_eq!(Namespace::new("/cke/").absolute_key("leader//1"), "/cke/leader//1");
        assert_eq!(Namespace::new("/cke").absolute_key("cluster"), "/ckecluster");
        assert_eq!(Namespace::new("/cke").relative_key(b"/ckecluster").as_deref(), Some("cluster"));
        assert_eq!(Namespace::new("/cke/").relative_key(b"/other/cluster"), None);
        assert_eq!(Namespace::new("/cke/").relative_key(b"/cke/\xff"), None);
    }

    #[test]
    fn the_prefix_is_reported_unchanged() {
        for prefix in ["/cke/", "/cke", ""] {
            assert_eq!(Namespace::new(prefix).prefix(), prefix);
        }
    }

    #[test]
    fn a_range_holds_all_keys_with_the_prefix_and_no_other() {
        let namespace = Namespace::new("/cke/");
        let Range { from, end } = namespace.key_range("records/");
        for (key, inside) in [
            ("/cke/records/", true),
            ("/cke/records/\u{10ffff}", true),
            ("/cke/records", false),
            ("/cke/records0", false),
            ("/cke/sabakan/url", false),
        ] {
            assert_eq!(from.as_slice() <= key.as_bytes() && key.as_bytes() < end.as_slice(), inside, "{key}");
        }
        let all = Namespace::new("").key_range("");
        assert_eq!((all.from, all.end), (vec![0], vec![0]));
        assert!("é".as_bytes() < Namespace::new("").key_range("é").end.as_slice());
    }
}
