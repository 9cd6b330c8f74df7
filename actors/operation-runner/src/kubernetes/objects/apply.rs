//! The decision which resources are applied next. Each resource counts by itself: a resource that fails backs off alone,
//! and holds the resources of later ranks for [`RANK_HOLD`], no longer.

use std::collections::BTreeMap;
use std::fmt;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::certificate::Validity;
use madako_domain::keys;
use madako_domain::objects::{Annotations, FoundObject, Manifest, UserResources};
use madako_domain::resource::{ANNOTATION_IMAGE, ANNOTATION_REVISION, ResourceKey};
use madako_json::named;
use madako_json::strict::yaml;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::limits::{BACK_OFF_FIRST, BACK_OFF_MOST, RANK_HOLD};

/// A resource as it should be in Kubernetes.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedResource {
    pub key: ResourceKey,
    pub revision: i64,
    /// The images of a static resource, separated by commas.
    pub image: Option<String>,
    /// The object with the annotations of its revision and images.
    pub manifest: Manifest,
}

/// The user-defined resources, as far as they can be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadResources {
    pub wanted: Vec<WantedResource>,
    /// The reasons for which others cannot be read, by key in the store.
    pub faults: BTreeMap<String, String>,
}

impl ReadResources {
    #[must_use]
    pub fn new(stored: &UserResources) -> Self {
        let mut read = Self::default();
        for (key, (value, revision)) in &stored.0 {
            let text = std::str::from_utf8(value).map_err(|_| "it is not UTF-8".to_owned());
            match text.and_then(|text| WantedResource::of_user(key, text, *revision)) {
                Ok(wanted) => read.wanted.push(wanted),
                Err(why) => drop(read.faults.insert(key.clone(), why)),
            }
        }
        read
    }
}

impl WantedResource {
    /// A user-defined resource: its key in the store, the text, and the mod revision of the key.
    ///
    /// # Errors
    /// The text is not a manifest, or that of another key. The error shows no value.
    pub fn of_user(stored: &str, text: &str, revision: i64) -> Result<Self, String> {
        let mut manifest: Value = yaml::parse(text)?;
        let key = ResourceKey::of_manifest(&manifest).map_err(|wrong| wrong.to_string())?;
        if stored.strip_prefix(keys::RESOURCES) != Some(&*key.to_string()) {
            return Err(format!("the manifest is that of {key}"));
        }
        let annotations = &mut manifest["metadata"]["annotations"];
        if !annotations.is_object() && !annotations.is_null() {
            return Err("metadata.annotations: expected an object of texts".to_owned());
        }
        annotations[ANNOTATION_REVISION] = json!(revision.to_string());
        let manifest = Manifest::new(manifest).map_err(|wrong| wrong.to_string())?;
        Ok(Self { key, revision, image: None, manifest })
    }

    /// The difference of an applied object; `None` if it is as wanted.
    #[must_use]
    pub fn difference(&self, annotations: &Annotations) -> Option<ResourceDifference> {
        let revision = annotations.get(ANNOTATION_REVISION);
        if revision != Some(&self.revision.to_string()) {
            return Some(ResourceDifference::Revision { has: revision.cloned(), wanted: self.revision });
        }
        let wanted = self.image.as_ref()?;
        let image = annotations.get(ANNOTATION_IMAGE);
        (image != Some(wanted))
            .then(|| ResourceDifference::Image { has: image.cloned(), wanted: wanted.clone() })
    }
}

/// The reason why a resource is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourceDifference {
    Missing,
    Revision {
        has: Option<String>,
        wanted: i64,
    },
    Image {
        has: Option<String>,
        wanted: String,
    },
    /// The certificate of a webhook ends soon. `None`: the Secret has none that can be read.
    Certificate {
        ends: Option<OffsetDateTime>,
    },
}

impl fmt::Display for ResourceDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |has: &Option<String>| has.clone().unwrap_or_else(|| "none".to_owned());
        match self {
            Self::Missing => f.write_str("the object does not exist"),
            Self::Revision { has, wanted } => {
                write!(f, "the object has revision {}, and {wanted} is wanted", or_none(has))
            }
            Self::Image { has, wanted } => {
                write!(f, "the object has images {}, and {wanted} are wanted", or_none(has))
            }
            Self::Certificate { ends: Some(ends) } => {
                write!(f, "the certificate of the webhook ends at {ends}, and is issued anew")
            }
            Self::Certificate { ends: None } => f.write_str("the object has no certificate that can be read"),
        }
    }
}

