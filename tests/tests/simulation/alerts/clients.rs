//! Clients that run beside a scripted alert scenario: clients of placement's API, and a writer to etcd.

use std::time::Duration;

use madako_simulation::api::{Request, send_request};
use madako_simulation::serving::{LinkedDialer, LinkedDialers};
use madako_simulation::store_process::StoreProcess;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep};

use super::stage::{APPLICATIONS_AT, NAME};

/// Reads all applications after each pause.
pub async fn reads(dialers: LinkedDialers, pause: Duration, end: Instant) {
    while Instant::now() < end {
        let dialer = dialers.lock().unwrap().get(NAME).cloned();
        if let Some(dialer) = dialer {
            let request = Request { method: "GET", path: APPLICATIONS_AT, version: None, body: None };
            // A failed read is one of the effects under test.
            let _ = send_request(&dialer, &request).await;
        }
        sleep(pause).await;
    }
}

/// Opens a watch, and reads nothing from it during the pause.
pub async fn watches(dialer: LinkedDialer, pause: Duration) {
    let text = format!("GET {APPLICATIONS_AT}?watch HTTP/1.1\r\nHost: alpha.invalid\r\n\r\n");
    let mut stream = dialer.connect().await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    sleep(pause).await;
    let mut reported = Vec::new();
    // The result does not matter.
    let _ = stream.read_to_end(&mut reported).await;
}

/// Writes the present value of a key again after each pause.
pub async fn rewrites(store: StoreProcess, key: String, pause: Duration, end: Instant) {
    let mut client = store.connect_client().await.unwrap();
    while Instant::now() < end {
        let answer = client.get(key.clone(), None).await.unwrap();
        if let Some(kv) = answer.kvs().first() {
            client.put(key.clone(), kv.value(), None).await.unwrap();
        }
        sleep(pause).await;
    }
}
