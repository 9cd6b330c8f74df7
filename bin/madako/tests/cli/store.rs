//! Tests of `madako store`: etcd's own tools verify and restore its snapshots.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};

use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, Options};
use rustix::process::geteuid;

use crate::program::{Files, free_port, madako};

#[tokio::test]
async fn the_store_of_a_running_service_is_saved() {
    let files = Files::new();
    let store = EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Thread, 1)).unwrap();
    let server = store.serve("127.0.0.1:0".parse().unwrap(), None).await.unwrap();
    store.direct_client().await.unwrap().put("key", "x".repeat(300_000), None).await.unwrap();
    let config = files.write("config.yml", format!("endpoints: ['http://{}']\n", server.address()));
    let backup = files.path("backup.db");
    let save = ["--config", config.as_str(), "store", "snapshot", "--to", backup.as_str()];
    assert_eq!(madako(&[&save[..], &["-o", "json"]].concat()).await.json()["revision"], 2);
    let data = files.path("data");
    let restored = madako(&["store", "restore", &backup, "--to", &data]).await.calm();
    assert!(restored.contains("at revision 2"), "{restored}");
    server.shutdown().await;
    let unanswered = madako(&[&save[..], &["--force"]].concat()).await;
    assert_ne!(unanswered.code, 0);
    assert!(std::fs::metadata(&backup).unwrap().len() > 300_000, "the existing backup stays");
    store.shutdown().await;
}

#[tokio::test]
async fn a_store_is_verified_saved_and_restored() {
    let files = Files::new();
    let data = files.path("data");
    let store =
        EmbeddedEtcd::open(Options::new(Backend::File(data.clone().into()), Commit::Thread, 1)).unwrap();
    let mut client = store.direct_client().await.unwrap();
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
    if geteuid().is_root() {
        root_leaves_the_files_of_a_directory_to_its_owner(&data, &restore).await;
    }

    // The same, saved from the file.
    let again = files.path("again.db");
    let from_file = ["store", "snapshot", data.as_str(), "--to", again.as_str()];
    assert!(madako(&from_file).await.calm().contains("has the store at revision 2: 1 changes"));
    assert!(std::fs::read(&again).unwrap() == std::fs::read(&snapshot).unwrap());
    let refused = madako(&from_file).await.refused(2);
    assert!(refused.contains("--force"), "{refused}");
    let json = madako(&[&from_file[..], &["--force", "-o", "json"]].concat()).await.json();
    assert_eq!((json["revision"].as_i64(), json["changes"].as_i64()), (Some(2), Some(1)));
    let refused =
        madako(&["store", "snapshot", &files.path(""), "--to", &files.path("no.db")]).await.refused(1);
    assert!(refused.contains("cannot open"), "{refused}");
    assert!(!std::path::Path::new(&files.path("no.db.part")).exists(), "nothing half made is left");

    let whole = madako(&["store", "verify", &again]).await.calm();
    assert!(whole.contains("has the store at revision 2: 1 changes"), "{whole}");

    let cut_off = files.write("cut-off.db", &std::fs::read(&snapshot).unwrap()[..5_000]);
    let refused = madako(&["store", "restore", &cut_off, "--to", &files.path("other")]).await.refused(2);
    assert!(refused.contains("SHA-256"), "{refused}");
    let refused = madako(&["store", "verify", &cut_off]).await.refused(1);
    assert!(refused.contains("the snapshot ") && refused.contains("SHA-256"), "{refused}");
    std::fs::write(&kept, b"not a store").unwrap();
    let refused = madako(&["store", "verify", &kept]).await.refused(1);
    assert!(refused.contains("is damaged"), "{refused}");
}

async fn root_leaves_the_files_of_a_directory_to_its_owner(data: &str, restore: &[&str]) {
    const OTHER: u32 = 65_534;
    let files = Files::new();
    let config = files.write(
        "config.yml",
        format!("embedded: {{data-dir: {data}, listen: '127.0.0.1:{}'}}\n", free_port()),
    );
    chown(data, Some(OTHER), Some(OTHER)).unwrap();
    let answer = madako(&["--config", &config, "doctor"]).await;
    assert!(answer.out.contains(&format!("-> chown -R {OTHER}:{OTHER} {data}")), "{answer:?}");
    madako(&[restore, &["--force"]].concat()).await.calm();
    for file in std::fs::read_dir(data).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().uid(), OTHER, "{file:?}");
    }
    let answer = madako(&["--config", &config, "doctor"]).await;
    assert!(answer.out.contains(&format!("good    data           {data}, ")), "{answer:?}");
    std::fs::set_permissions(data, std::fs::Permissions::from_mode(0o777)).unwrap();
    let answer = madako(&["--config", &config, "doctor"]).await;
    assert!(answer.out.contains(&format!("-> chmod go-w {data}")), "{answer:?}");
}
