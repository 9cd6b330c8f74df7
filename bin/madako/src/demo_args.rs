//! The flags of `madako demo`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;

use crate::cli::{Global, whole_number};
use crate::demo::DemoOptions;
use crate::serve_args::{parse_bounded, parse_listen_address};

/// Bounds of a demo's length.
const LENGTHS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(24 * 3600));
/// Default seed: the same machines break in the same order each time.
pub(crate) const SEED: u64 = 1;

/// Shows the whole service on a simulated data center.
///
/// Simulated years pass in minutes, a retired worker leaves after 10 seconds instead of 300, and every 30 to 50 seconds
/// the demo kills one of the service's actors, to show its restart.
///
/// The scheduler places ten applications on five clusters with changing metrics. An application may move after 15
/// seconds instead of 60, metrics are fetched every 2 seconds instead of 15, and from time to time a cluster goes
/// offline. The placement API accepts anonymous requests, so the demo serves it only on loopback.
///
/// Broken machines are repaired, by simulated commands. With keys you break things yourself: k cuts the power of a rack, b
/// breaks a machine, l stops the leader, f lets a repair fail; ? shows all keys.
///
/// On a terminal the demo is a live view until Ctrl-C or q; elsewhere it prints a line for each event. The demo ends
/// with a summary, and exits with 1 if an invariant was violated. The demo logs events only if --loglevel or --logfile is
/// given.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako demo\n  madako demo --for 60s --seed 7 -o json")]
pub(crate) struct DemoArgs {
    /// Time after which the demo ends
    #[arg(long = "for", value_name = "DURATION", value_parser = |text: &str| parse_bounded(text, LENGTHS))]
    length: Option<Duration>,
    /// Seed of the data center and of all random choices
    #[arg(long, value_name = "NUMBER", default_value_t = SEED,
          value_parser = |text: &str| whole_number(text, 0..=u64::MAX))]
    seed: u64,
    /// Address and port of health, version, metrics and the API of placement
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen_address, default_value = "127.0.0.1:10180")]
    http: SocketAddr,
    /// Address and port of etcd's API; if it is taken, another port of loopback
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen_address, default_value = "127.0.0.1:2379")]
    etcd: SocketAddr,
    /// Form of the summary; json prints only the summary
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = SummaryForm::Text)]
    output: SummaryForm,
}

/// Form of a demo's summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SummaryForm {
    /// Sentences, for people.
    Text,
    /// One JSON object, for programs.
    Json,
}

impl DemoArgs {
    pub(crate) fn into_options(self, global: &Global) -> DemoOptions {
        DemoOptions {
            length: self.length,
            seed: self.seed,
            http: self.http,
            etcd: self.etcd,
            json: self.output == SummaryForm::Json,
            log: global.log.loglevel.is_some() || global.log.logfile.is_some(),
        }
    }
}
