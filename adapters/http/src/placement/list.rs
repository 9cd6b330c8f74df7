//! Assembles the lists of the placement API from resources that are already serialized.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::{BufMut as _, BytesMut};
use madako_domain::placement::kind::Kind;
use madako_domain::placement::objects::Stored;
use madako_protocol::placement::objects::Selection;

use super::problem::Problem;
use super::rbac::GrantedScope;
use super::selector::{Page, Selector, continue_token};
use super::service::{JSON, RequestContext};

impl RequestContext {
    /// The resources of a kind that the user may see and that match the query.
    pub(super) async fn list(
        mut self,
        kind: Kind,
        namespace: Option<&str>,
        granted: &GrantedScope,
        selector: &Selector,
    ) -> Result<Response, Problem> {
        let page = Page::read(&self.query, kind)?;
        self.refresh().await?;
        let (_, mut items) = self.service.api.objects.list(Selection { kind, namespace });
        items.retain(|stored| {
            granted.includes(stored.key.namespace.as_deref())
                && selector.selects(&stored.object.metadata().labels)
        });
        let metadata = cut_to_page(&mut items, &page);
        let body = list_body(kind, &metadata, items.iter().map(|stored| &stored.wire));
        Ok(([(header::CONTENT_TYPE, JSON)], body).into_response())
    }
}

/// Cuts a list in key order to a page. Returns the list's metadata with the position at which it continues.
fn cut_to_page(items: &mut Vec<Arc<Stored>>, page: &Page) -> String {
    if let Some(after) = &page.after {
        items.drain(..items.partition_point(|stored| stored.key.etcd_key() <= *after));
    }
    match page.limit {
        Some(limit) if items.len() > limit => {
            items.truncate(limit);
            let last = items.last().map(|stored| continue_token(&stored.key.etcd_key())).unwrap_or_default();
            format!(r#"{{"continue": "{last}"}}"#)
        }
        _ => "{}".to_owned(),
    }
}

fn list_body<'a>(
    kind: Kind,
    metadata: &str,
    items: impl ExactSizeIterator<Item = &'a Bytes> + Clone,
) -> Bytes {
    const BETWEEN: &[u8] = b", ";
    let head = format!(
        r#"{{"api": "{}", "kind": "{}List", "metadata": {metadata}, "items": ["#,
        kind.api().name(),
        kind.name()
    );
    let size: usize = items.clone().map(|item| item.len() + BETWEEN.len()).sum();
    let mut body = BytesMut::with_capacity(head.len() + size + 2);
    body.put_slice(head.as_bytes());
    for (place, item) in items.enumerate() {
        if place > 0 {
            body.put_slice(BETWEEN);
        }
        body.put_slice(item);
    }
    body.put_slice(b"]}");
    body.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_krakes_form() {
        let items = [Bytes::from_static(b"{\"a\": 1}"), Bytes::from_static(b"{}")];
        assert_eq!(
            list_body(Kind::Application, "{}", items.iter()),
            r#"{"api": "kubernetes", "kind": "ApplicationList", "metadata": {}, "items": [{"a": 1}, {}]}"#
        );
        assert_eq!(
            list_body(Kind::Role, "{}", [].iter()),
            r#"{"api": "core", "kind": "RoleList", "metadata": {}, "items": []}"#
        );
    }
}
