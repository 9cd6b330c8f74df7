//! Names of container images, and the order in which their sources count: the key `madako/images`, the configuration of
//! the service, the image that all control plane nodes have, CKE's own image.
//!
//! Does not: know which nodes have which image ([`FoundImage`] is an input), or compare versions.

use std::collections::{BTreeMap, BTreeSet};

use madako_json::input::{InputError, Problems};
use madako_json::named;
use madako_json::strict::tree::{Tree, shown_text};
use madako_json::strict::{Path, yaml};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::MAX_IMAGE;

/// The use of an image, in the order of `ckecli images`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[derive(strum::Display, strum::IntoStaticStr, strum::EnumString, strum::VariantNames, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ImageName {
    /// etcd with its tools.
    Etcd,
    /// Rivers, and the programs that write files on nodes.
    Tools,
    /// The components of Kubernetes.
    Kubernetes,
    /// The sandbox of a pod.
    Pause,
    /// The cluster's DNS server.
    Coredns,
    /// The DNS cache of each node.
    Unbound,
    /// The metrics of that cache.
    UnboundExporter,
}

named!(ImageName array);

impl ImageName {
    /// The image of CKE 1.30.
    #[must_use]
    pub fn default_image(self) -> &'static str {
        match self {
            Self::Etcd => "ghcr.io/cybozu/etcd:3.5.15.1",
            Self::Tools => "ghcr.io/cybozu-go/cke-tools:1.30.0",
            Self::Kubernetes => "ghcr.io/cybozu/kubernetes:1.30.5.1",
            Self::Pause => "ghcr.io/cybozu/pause:3.9.0.6",
            Self::Coredns => "ghcr.io/cybozu/coredns:1.11.3.1",
            Self::Unbound => "ghcr.io/cybozu/unbound:1.21.1.1",
            Self::UnboundExporter => "ghcr.io/cybozu/unbound_exporter:0.4.6.2",
        }
    }
}

/// True if a container engine may take the text for the name of an image, and no shell for something else.
#[must_use]
pub fn is_image(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    text.len() <= MAX_IMAGE
        && text.chars().all(is_part)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// Images of some names, from one source. As JSON: `{NAME: IMAGE}`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GivenImages(pub BTreeMap<ImageName, String>);

impl GivenImages {
    /// The place for the image of a name.
    pub fn image_mut(&mut self, name: ImageName) -> &mut String {
        self.0.entry(name).or_default()
    }

    /// Reads `{NAME: IMAGE}` in YAML or JSON strictly.
    ///
    /// # Errors
    /// The error names each unknown name and each text that is not an image.
    pub fn from_yaml(text: &str) -> Result<Self, InputError> {
        let tree = yaml::read_yaml("images", text)?;
        let mut problems = Problems::default();
        let given = Self::from_tree(&tree, &mut problems);
        problems.finish("images")?;
        Ok(given)
    }

    fn from_tree(tree: &Tree, problems: &mut Problems) -> Self {
        let mut given = Self::default();
        if !matches!(tree, Tree::Object(_) | Tree::Null) {
            problems.add(Path::Root, tree.short_text(), "an object of names and images");
        }
        for (name, value) in tree.fields() {
            let path = Path::Root.field(name);
            match (name.parse::<ImageName>(), value.text()) {
                (Err(_), _) => {
                    let names = ImageName::ALL.map(|name| name.name()).join(", ");
                    problems.add(path, "an unknown name", format!("one of {names}"));
                }
                (Ok(name), Some(image)) if is_image(image) => {
                    given.0.insert(name, image.to_owned());
                }
                (Ok(name), image) => {
                    let got = image.map_or_else(|| value.short_text(), shown_text);
                    let expected = format!(
                        "the name of an image with at most {MAX_IMAGE} characters, such as {}",
                        name.default_image()
                    );
                    problems.add(path, got, expected);
                }
            }
        }
        given
    }
}

impl Serialize for GivenImages {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, image)| (name.name(), image)))
    }
}

impl<'de> Deserialize<'de> for GivenImages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let tree = Tree::deserialize(deserializer)?;
        let mut problems = Problems::default();
        let given = Self::from_tree(&tree, &mut problems);
        problems.finish("images").map_err(D::Error::custom)?;
        Ok(given)
    }
}

/// The images that control plane nodes have for one name, each with the addresses of the nodes.
pub type FoundImage = BTreeMap<String, BTreeSet<String>>;

