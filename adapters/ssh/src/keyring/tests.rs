use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use madako_protocol::login_keys::LoginKeysError;
use madako_protocol::secret::Secret;
use tokio::time::advance;

use super::*;

/// A source with keys that can change, or with none.
#[derive(Default)]
struct Source {
    keys: std::sync::Mutex<Option<Vec<LoginKeys>>>,
    reads: AtomicUsize,
    /// Time that a read takes.
    takes: Duration,
}

impl Source {
    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    fn set(&self, keys: Option<&[&[(&str, &str)]]>) {
        let source = |keys: &&[(&str, &str)]| {
            LoginKeys(keys.iter().map(|(at, key)| ((*at).to_owned(), Ok(Secret::new(*key)))).collect())
        };
        *self.keys.lock().unwrap() = keys.map(|keys| keys.iter().map(source).collect());
    }
}

#[async_trait]
impl LoginKeySource for Source {
    async fn read(&self) -> Result<Vec<LoginKeys>, LoginKeysError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(self.takes).await;
        let keys = self.keys.lock().unwrap().clone();
        keys.ok_or(LoginKeysError { place: "Vault".to_owned(), why: "it is sealed".to_owned() })
    }
}

const ONE: &str = include_str!("one.key");
const TWO: &str = include_str!("two.key");

fn keyring(source: &Arc<Source>, fallback: Option<&str>) -> Keyring {
    let source = Arc::clone(source) as Arc<dyn LoginKeySource>;
    Keyring::Read(ReadKeys::new(source, fallback.map(|text| read_key(text).unwrap())))
}

/// True if the key of a node is that of a text.
async fn has(keyring: &Keyring, address: &str, text: &str) -> bool {
    let fingerprint = |key: &SshKey| key.0.fingerprint(russh::keys::HashAlg::Sha256).to_string();
    fingerprint(&keyring.key(address).await.unwrap()) == fingerprint(&read_key(text).unwrap())
}

async fn error(keyring: &Keyring) -> String {
    keyring.key("a").await.map(drop).unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn the_first_source_with_a_key_of_the_node_counts() {
    let source = Arc::new(Source::default());
    source.set(Some(&[&[("a", ONE)], &[("", TWO)]]));
    let keys = keyring(&source, Some(ONE));
    assert!(has(&keys, "a", ONE).await && has(&keys, "b", TWO).await);
    source.set(Some(&[&[("", TWO)], &[("a", ONE)]]));
    assert!(has(&keyring(&source, None), "a", TWO).await, "a default of an earlier source counts");
    source.set(Some(&[]));
    assert!(has(&keyring(&source, Some(ONE)), "a", ONE).await, "the fallback");
    let why = error(&keyring(&source, None)).await;
    assert!(why.contains("neither Vault, nor madako ssh key set, nor ssh.key_file"), "{why}");
    source.set(Some(&[&[("a", "hunter2")]]));
    let why = error(&keyring(&source, Some(ONE))).await;
    assert_eq!(
        why,
        "the stored key is not usable: the text is not a private key in the form of OpenSSH or PEM"
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_that_cannot_be_read_concerns_only_the_nodes_that_need_it() {
    let source = Arc::new(Source::default());
    let unreadable =
        LoginKeysError { place: "madako/ssh/keys/c".to_owned(), why: "it is cut off".to_owned() };
    let first = LoginKeys(BTreeMap::from([("a".to_owned(), Ok(Secret::new(ONE)))]));
    let second = LoginKeys(BTreeMap::from(["a", "c"].map(|at| (at.to_owned(), Err(unreadable.clone())))));
    *source.keys.lock().unwrap() = Some(vec![first, second]);
    let keys = keyring(&source, Some(TWO));
    assert!(has(&keys, "a", ONE).await && has(&keys, "b", TWO).await);
    let why = keys.key("c").await.map(drop).unwrap_err();
    assert_eq!(why, "cannot read the SSH keys in madako/ssh/keys/c: it is cut off");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_nodes_cost_one_read_a_minute() {
    let source = Arc::new(Source { takes: Duration::from_secs(1), ..Source::default() });
    source.set(Some(&[&[("", ONE)]]));
    let keys = keyring(&source, None);
    let all = (0..1000).map(|node| {
        let keys = &keys;
        async move { keys.key(&format!("10.0.0.{node}")).await.map(drop) }
    });
    assert!(futures::future::join_all(all).await.iter().all(Result::is_ok));
    assert_eq!(source.reads(), 1);
    advance(KEYS_FRESH).await;
    keys.key("a").await.unwrap();
    assert_eq!(source.reads(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refused_key_is_read_again_after_a_pause() {
    let source = Arc::new(Source::default());
    source.set(Some(&[&[("", ONE)]]));
    let keys = keyring(&source, None);
    assert!(has(&keys, "a", ONE).await);
    source.set(Some(&[&[("", TWO)]]));
    keys.note_refusal().await;
    assert!(has(&keys, "a", ONE).await, "the pause is not over");
    advance(KEYS_PAUSE).await;
    assert!(has(&keys, "a", TWO).await);
    assert_eq!(source.reads(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_source_out_of_reach_costs_one_read_a_pause_and_keys_stay_for_a_bounded_time() {
    let source = Arc::new(Source::default());
    let keys = keyring(&source, Some(ONE));
    for _ in 0..3 {
        let why = error(&keys).await;
        assert_eq!(why, "cannot read the SSH keys in Vault: it is sealed", "the fallback may be another key");
    }
    assert_eq!(source.reads(), 1);
    source.set(Some(&[&[("", TWO)]]));
    advance(KEYS_PAUSE).await;
    assert!(has(&keys, "a", TWO).await);
    source.set(None);
    advance(KEYS_KEPT / 2).await;
    assert!(has(&keys, "a", TWO).await, "the last keys stay in use");
    advance(KEYS_KEPT / 2).await;
    assert!(error(&keys).await.contains("it is sealed"));
}
