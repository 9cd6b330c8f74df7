//! Role-based authorization: pure, over the rules of a user's roles.
//!
//! A rule grants a verb on resources of an API in namespaces; an empty text stands for all of them. No rule denies.
//! A resource without a namespace needs no namespace in the rule. A list over all namespaces needs the verb in at least
//! one and shows the namespaces that the rules name.

use std::collections::BTreeSet;

use madako_domain::placement::core::{RoleRule, Verb};
use madako_domain::placement::kind::{Kind, Subresource};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestScope<'a> {
    Namespace(&'a str),
    Everywhere,
    /// Resources without a namespace.
    Global,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RequestedAccess<'a> {
    pub(super) kind: Kind,
    pub(super) part: Option<Subresource>,
    pub(super) verb: Verb,
    pub(super) scope: RequestScope<'a>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GrantedScope {
    Whole,
    Namespaces(BTreeSet<String>),
}

impl GrantedScope {
    /// True if the user may see resources of the namespace.
    pub(super) fn includes(&self, namespace: Option<&str>) -> bool {
        match self {
            Self::Whole => true,
            Self::Namespaces(names) => namespace.is_some_and(|namespace| names.contains(namespace)),
        }
    }
}

/// Rights that the rules grant to a request; `None` if they grant none.
pub(super) fn granted_scope<'r>(
    wish: &RequestedAccess<'_>,
    rules: impl Iterator<Item = &'r RoleRule>,
) -> Option<GrantedScope> {
    let resource = match wish.part {
        // Krake has no right of its own for a retry.
        Some(Subresource::Retry) => format!("{}/{}", wish.kind.plural(), Subresource::Status.name()),
        Some(part) => format!("{}/{}", wish.kind.plural(), part.name()),
        None => wish.kind.plural().to_owned(),
    };
    let has = |names: &[String], name: &str| names.iter().any(|known| known == name || known.is_empty());
    let mut named: Option<BTreeSet<String>> = None;
    for rule in rules {
        let applies = (rule.api == wish.kind.api().name() || rule.api.is_empty())
            && rule.verbs.contains(&wish.verb)
            && has(&rule.resources, &resource);
        if !applies {
            continue;
        }
        match wish.scope {
            RequestScope::Global => return Some(GrantedScope::Whole),
            RequestScope::Namespace(namespace) if has(&rule.namespaces, namespace) => {
                return Some(GrantedScope::Whole);
            }
            RequestScope::Namespace(_) => {}
            RequestScope::Everywhere if rule.namespaces.iter().any(String::is_empty) => {
                return Some(GrantedScope::Whole);
            }
            // A rule without any namespace grants the verb nowhere.
            RequestScope::Everywhere if rule.namespaces.is_empty() => {}
            RequestScope::Everywhere => named.get_or_insert_default().extend(rule.namespaces.iter().cloned()),
        }
    }
    named.map(GrantedScope::Namespaces)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(api: &str, resources: &[&str], namespaces: &[&str], verbs: &[Verb]) -> RoleRule {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        RoleRule {
            api: api.to_owned(),
            resources: texts(resources),
            namespaces: texts(namespaces),
            verbs: verbs.to_vec(),
            rest: Default::default(),
        }
    }

    const fn wish(verb: Verb, place: RequestScope<'_>) -> RequestedAccess<'_> {
        RequestedAccess { kind: Kind::Application, part: None, verb, scope: place }
    }

    fn whole(wish: &RequestedAccess<'_>, rules: &[RoleRule]) -> bool {
        granted_scope(wish, rules.iter()) == Some(GrantedScope::Whole)
    }

    #[test]
    fn role_grants_exactly_its_rule() {
        let wish = wish(Verb::Get, RequestScope::Namespace("a"));
        for (expected, rule) in [
            (true, rule("kubernetes", &["applications"], &["a"], &[Verb::Get])),
            (true, rule("", &[""], &[""], &[Verb::List, Verb::Get])),
            (true, rule("kubernetes", &["clusters", "applications"], &["b", "a"], &[Verb::Get])),
            (false, rule("core", &["applications"], &["a"], &[Verb::Get])),
            (false, rule("kubernetes", &["clusters"], &["a"], &[Verb::Get])),
            (false, rule("kubernetes", &["applications/status"], &["a"], &[Verb::Get])),
            (false, rule("kubernetes", &["applications"], &["b"], &[Verb::Get])),
            (false, rule("kubernetes", &["applications"], &[], &[Verb::Get])),
            (false, rule("kubernetes", &["applications"], &["a"], &[Verb::List])),
            (false, rule("kubernetes", &[], &["a"], &[Verb::Get])),
        ] {
            assert_eq!(whole(&wish, std::slice::from_ref(&rule)), expected, "{rule:?}");
        }
        assert!(!whole(&wish, &[]));
    }

    #[test]
    fn subresources_have_their_own_rights_and_a_retry_needs_that_of_the_status() {
        let wish =
            |part| RequestedAccess { part: Some(part), ..wish(Verb::Update, RequestScope::Namespace("a")) };
        let status = [rule("kubernetes", &["applications/status"], &["a"], &[Verb::Update])];
        assert!(whole(&wish(Subresource::Status), &status));
        assert!(whole(&wish(Subresource::Retry), &status));
        assert!(!whole(&wish(Subresource::Binding), &status));
        let object = [rule("kubernetes", &["applications"], &["a"], &[Verb::Update])];
        assert!(!whole(&wish(Subresource::Status), &object));
    }

    #[test]
    fn a_list_over_all_namespaces_shows_those_that_the_roles_name() {
        let wish = wish(Verb::List, RequestScope::Everywhere);
        let of = |namespaces: &[&str]| rule("", &["applications"], namespaces, &[Verb::List]);
        let names = |names: &[&str]| {
            Some(GrantedScope::Namespaces(names.iter().map(|&name| name.to_owned()).collect()))
        };
        assert_eq!(granted_scope(&wish, [of(&["a"]), of(&["b", "a"])].iter()), names(&["a", "b"]));
        assert_eq!(granted_scope(&wish, [of(&["a"]), of(&[""])].iter()), Some(GrantedScope::Whole));
        assert_eq!(granted_scope(&wish, [of(&[])].iter()), None);
        let other_verb = rule("", &["applications"], &["c"], &[Verb::Get]);
        assert_eq!(granted_scope(&wish, [of(&["a"]), other_verb].iter()), names(&["a"]));
        let shown = names(&["a"]).unwrap();
        assert!(shown.includes(Some("a")) && !shown.includes(Some("b")) && !shown.includes(None));
    }

    #[test]
    fn cluster_scoped_resource_needs_no_namespace_in_its_rule() {
        let wish =
            RequestedAccess { kind: Kind::Role, part: None, verb: Verb::List, scope: RequestScope::Global };
        assert!(whole(&wish, &[rule("core", &["roles"], &["a"], &[Verb::List])]));
        assert!(whole(&wish, &[rule("core", &["roles"], &[], &[Verb::List])]));
    }
}
