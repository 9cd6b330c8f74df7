//! Tests of fetches from a real Prometheus (Debian's) that scrapes a test exporter whose values change and vanish.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use madako_domain::placement::core::MetricsProviderKind;
use madako_protocol::placement::providers::{FetchError, Sample, Samples};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::fake::{Fake, Reply};
use super::{DEADLINE, HOSTILE, fetch, prometheus_at, value};

const PROMETHEUS: &str = "/usr/bin/prometheus";

/// A running server; dropping this stops it.
struct Server {
    provider: MetricsProviderKind,
    child: Child,
    _directory: TempDir,
}

/// Starts a server that scrapes an exporter four times a second. `None` if Prometheus is not installed; prints the
/// reason.
fn start(exporter: &str) -> Option<Server> {
    if !Path::new(PROMETHEUS).exists() {
        assert!(std::env::var_os("CI").is_none(), "{PROMETHEUS} is missing: install Debian's prometheus");
        println!("skipped: {PROMETHEUS} is missing (Debian's prometheus has it)");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = format!(
        "global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}\n\
         scrape_configs: [{{job_name: ours, static_configs: [{{targets: ['{exporter}']}}]}}]\n"
    );
    let file = directory.path().join("prometheus.yml");
    std::fs::write(&file, config).unwrap();
    let log = File::create(directory.path().join("log")).unwrap();
    let child = Command::new(PROMETHEUS)
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .arg("--log.level=warn")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let provider = prometheus_at(&format!("http://127.0.0.1:{port}"));
    Some(Server { provider, child, _directory: directory })
}

/// Repeats the request until the answer is as expected.
async fn until(server: &Server, names: &[&str], expected: impl Fn(&Samples) -> bool) -> Samples {
    let begun = Instant::now();
    loop {
        let samples = fetch(&server.provider, names).await;
        if expected(&samples) {
            return samples;
        }
        assert!(begun.elapsed() < DEADLINE, "it stays at {samples:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

const BEGINNING: &str = "load 1.5\n\
    loads 9\n\
    temperature{zone=\"b\"} 2\n\
    temperature{zone=\"a\"} 3\n\
    job:rate:sum -1e-3\n\
    broken NaN\n\
    endless +Inf\n";

#[tokio::test]
async fn a_real_prometheus_whose_values_change_and_vanish() {
    let page = Arc::new(Mutex::new(BEGINNING.to_owned()));
    let shown = Arc::clone(&page);
    let exporter = Fake::start(move |_| Reply::Whole(200, shown.lock().unwrap().clone())).await;
    let Some(mut server) = start(exporter.url.trim_start_matches("http://")) else { return };

    let names = ["load", "temperature", "job:rate:sum", "broken", "endless", "loa", "load.*", "absent"];
    let samples = until(&server, &names, |samples| samples["load"].is_ok()).await;
    assert_eq!(samples["load"], value(1.5));
    assert_eq!(samples["job:rate:sum"], value(-0.001));
    let Ok(Sample { value: first, note: Some(note) }) = &samples["temperature"] else {
        panic!("{samples:?}")
    };
    assert_eq!(*first, 3.0);
    assert!(note.starts_with("the first of 2 series") && note.contains("zone=\"a\""), "{note}");
    for name in ["broken", "endless"] {
        assert!(matches!(samples[name], Err(FetchError::NotFinite { .. })), "{samples:?}");
    }
    for name in ["loa", "load.*", "absent"] {
        assert!(matches!(samples[name], Err(FetchError::NotFound { .. })), "{samples:?}");
    }

    // No name changes the query: none of these metrics exists, and the others are still found.
    let mut all = HOSTILE.to_vec();
    all.push("load");
    let samples = fetch(&server.provider, &all).await;
    assert_eq!(samples["load"], value(1.5));
    for name in HOSTILE {
        assert!(matches!(samples[name], Err(FetchError::NotFound { .. })), "{name:?}: {:?}", samples[name]);
    }
    // So many that they are posted.
    let many: Vec<String> =
        (0..300).map(|number| format!("a_rather_long_name_of_a_metric_{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).chain(["load"]).collect();
    assert_eq!(fetch(&server.provider, &many).await["load"], value(1.5));

    *page.lock().unwrap() = BEGINNING.replace("load 1.5", "load 2.5");
    until(&server, &["load"], |samples| samples["load"] == value(2.5)).await;

    *page.lock().unwrap() = BEGINNING.replace("load 1.5\n", "");
    let samples = until(&server, &["load", "loads"], |samples| samples["load"].is_err()).await;
    assert!(matches!(samples["load"], Err(FetchError::NotFound { .. })), "{samples:?}");
    assert_eq!(samples["loads"], value(9.0));

    // After the exporter is gone, none of its series is left.
    drop(exporter);
    until(&server, &["loads"], |samples| matches!(samples["loads"], Err(FetchError::NotFound { .. }))).await;

    server.child.kill().await.unwrap();
    let samples = fetch(&server.provider, &["loads"]).await;
    assert!(matches!(samples["loads"], Err(FetchError::Unreachable { .. })), "{samples:?}");
}
