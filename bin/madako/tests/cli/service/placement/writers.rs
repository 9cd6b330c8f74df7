//! Test of two clients that change one application through two instances at the same time.

use serde_json::{Value, json};

use super::super::stage::{Serve, eventually};
use super::api::{Api, Reply, one};
use super::{PlacementFixture, api, key};

/// Changes that each writer makes.
const CHANGES: usize = 20;

/// Two instances that do not schedule, so that there is no other writer; `retries`: of transactions.
async fn instances(place: &PlacementFixture, retries: u32) -> [Serve; 2] {
    let settings = place.etcd.settings();
    let text = format!(
        "{settings}placement: {{controllers: false, api: {{authorization: always-allow, etcd: {{retry_transactions: \
         {retries}}}, authentication: {{strategy: {{static: {{enabled: true}}}}}}}}}}\n"
    );
    let config = place.files.write(&format!("retries-{retries}.yml"), text);
    [Serve::start(&config, "10m", "1s").await, Serve::start(&config, "10m", "1s").await]
}

async fn put(api: Api, application: &Value, if_match: Option<i64>) -> Reply {
    let name = application["metadata"]["name"].as_str().unwrap();
    let headers = if_match.map_or_else(String::new, |revision| format!("if-match: \"{revision}\"\r\n"));
    let reply = api.tell("PUT", &one("applications", name), &headers, application).await;
    reply.expect("the API answers")
}

#[tokio::test]
async fn concurrent_update_of_one_version_conflicts_and_loses_nothing() {
    let Some(place) = PlacementFixture::new().await else { return };
    let instances = instances(&place, 1).await;
    let [left, right] = [api(&instances[0]), api(&instances[1])];
    left.create("shared").await.done();

    // Both know the same version.
    let read = right.get("shared").await;
    let (revision, mut ours, mut theirs) = (read.revision, read.body.clone(), read.body);
    assert!(revision.is_some());
    ours["spec"]["backoff"] = json!(2);
    theirs["spec"]["backoff"] = json!(3);
    let (one, other) = tokio::join!(put(left, &ours, revision), put(right, &theirs, revision));
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412], "{one:?} {other:?}");
    let won = if one.status == 200 { 2 } else { 3 };
    assert_eq!(left.get("shared").await.body["spec"]["backoff"], won);

    // Each client adds its labels to the version that it read, and reads again after a conflict.
    let adds = async |api: Api, who: &str| {
        for number in 0..CHANGES {
            loop {
                let Reply { revision, body: mut application, .. } = api.get("shared").await;
                application["metadata"]["labels"][format!("{who}{number}")] = json!("yes");
                let reply = put(api, &application, revision).await;
                match reply.status {
                    200 => break,
                    412 => {}
                    _ => panic!("{reply:?}"),
                }
            }
        }
    };
    tokio::join!(adds(left, "left"), adds(right, "right"));
    let labels = left.get("shared").await.body["metadata"]["labels"].take();
    for who in ["left", "right"] {
        for number in 0..CHANGES {
            assert_eq!(labels[format!("{who}{number}")], "yes", "{who}{number} is lost: {labels}");
        }
    }
    let stored = place.keys.at_root(&key("shared")).await.unwrap();
    let writes = i64::try_from(2 + 2 * CHANGES).unwrap();
    assert_eq!(stored.version(), writes, "each success is one write, each refusal none");
}

#[tokio::test]
async fn update_without_a_version_conflicts_only_after_its_retries() {
    let Some(place) = PlacementFixture::new().await else { return };
    let hasty = instances(&place, 0).await;
    let [left, right] = [api(&hasty[0]), api(&hasty[1])];
    left.create("shared").await.done();
    let version = async || place.keys.at_root(&key("shared")).await.unwrap().version();

    // Each change is unique, so that each success is a write. The test ends when both writers have conflicted.
    let mut delay = 1;
    let mut change = |application: &Value| {
        delay += 1;
        let mut changed = application.clone();
        changed["spec"]["backoff_delay"] = json!(delay);
        changed
    };
    let application = left.get("shared").await.done();
    let mut written = 1;
    let refused = eventually("two writers meet", async || {
        let (one, other) = (change(&application), change(&application));
        let (one, other) = tokio::join!(put(left, &one, None), put(right, &other, None));
        let replies = [one, other];
        written += i64::try_from(replies.iter().filter(|reply| reply.status == 200).count()).unwrap();
        replies.into_iter().find(|reply| reply.status != 200)
    })
    .await;
    assert_eq!((refused.status, &refused.body["title"]), (409, &json!("TRANSACTION_ERROR")), "{refused:?}");
    assert_eq!(version().await, written, "each success is one write, each refusal none");

    // With enough retries no request is refused.
    let patient = instances(&place, 100).await;
    let [left, right] = [api(&patient[0]), api(&patient[1])];
    for _ in 0..CHANGES {
        let (one, other) = (change(&application), change(&application));
        let (one, other) = tokio::join!(put(left, &one, None), put(right, &other, None));
        assert_eq!((one.status, other.status), (200, 200), "{one:?} {other:?}");
        written += 2;
    }
    assert_eq!(version().await, written);
}
