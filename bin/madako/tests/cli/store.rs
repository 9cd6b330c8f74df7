//! `madako store`: verified and restored from outside.

use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, Options};

use crate::program::{Files, madako};

#[tokio::test]
async fn a_store_is_verified_and_restored() {
    let files = Files::new();
    let data = files.path("data");
    let store =
        EmbeddedEtcd::open(Options::new(Backend::File(data.clone().into()), Commit::Thread, 1)).unwrap();
    let mut client = store.client().await.unwrap();
    client.put("key", "saved", None).await.unwrap();
    let mut stream = client.snapshot().await.unwrap();
    let mut snapshot = Vec::new();
    while let Some(part) = stream.message().await.unwrap() {
        snapshot.extend_from_slice(part.blob());
    }
    let snapshot = files.write("backup.db", snapshot);
    client.put("key", "later", None).await.unwrap();
    let in_use = madako(&["store", "verify", &data]).await.refused(1);
    assert!(in_use.contains("in use by another process"), "{in_use}");
    store.shutdown().await;

    let whole = madako(&["store", "verify", &data]).await.calm();
    assert!(whole.contains("is whole: revision 3, "), "{whole}");
    let json = madako(&["store", "verify", &data, "-o", "json"]).await.json();
    assert_eq!((json["revision"].as_i64(), json["closed"].as_bool()), (Some(3), Some(true)));

    let restore = ["store", "restore", snapshot.as_str(), "--to", data.as_str()];
    let refused = madako(&restore).await.refused(2);
    assert!(refused.contains("--force"), "{refused}");
    let json = madako(&[&restore[..], &["--force", "-o", "json"]].concat()).await.json();
    assert_eq!(json["revision"], 2);
    let kept = json["kept"].as_str().unwrap().to_owned();
    let now = madako(&["store", "verify", &data, "-o", "json"]).await.json();
    let before = madako(&["store", "verify", &kept, "-o", "json"]).await.json();
    assert_eq!((now["revision"].as_i64(), before["revision"].as_i64()), (Some(2), Some(3)));

    let cut_off = files.write("cut-off.db", &std::fs::read(&snapshot).unwrap()[..5_000]);
    let refused = madako(&["store", "restore", &cut_off, "--to", &files.path("other")]).await.refused(2);
    assert!(refused.contains("SHA-256"), "{refused}");
    std::fs::write(&kept, b"not a store").unwrap();
    let refused = madako(&["store", "verify", &kept]).await.refused(1);
    assert!(refused.contains("is damaged"), "{refused}");
}