/// Failed attempts to apply an object with the same wanted content, since its last success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedApply {
    /// The wanted content, as [`fingerprint`] computes it.
    wanted: String,
    count: u32,
    since: OffsetDateTime,
    until: OffsetDateTime,
    why: String,
}

/// A text that differs between two wanted contents.
#[must_use]
pub fn fingerprint(wanted: &Manifest) -> String {
    format!("{:x}", md5::compute(wanted.content().to_string()))
}

impl FailedApply {
    /// Counts a failure at `now`. The resource backs off for 30 s, twice as long each further time, at most 10 min.
    #[must_use]
    pub fn new(last: Option<&Self>, wanted: &str, why: String, now: OffsetDateTime) -> Self {
        let last = last.filter(|last| last.wanted == wanted);
        let count = last.map_or(0, |last| last.count);
        let pause = BACK_OFF_FIRST.saturating_mul(1 << count.min(16)).min(BACK_OFF_MOST);
        let since = last.map_or(now, |last| last.since);
        Self { wanted: wanted.to_owned(), count: count + 1, since, until: now + pause, why }
    }

    /// The next time after `now` at which the object is tried again, or holds later ranks no more.
    #[must_use]
    pub fn next_change(&self, now: OffsetDateTime) -> Option<OffsetDateTime> {
        [self.until, self.holds_until()].into_iter().filter(|at| *at > now).min()
    }

    /// The failure, if it was that of the same wanted content.
    #[must_use]
    pub fn for_content(found: Option<&Self>, wanted: impl FnOnce() -> String) -> Option<&Self> {
        let found = found?;
        (found.wanted == wanted()).then_some(found)
    }

    /// The reason for which the object waits at `now`.
    #[must_use]
    pub fn reason(&self, now: OffsetDateTime) -> Option<ResourceReason> {
        (now < self.until).then(|| ResourceReason::BackingOff { until: self.until, why: self.why.clone() })
    }

    /// The end of the time for which the resource holds later ranks.
    fn holds_until(&self) -> OffsetDateTime {
        self.since + RANK_HOLD
    }
}

/// All inputs of a decision beside the wanted resources.
#[derive(Debug, Clone)]
pub struct ApplyView<'v> {
    /// A resource that is missing here was not read.
    pub found: &'v BTreeMap<ResourceKey, FoundObject<Annotations>>,
    /// The certificates of webhooks, by their Secret.
    pub certificates: &'v BTreeMap<ResourceKey, Option<Validity>>,
    pub failed: &'v BTreeMap<ResourceKey, FailedApply>,
    /// More than half of the cluster's nodes are ready: Deployments find a place.
    pub enough_ready: bool,
    /// The reason why the versions of the API servers forbid each apply.
    pub versions: Option<&'v ResourceReason>,
    pub now: OffsetDateTime,
}

impl ApplyView<'_> {
    /// The difference of an object from a wanted resource; `None` if it is as wanted.
    fn difference(&self, resource: &WantedResource, found: &Annotations) -> Option<ResourceDifference> {
        let of_certificate = || match self.certificates.get(&resource.key)? {
            Some(validity) => validity
                .must_renew(self.now)
                .then_some(ResourceDifference::Certificate { ends: Some(validity.to) }),
            None => Some(ResourceDifference::Certificate { ends: None }),
        };
        resource.difference(found).or_else(of_certificate)
    }
}

/// A resource that is not as wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueResource {
    pub key: ResourceKey,
    pub why: ResourceDifference,
    /// `None`: it is applied now.
    pub held: Option<ResourceReason>,
}

/// The reason why an object is not applied now.
#[derive(Debug, Clone, PartialEq, Eq, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum ResourceReason {
    KindUnknown,
    /// API servers of two minor versions may default the same manifest differently.
    MixedVersions(String),
    /// One of several API servers did not report its version.
    UnknownVersion {
        servers: String,
    },
    FewNodesReady,
    BackingOff {
        until: OffsetDateTime,
        why: String,
    },
    /// A resource of an earlier rank is not applied yet.
    Rank {
        behind: ResourceKey,
    },
}

named!(ResourceReason);

