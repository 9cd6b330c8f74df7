//! Times of commands beside a large system, from the start of the process to its end, and of the demo's first picture.
//!
//! The thread of the measurement blocks while a process runs; the registry answers on the threads of the runtime.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::time::Instant;

use super::bindings::measure_bindings;
use super::stage::{PlacementFixture, Settings, StoreKind};
use crate::processes::free_port;
use crate::scene::Scene;
use crate::table::{Table, Times};

const MACHINES: u32 = 5_000;
const WORKERS: usize = 4_000;
const APPLICATIONS: usize = 10_000;
const SAMPLES: usize = 15;
const STATUS: Duration = Duration::from_millis(100);
const MACHINE_LIST: Duration = Duration::from_millis(300);
const PICTURE: Duration = Duration::from_secs(1);

pub(crate) async fn measure(table: &mut Table) -> anyhow::Result<()> {
    let http = SocketAddr::from(([127, 0, 0, 1], free_port()?)).to_string();
    let settings = Settings { on: StoreKind::Embedded, rbac: false, controllers: true };
    let flags = ["--http", &http, "--interval", "1m", "--session-ttl", "60s"];
    let stage = PlacementFixture::serving(settings, &flags).await?;
    let mut scene = Scene::beside_etcd(&stage.endpoint, MACHINES).await?;
    let installed = scene.install(WORKERS).await;
    stage.explain(installed)?;
    measure_bindings(&stage, APPLICATIONS).await?;

    let config = scene.place.path_of("config.yml");
    let beside = format!("{MACHINES} machines, {APPLICATIONS} applications, embedded store");
    for (words, aim) in [
        (&["status", "-o", "table"][..], STATUS),
        (&["machine", "list", "-o", "table"], MACHINE_LIST),
        (&["machine", "list", "-o", "json"], MACHINE_LIST),
    ] {
        let times = (0..SAMPLES).map(|_| run(words, &config)).collect::<anyhow::Result<Times>>()?;
        table.add_median(format!("`madako {}`: {beside}", words.join(" ")), aim, &times);
    }
    drop(stage);
    let times = (0..SAMPLES).map(|_| measure_first_screen()).collect::<anyhow::Result<Times>>()?;
    table.add_times("first picture of `madako demo` with all racks, 80x24", PICTURE, &times);
    Ok(())
}

fn run(words: &[&str], config: &Path) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_madako"))
        .args(words)
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null())
        .output()
        .context("madako does not start")?;
    let took = began.elapsed();
    anyhow::ensure!(output.status.success(), "{words:?}: {output:?}");
    Ok(took)
}

/// The time from the start of a demo in a terminal until the last rack is drawn.
fn measure_first_screen() -> anyhow::Result<Duration> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let end = std::fs::File::options().read(true).write(true).open(name.to_str()?)?;
    tcsetwinsize(&end, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 })?;
    let began = Instant::now();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_madako"))
        .args(["demo", "--http", "127.0.0.1:0", "--etcd", "127.0.0.1:0"])
        .stdin(end.try_clone()?)
        .stdout(end)
        .stderr(Stdio::null())
        .spawn()
        .context("the demo does not start")?;
    let mut master = std::fs::File::from(master);
    let (mut shown, mut part) = (Vec::new(), [0; 4096]);
    let drawn = loop {
        let count = master.read(&mut part).context("the demo ended before its first picture")?;
        shown.extend_from_slice(&part[..count]);
        // Racks are drawn from top to bottom, and no cell of the name was drawn before.
        if String::from_utf8_lossy(&shown).contains("rack 5") {
            break began.elapsed();
        }
    };
    rustix::io::write(&master, b"q")?;
    // A terminal that is not read stops the demo at its summary.
    while matches!(master.read(&mut part), Ok(1..)) {}
    anyhow::ensure!(demo.wait()?.success(), "the demo fails");
    Ok(drawn)
}
