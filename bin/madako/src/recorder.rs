//! The process's metrics: one recorder, the help texts of every crate, and the text of `/metrics`.

use std::sync::Arc;

use anyhow::Context as _;
use madako_supervisor::clock::SystemClock;
use madako_supervisor::http::MetricsText;

/// Installs the recorder; once in a process.
pub(crate) fn install_recorder() -> anyhow::Result<MetricsText> {
    let recorder = madako_http::build_recorder(Arc::new(SystemClock)).context(
        "cannot create the recorder of metrics: the program has invalid buckets, which is a fault of Madako",
    )?;
    let page = recorder.page();
    metrics::set_global_recorder(recorder).ok().context(
        "cannot install the recorder of metrics: this process has one, which is a fault of Madako",
    )?;
    madako_supervisor::describe_metrics();
    Ok(Arc::new(move |scope| madako_http::metrics_text(&page, scope)))
}