/// The origin of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Source {
    /// The key `madako/images`.
    Key,
    /// The section `images` of the configuration.
    Configuration,
    /// All control plane nodes that have one have this image.
    Nodes,
    /// The image that CKE uses; it applies when no other source names one.
    Default,
}

named!(Source);

/// The image of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChosenImage {
    /// The image, and its origin.
    Image(String, Source),
    /// No image is given, and the control plane nodes have several: nothing starts with a guessed one.
    Unclear(FoundImage),
}

/// Chooses the image of a name.
#[must_use]
pub fn choose_image(
    name: ImageName,
    key: &GivenImages,
    configuration: &GivenImages,
    found: &FoundImage,
) -> ChosenImage {
    let given = [(key, Source::Key), (configuration, Source::Configuration)];
    if let Some((image, source)) =
        given.into_iter().find_map(|(images, source)| Some((images.0.get(&name)?, source)))
    {
        return ChosenImage::Image(image.clone(), source);
    }
    let mut images = found.keys();
    match (images.next(), images.next()) {
        (None, _) => ChosenImage::Image(name.default_image().to_owned(), Source::Default),
        (Some(image), None) => ChosenImage::Image(image.clone(), Source::Nodes),
        (Some(_), Some(_)) => ChosenImage::Unclear(found.clone()),
    }
}

/// Lists nodes with different images, for a message.
#[must_use]
pub fn list_found(found: &FoundImage) -> String {
    let nodes = found.iter().map(|(image, nodes)| {
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        format!("{image} on {}", nodes.join(", "))
    });
    nodes.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> GivenImages {
        GivenImages::from_yaml(text).unwrap()
    }

    fn found(images: &[(&str, &[&str])]) -> FoundImage {
        let nodes = |nodes: &[&str]| nodes.iter().map(|node| (*node).to_owned()).collect();
        images.iter().map(|(image, on)| ((*image).to_owned(), nodes(on))).collect()
    }

    #[test]
    fn the_key_counts_before_the_configuration_the_nodes_and_the_default() {
        let (key, file, none) =
            (given("etcd: a:1"), given("{etcd: b:1, tools: c:1}"), GivenImages::default());
        let nodes = found(&[("d:1", &["10.0.0.1", "10.0.0.2"])]);
        let choose = |name, key, file, nodes| match choose_image(name, key, file, nodes) {
            ChosenImage::Image(image, source) => format!("{image} {}", source.name()),
            ChosenImage::Unclear(found) => list_found(&found),
        };
        let empty = FoundImage::new();
        assert_eq!(choose(ImageName::Etcd, &key, &file, &nodes), "a:1 key");
        assert_eq!(choose(ImageName::Tools, &key, &file, &nodes), "c:1 configuration");
        assert_eq!(choose(ImageName::Etcd, &none, &none, &nodes), "d:1 nodes");
        assert_eq!(choose(ImageName::Pause, &none, &none, &empty), "ghcr.io/cybozu/pause:3.9.0.6 default");
        let differ = found(&[("d:1", &["10.0.0.1", "10.0.0.3"]), ("e:1", &["10.0.0.2"])]);
        assert_eq!(
            choose(ImageName::Etcd, &none, &none, &differ),
            "d:1 on 10.0.0.1, 10.0.0.3; e:1 on 10.0.0.2"
        );
        assert_eq!(choose(ImageName::Etcd, &key, &none, &differ), "a:1 key");
    }

    #[test]
    fn each_wrong_name_and_image_is_in_one_message() {
        let message =
            GivenImages::from_yaml("{etc: a, pause: --privileged, tools: 1}").unwrap_err().to_string();
        for part in
            ["etc: got an unknown name", "unbound_exporter", "pause: got \"--privileged\"", "tools: got"]
        {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
        assert!(serde_json::from_str::<GivenImages>(r#"{"etc": "a"}"#).is_err());
    }

    #[test]
    fn images_are_stored_as_an_object_by_name() {
        let images = given("{unbound_exporter: a:1, etcd: b@sha256:00}");
        let text = serde_json::to_string(&images).unwrap();
        assert_eq!(text, r#"{"etcd":"b@sha256:00","unbound_exporter":"a:1"}"#);
        assert_eq!(serde_json::from_str::<GivenImages>(&text).unwrap(), images);
    }
}
