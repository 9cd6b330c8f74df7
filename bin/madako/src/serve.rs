//! `madako serve`: runs the service until a signal ends it.

mod simulated;
mod started;

use std::sync::Arc;

use anyhow::Context as _;
use madako_host::CommandsOnHost;
use madako_supervisor::instance::InstanceOptions;
use madako_supervisor::journal::Journal;
use madako_supervisor::service::{CommandRunner, Service, ServiceOptions};

use self::simulated::SimulatedSite;
use self::started::log_start;
use crate::failure::Failure;
use crate::limits::SILENCE_SHARE;
use crate::notify::Notifier;
use crate::serve_args::ServeOptions;
use crate::{VERSION, host, recorder, signals};

/// Runs the service. A clean end resigns leadership.
pub(crate) async fn run(options: ServeOptions) -> Result<(), Failure> {
    for warning in &options.warnings {
        tracing::warn!("{warning}");
    }

    // Before the start: a registry that cannot listen is not a reason to campaign.
    let simulated = match options.simulated {
        Some(address) => Some(SimulatedSite::start(address, &options.config).await?),
        None => None,
    };
    let host = host::host_name();
    let service_options = ServiceOptions {
        instance: InstanceOptions {
            // The service knows it after the bind of its pages.
            url: String::new(),
            id: "madako".to_owned(),
            host,
            interval: options.interval,
            session_ttl: options.session_ttl,
            retire_wait: madako_cluster_planner::DEFAULT_RETIRE_WAIT,
            hold: options.config.repair.hold.clone(),
            reboots: options.config.reboots,
            seed: host::draw_seed().map_err(Failure::Failed)?,
        },
        http: options.http.to_string(),
        metrics: match options.telemetry {
            true => recorder::install_recorder().map_err(Failure::Failed)?,
            false => Arc::new(|_| String::new()),
        },
        version: VERSION,
        journal: Journal::new("madako"),
        placement: options.config.placement.clone(),
        kubernetes: options.config.kubernetes.clone(),
        operations: options.config.operations.clone(),
        host: Some(match &simulated {
            Some(simulated) => simulated.command_runner(),
            None => CommandRunner::OnHost(CommandsOnHost::new(options.session_ttl / SILENCE_SHARE)),
        }),
        simulated: simulated.as_ref().map(SimulatedSite::cluster_ports),
    };
    let notifier = Notifier::from_environment()
        .context("cannot notify systemd: the environment of the service is unusable")
        .map_err(Failure::Failed)?;
    let service = Service::start(&options.config, service_options)
        .await
        .context("cannot start the service")
        .map_err(Failure::Failed)?;
    if let Some(simulated) = &simulated
        && let Err(failure) = simulated.store_url(service.store().as_ref()).await
    {
        service.stop().await;
        return Err(failure);
    }
    let states = &service.instance().view().state;
    let _following = simulated.as_ref().map(|simulated| simulated.follow(states.clone()));
    let stop = signals::wait_for_stop();
    log_start(&service, &options).await;
    notifier.notify_started();
    tokio::select! {
        biased;
        () = stop => {
            notifier.notify_stopping();
            tracing::info!("the service stops");
            service.stop().await;
            Ok(())
        }
        () = notifier.feed_watchdog() => unreachable!("it never returns"),
        why = service.wait_for_end() => {
            let why = why.unwrap_or_else(|| "it was stopped".to_owned());
            service.stop().await;
            Err(Failure::failed(format!("the service ended: {why}")))
        }
    }
}
