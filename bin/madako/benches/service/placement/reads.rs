//! Measures lists and gets of the placement API, which are as fresh as the store, beside etcd's own range.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use etcd_client::{Client, GetOptions};
use tokio::time::Instant;

use super::http::{Connection, build_request};
use super::load::run_in_own_thread;
use super::resources::{NAMESPACE, application_json, applications_path};
use super::stage::{PlacementFixture, Settings, StoreKind};
use crate::table::{Table, Times};

const APPLICATIONS: usize = 2_000;
const LISTS: usize = 100;
const GETS: usize = 5_000;
const LIST: Duration = Duration::from_millis(40);
const GET: Duration = Duration::from_millis(1);

struct MeasuredReads {
    megabytes: f64,
    lists: Times,
    gets: Times,
    ranges: Times,
}

pub(super) async fn measure_all_reads(table: &mut Table) -> anyhow::Result<()> {
    for (on, rbac) in [(StoreKind::Etcd, false), (StoreKind::Etcd, true), (StoreKind::Embedded, false)] {
        let stage = PlacementFixture::start(Settings { on, rbac, controllers: false }).await?;
        let (address, endpoint) = (stage.address, stage.endpoint.clone());
        let read = stage.explain(run_in_own_thread(move || measure_reads(address, endpoint)).await)?.value;
        let rights = if rbac { ", with role lookups" } else { "" };
        let on = on.name();
        let list = format!("list of {APPLICATIONS} applications, {:.1} MB, {on}{rights}", read.megabytes);
        table.add_median(list, LIST, &read.lists);
        table.add_note(format!("range of these keys, {on} alone"), &read.ranges);
        table.add_median(format!("get of one of them, {on}{rights}"), GET, &read.gets);
    }
    Ok(())
}

async fn measure_reads(address: SocketAddr, endpoint: String) -> anyhow::Result<MeasuredReads> {
    let mut connection = Connection::open(address).await?;
    let path = applications_path();
    for number in 0..APPLICATIONS {
        let body = application_json(&format!("application-{number}")).to_string();
        connection.expect(&build_request("POST", &path, &body)).await?;
    }
    let (mut lists, mut gets, mut ranges) = (Vec::new(), Vec::new(), Vec::new());
    let question = build_request("GET", &path, "");
    let mut length = 0;
    for _ in 0..LISTS {
        let began = Instant::now();
        length = connection.expect(&question).await?.len();
        lists.push(began.elapsed());
    }
    let mut client = Client::connect([&endpoint], None).await.context("the store does not answer")?;
    let mut kv = client.kv_client().max_decoding_message_size(64 << 20);
    drop(client.status().await?);
    let prefix = format!("/kubernetes/applications/{NAMESPACE}/");
    for _ in 0..LISTS {
        let began = Instant::now();
        let found = kv.get(prefix.as_str(), Some(GetOptions::new().with_prefix())).await?;
        ranges.push(began.elapsed());
        anyhow::ensure!(found.kvs().len() == APPLICATIONS, "{} keys", found.kvs().len());
    }
    for number in 0..GETS {
        let question = build_request("GET", &format!("{path}/application-{}", number % APPLICATIONS), "");
        let began = Instant::now();
        connection.expect(&question).await?;
        gets.push(began.elapsed());
    }
    let [lists, gets, ranges] = [lists, gets, ranges].map(|times| times.into_iter().collect());
    Ok(MeasuredReads { megabytes: length as f64 / 1e6, lists, gets, ranges })
}