impl fmt::Display for ResourceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KindUnknown => f.write_str("the API server does not know the kind: apply its definition"),
            Self::MixedVersions(versions) => write!(f, "API servers of several versions serve: {versions}"),
            Self::UnknownVersion { servers } => {
                write!(
                    f,
                    "the API server of {servers} did not tell its version, which may be another minor one"
                )
            }
            Self::FewNodesReady => f.write_str("no more than half of the nodes are ready"),
            Self::BackingOff { until, why } => write!(f, "it failed, and is tried again at {until}: {why}"),
            Self::Rank { behind } => write!(f, "{behind} comes first"),
        }
    }
}

/// The resources that are not as wanted, in the order of application.
#[must_use]
pub fn due_resources(wanted: &[WantedResource], view: &ApplyView<'_>) -> Vec<DueResource> {
    let mut wanted: Vec<&WantedResource> = wanted.iter().collect();
    wanted.sort_by(|a, b| a.key.cmp(&b.key));
    let mut due: Vec<DueResource> = Vec::new();
    // The first resource that is due, or that failed less than the hold ago.
    let mut first: Option<&ResourceKey> = None;
    for resource in wanted {
        let key = &resource.key;
        let (why, unknown) = match view.found.get(key) {
            Some(FoundObject::Exists(annotations)) => match view.difference(resource, annotations) {
                Some(why) => (why, None),
                None => continue,
            },
            Some(FoundObject::Missing) => (ResourceDifference::Missing, None),
            Some(FoundObject::KindUnknown) => {
                (ResourceDifference::Missing, Some(ResourceReason::KindUnknown))
            }
            // It may be as wanted: only a read object is known to differ.
            Some(FoundObject::Unread(_)) | None => continue,
        };
        let failed = FailedApply::for_content(view.failed.get(key), || fingerprint(&resource.manifest));
        let few = key.kind == "Deployment" && !view.enough_ready;
        let held = if let Some(versions) = view.versions {
            Some(versions.clone())
        } else if unknown.is_some() {
            unknown
        } else if few {
            Some(ResourceReason::FewNodesReady)
        } else if let Some(behind) = first.filter(|first| first.rank() < key.rank()) {
            Some(ResourceReason::Rank { behind: behind.clone() })
        } else {
            failed.and_then(|failed| failed.reason(view.now))
        };
        let holds = match (&held, failed) {
            (Some(ResourceReason::KindUnknown | ResourceReason::FewNodesReady), _) => false,
            (_, Some(failed)) => is_planted(Canary::ResourceBlocksRest) || view.now < failed.holds_until(),
            (_, None) => true,
        };
        if holds && first.is_none() {
            first = Some(key);
        }
        due.push(DueResource { key: key.clone(), why, held });
    }
    due
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-21 12:00 UTC);

    fn wanted(key: &str) -> WantedResource {
        let key = ResourceKey::parse(key).unwrap();
        let metadata = json!({"name": key.name, "namespace": key.namespace});
        let manifest = json!({"apiVersion": "v1", "kind": key.kind, "metadata": metadata});
        WantedResource { key, revision: 7, image: None, manifest: Manifest::new(manifest).unwrap() }
    }

    #[derive(Default)]
    struct World {
        wanted: Vec<WantedResource>,
        found: BTreeMap<ResourceKey, FoundObject<Annotations>>,
        failed: BTreeMap<ResourceKey, FailedApply>,
        certificates: BTreeMap<ResourceKey, Option<Validity>>,
        few_ready: bool,
        versions: Option<ResourceReason>,
    }

    impl World {
        /// A world without these resources.
        fn new(keys: &[&str]) -> Self {
            let wanted: Vec<_> = keys.iter().map(|key| wanted(key)).collect();
            let found = wanted.iter().map(|resource| (resource.key.clone(), FoundObject::Missing)).collect();
            Self { wanted, found, ..Self::default() }
        }

        fn set(&mut self, key: &str, found: FoundObject<Annotations>) {
            self.found.insert(ResourceKey::parse(key).unwrap(), found);
        }

        fn fail(&mut self, key: &str, at: OffsetDateTime) {
            let key = ResourceKey::parse(key).unwrap();
            let resource = self.wanted.iter().find(|resource| resource.key == key).unwrap();
            let wanted = fingerprint(&resource.manifest);
            let failed = FailedApply::new(self.failed.get(&key), &wanted, "refused".to_owned(), at);
            self.failed.insert(key, failed);
        }

        /// Each due resource with the name of its obstacle; empty if it is applied.
        fn due(&self, now: OffsetDateTime) -> Vec<(String, &'static str)> {
            let view = ApplyView {
                found: &self.found,
                failed: &self.failed,
                certificates: &self.certificates,
                enough_ready: !self.few_ready,
                versions: self.versions.as_ref(),
                now,
            };
            let named = |due: DueResource| (due.key.to_string(), due.held.map_or("", |held| held.name()));
            due_resources(&self.wanted, &view).into_iter().map(named).collect()
        }
    }

    fn exists(revision: &str, image: Option<&str>) -> FoundObject<Annotations> {
        let mut annotations = BTreeMap::from([(ANNOTATION_REVISION.to_owned(), revision.to_owned())]);
        annotations.extend(image.map(|image| (ANNOTATION_IMAGE.to_owned(), image.to_owned())));
        FoundObject::Exists(annotations)
    }

    fn rows(rows: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
        rows.iter().map(|(key, held)| ((*key).to_owned(), *held)).collect()
    }

    #[test]
    fn revision_and_images_decide_whether_a_resource_is_applied() {
        let mut world = World::new(&["Service/a/b"]);
        let difference = |world: &World| {
            let FoundObject::Exists(annotations) = &world.found[&world.wanted[0].key] else { unreachable!() };
            world.wanted[0].difference(annotations).map(|why| why.to_string())
        };
        world.set("Service/a/b", exists("7", None));
        assert_eq!((difference(&world), world.due(NOW)), (None, Vec::new()));
        world.set("Service/a/b", exists("07", None));
        assert_eq!(difference(&world).unwrap(), "the object has revision 07, and 7 is wanted");
        world.set("Service/a/b", FoundObject::Exists(BTreeMap::new()));
        assert_eq!(difference(&world).unwrap(), "the object has revision none, and 7 is wanted");
        world.wanted[0].image = Some("i:2".to_owned());
        world.set("Service/a/b", exists("7", Some("i:1")));
        assert_eq!(difference(&world).unwrap(), "the object has images i:1, and i:2 are wanted");
        world.set("Service/a/b", exists("7", Some("i:2")));
        assert_eq!(difference(&world), None);
    }

    #[test]
    fn resources_are_applied_rank_by_rank() {
        let mut world = World::new(&["Deployment/a/d", "Namespace/a", "ConfigMap/a/c", "Namespace/b"]);
        assert_eq!(
            world.due(NOW),
            rows(&[
                ("Namespace/a", ""),
                ("Namespace/b", ""),
                ("ConfigMap/a/c", "rank"),
                ("Deployment/a/d", "rank")
            ])
        );
        world.set("Namespace/a", exists("7", None));
        world.set("Namespace/b", exists("7", None));
        assert_eq!(world.due(NOW), rows(&[("ConfigMap/a/c", ""), ("Deployment/a/d", "rank")]));
    }

    #[test]
    fn failed_resource_backs_off_alone_and_holds_later_ranks_for_half_a_minute() {
        let mut world = World::new(&["Namespace/a", "Namespace/b", "Service/a/s"]);
        world.fail("Namespace/a", NOW);
        world.set("Namespace/b", exists("7", None));
        let after = |seconds| NOW + Duration::from_secs(seconds);
        assert_eq!(world.due(after(29)), rows(&[("Namespace/a", "backing-off"), ("Service/a/s", "rank")]));
        assert_eq!(world.due(after(30)), rows(&[("Namespace/a", ""), ("Service/a/s", "")]));
        // Further failures hold no other resource.
        world.fail("Namespace/a", after(30));
        assert_eq!(world.due(after(31)), rows(&[("Namespace/a", "backing-off"), ("Service/a/s", "")]));
        assert_eq!(world.due(after(89))[0].1, "backing-off");
        assert_eq!(world.due(after(90))[0].1, "");
        for _ in 0..40 {
            world.fail("Namespace/a", after(90));
        }
        assert_eq!(world.due(after(90 + 599))[0].1, "backing-off");
        assert_eq!(world.due(after(90 + 600))[0].1, "");
    }

    #[test]
    fn changed_definition_is_applied_at_once() {
        let mut world = World::new(&["Namespace/a"]);
        world.fail("Namespace/a", NOW);
        assert_eq!(world.due(NOW), rows(&[("Namespace/a", "backing-off")]));
        let mut changed = world.wanted[0].manifest.content().clone();
        changed["metadata"]["labels"] = json!({"x": "y"});
        world.wanted[0].manifest = Manifest::new(changed).unwrap();
        assert_eq!(world.due(NOW), rows(&[("Namespace/a", "")]));
    }

    #[test]
    fn unreadable_definition_is_named_and_costs_no_other() {
        let text = |name: &str| format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}");
        let stored = [("a", text("a").into_bytes()), ("b", text("c").into_bytes()), ("d", vec![0xff])];
        let stored = stored.map(|(name, text)| (format!("resource/Namespace/{name}"), (text.into(), 3)));
        let read = ReadResources::new(&UserResources(stored.into()));
        let keys: Vec<String> = read.wanted.iter().map(|wanted| wanted.key.to_string()).collect();
        assert_eq!(keys, ["Namespace/a"]);
        let faults: Vec<&str> = read.faults.keys().map(String::as_str).collect();
        assert_eq!(faults, ["resource/Namespace/b", "resource/Namespace/d"]);
    }

    #[test]
    fn unknown_kind_and_unreadable_object_hold_no_other_resource() {
        let mut world = World::new(&["Widget/w", "Deployment/a/d", "Service/a/s", "Role/a/r"]);
        world.set("Widget/w", FoundObject::KindUnknown);
        world.set("Role/a/r", FoundObject::Unread("403".to_owned()));
        world.few_ready = true;
        assert_eq!(
            world.due(NOW),
            rows(&[("Widget/w", "kind-unknown"), ("Deployment/a/d", "few-nodes-ready"), ("Service/a/s", "")])
        );
        world.found.clear();
        assert_eq!(world.due(NOW), Vec::new(), "what was not read is not known to differ");
    }

    #[test]
    fn nothing_is_applied_while_api_servers_of_two_versions_serve() {
        let mut world = World::new(&["Namespace/a", "Service/a/s"]);
        world.versions = Some(ResourceReason::MixedVersions("1.33, 1.34".to_owned()));
        let all = rows(&[("Namespace/a", "mixed-versions"), ("Service/a/s", "mixed-versions")]);
        assert_eq!(world.due(NOW), all);
    }

    #[test]
    fn certificate_of_a_webhook_is_issued_anew_before_it_ends() {
        let mut world = World::new(&["Secret/a/s"]);
        world.set("Secret/a/s", exists("7", None));
        assert_eq!(world.due(NOW), Vec::new(), "it asks for no certificate");
        let from = NOW - Duration::from_secs(3600 * 24 * 365);
        for (days, expected) in [(31, Vec::new()), (29, rows(&[("Secret/a/s", "")]))] {
            let validity = Validity { from, to: NOW + Duration::from_secs(3600 * 24 * days) };
            world.certificates = [(world.wanted[0].key.clone(), Some(validity))].into();
            assert_eq!(world.due(NOW), expected, "{days} days are left");
        }
        world.certificates = [(world.wanted[0].key.clone(), None)].into();
        assert_eq!(world.due(NOW), rows(&[("Secret/a/s", "")]));
    }

    #[test]
    fn user_resource_gets_its_revision_and_keeps_its_annotations() {
        let text =
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: a, annotations: {x: 'y'}}\n";
        let resource = WantedResource::of_user("resource/ConfigMap/a/c", text, 12).unwrap();
        let annotations = &resource.manifest.content()["metadata"]["annotations"];
        assert_eq!(*annotations, json!({"x": "y", ANNOTATION_REVISION: "12"}));
        for (key, text, why) in [
            ("resource/ConfigMap/a/d", text.to_owned(), "the manifest is that of ConfigMap/a/c"),
            ("resource/ConfigMap/a/c", text.replace("{x: 'y'}", "hunter2"), "metadata.annotations: expected"),
            ("resource/ConfigMap/a/c", text.replace("kind: ConfigMap", "kind: 'hunter2"), "line"),
        ] {
            let error = WantedResource::of_user(key, &text, 1).unwrap_err();
            assert!(error.contains(why) && !error.contains("hunter2"), "{error}");
        }
    }
}
