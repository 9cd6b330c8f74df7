//! Finds the metrics, and their providers, that the resources of a copied system use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_domain::placement::objects::Stored;
use madako_metrics_fetcher::catalog::DefinitionCatalog;

use crate::walk::{CopiedMetric, CopiedProvider};

/// Returns the providers of used metrics, each with its metrics but no values, and the used metrics without a source,
/// which have none in the running system either.
#[must_use]
pub fn copied_providers(resources: &[Arc<Stored>]) -> (Vec<CopiedProvider>, Vec<String>) {
    let mut catalog = DefinitionCatalog::default();
    for stored in resources {
        catalog.put(stored);
    }
    let mut providers: BTreeMap<_, CopiedProvider> = BTreeMap::new();
    let mut undefined = Vec::new();
    for key in catalog.wanted_metrics() {
        let Ok(source) = catalog.resolve(&key) else {
            undefined.push(key.to_string());
            continue;
        };
        let provider = providers.entry(source.provider.clone()).or_insert_with(|| CopiedProvider {
            name: source.provider.name.clone(),
            kind: Arc::clone(&source.kind),
            metrics: BTreeMap::new(),
        });
        let (least, greatest) = (source.spec.min, source.spec.max);
        let fixed = !source.spec.allowed_values.is_empty() || !provider.is_elsewhere();
        let metric = provider
            .metrics
            .entry(source.name_at_provider().to_owned())
            .or_insert_with(|| CopiedMetric { names: BTreeSet::new(), least, greatest, fixed, value: None });
        metric.names.insert(key.to_string());
        // Of several definitions, the narrowest range applies to all.
        metric.least = metric.least.max(least);
        metric.greatest = metric.greatest.min(greatest).max(metric.least);
        metric.fixed |= fixed;
    }
    (providers.into_values().collect(), undefined)
}
