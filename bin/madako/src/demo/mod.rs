//! `madako demo`: the whole service on the embedded store, with a simulated data center behind real HTTP.
//!
//! Shows the work of Madako without any machine. Everything but the machines is real: the store's file (in a temporary
//! directory), etcd's API and HTTP on loopback, GraphQL, the actors. At times the demo kills one of the service's
//! actors, or takes a cluster offline, and reports that as an injected fault.

mod actions;
mod demo_faults;
mod ended_repairs;
mod event_line;
mod happenings;
mod picture;
mod placement;
mod summary;
#[cfg(test)]
mod tests;
mod view;
mod world;

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use madako_console::{Surface, push_wrapped};
use madako_protocol::event::Event;
use madako_supervisor::tree::{ChildState, TreeStatus};
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyModifiers};
use ratatui::layout::{Position, Rect};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior};

use actions::Action;
use demo_faults::DemoFaults;
use picture::{ActorLine, ScreenState};
use summary::DemoSummary;
use world::World;

pub(crate) use world::COMMANDS;

/// Time between two frames.
const FRAME: Duration = Duration::from_millis(250);

#[derive(Debug, Clone)]
pub(crate) struct DemoOptions {
    /// The demo ends after this time; `None`: at the user's request.
    pub(crate) length: Option<Duration>,
    /// Seed of the data center and of all random choices.
    pub(crate) seed: u64,
    pub(crate) http: std::net::SocketAddr,
    /// Address of etcd's API; another port of loopback if it is taken.
    pub(crate) etcd: std::net::SocketAddr,
    /// Print only the summary, as JSON.
    pub(crate) json: bool,
    /// Also write the service's log. The view and the lines show all events, and a log on standard error would
    /// interrupt them.
    pub(crate) log: bool,
}

/// The form of the output.
enum Screen {
    Live(Box<ratatui::DefaultTerminal>),
    Lines,
    Nothing,
}

/// Runs a demo. Returns whether no invariant was violated.
pub(crate) async fn run(options: DemoOptions) -> anyhow::Result<bool> {
    let mut screen = if options.json {
        Screen::Nothing
    } else if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        Screen::Live(Box::new(ratatui::try_init().context(
            "cannot take over the terminal of standard output: `madako demo | cat` prints lines instead",
        )?))
    } else {
        Screen::Lines
    };
    if let Screen::Live(terminal) = &mut screen {
        // A first picture at once: the start of the service may take a second on a slow disk.
        terminal
            .draw(view::draw_start)
            .context("cannot draw the first picture of the demo on the terminal")?;
    }
    let started = World::start(&options).await;
    if let (Err(_), Screen::Live(_)) = (&started, &screen) {
        ratatui::restore();
    }
    let mut world = started?;
    let mut picture = ScreenState {
        http: world.service.http().to_string(),
        etcd: world.etcd.map_or_else(|| "not served".to_owned(), |address| address.to_string()),
        seed: options.seed,
        placement: world.service.placement_http().map_or_else(String::new, |address| address.to_string()),
        retire_wait: world::RETIRE_WAIT,
        reschedule_after: placement::RESCHEDULE_AFTER,
        metrics_interval: placement::METRICS_INTERVAL,
        ..ScreenState::default()
    };
    let shown = show(&mut world, &options, &mut picture, &mut screen).await;
    if let Screen::Live(_) = screen {
        ratatui::restore();
    }
    shown?;
    world.stop().await;
    let summary = DemoSummary::new(&picture, options.seed);
    let mut out = std::io::stdout().lock();
    if options.json {
        serde_json::to_writer(&mut out, &summary)?;
        writeln!(out)?;
    } else {
        let width = Surface::for_output().width.unwrap_or(usize::MAX);
        let mut text = String::new();
        push_wrapped(&mut text, "", &summary.to_text(), SUMMARY_INDENT, width);
        out.write_all(text.as_bytes())?;
    }
    Ok(summary.invariant_violations == 0)
}

/// Shows events until the time is over or the user ends the demo.
async fn show(
    world: &mut World,
    options: &DemoOptions,
    picture: &mut ScreenState,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let end = options.length.map(|length| began + length);
    let mut stop = std::pin::pin!(crate::signals::wait_for_stop());
    let mut mischief = DemoFaults::new(options.seed);
    let mut looks = tokio::time::interval(ended_repairs::PAUSE);
    looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut frames = tokio::time::interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            why = world.service.wait_for_end() => {
                anyhow::bail!("the service of the demo ended: {}", why.unwrap_or_else(|| "it was stopped".to_owned()))
            }
            () = async { tokio::time::sleep_until(end.unwrap_or(began)).await }, if end.is_some() => break,
            event = world.events.recv() => take(picture, screen, began, event)?,
            line = world.placing.next_outage_line() => {
                picture.elapsed = began.elapsed();
                picture.remember(line.clone());
                print_event(picture, screen, &line)?;
            }
            line = world.actions.next_power() => {
                picture.elapsed = began.elapsed();
                picture.remember(line.clone());
                print_event(picture, screen, &line)?;
            }
            () = mischief.wait_until_due() => {
                picture.elapsed = began.elapsed();
                if let Some(actor) = mischief.inject_fault(world.service.instance()).await {
                    let line = picture.note_fault(actor);
                    print_event(picture, screen, &line)?;
                }
            }
            _ = looks.tick() => {
                if let Some(line) = ended_repairs::delete_ended_repairs(&world.operator).await {
                    picture.elapsed = began.elapsed();
                    picture.remember(line.clone());
                    print_event(picture, screen, &line)?;
                }
            }
            _ = frames.tick() => {
                if matches!(screen, Screen::Live(_)) {
                    picture.elapsed = began.elapsed();
                    let commands = key_commands()?;
                    let ends = |command: &KeyCommand| match command {
                        KeyCommand::End => true,
                        KeyCommand::Back => !picture.visible().shows_help,
                        _ => false,
                    };
                    if commands.iter().any(ends) {
                        break;
                    }
                    for command in commands {
                        match command {
                            KeyCommand::Act(action) => perform_user_action(world, picture, action).await,
                            other => picture.apply_command(other),
                        }
                    }
                }
                refresh(world, picture, began).await;
                if let Screen::Live(terminal) = screen {
                    let size = terminal.size().context("cannot read the size of the terminal of the demo")?;
                    picture.limit_help(view::most_scrolled(picture.visible(), Rect::from((Position::ORIGIN, size))));
                    terminal.draw(|frame| view::draw(frame, picture.visible())).context("cannot draw the demo on the terminal")?;
                }
            }
        }
    }
    refresh(world, picture, began).await;
    Ok(())
}

fn take(
    picture: &mut ScreenState,
    screen: &Screen,
    began: Instant,
    event: Result<Arc<Event>, RecvError>,
) -> anyhow::Result<()> {
    picture.elapsed = began.elapsed();
    match event {
        Ok(event) => match picture.take(&event) {
            Some(line) => print_event(picture, screen, &line),
            None => Ok(()),
        },
        // The summary counts events, so that a missed event would make it wrong.
        Err(error @ broadcast::error::RecvError::Lagged(_)) => {
            let context = "the demo is too slow to count all events: run it on a host with less load";
            Err(anyhow::Error::new(error).context(context))
        }
        Err(RecvError::Closed) => {
            anyhow::bail!("the service of the demo ended and sends no events: --loglevel info shows its log")
        }
    }
}

/// Prints an event, unless a view shows it.
fn print_event(picture: &ScreenState, screen: &Screen, line: &str) -> anyhow::Result<()> {
    if let Screen::Lines = screen {
        writeln!(std::io::stdout().lock(), "{:>7.1} s  {line}", picture.elapsed.as_secs_f64())?;
    }
    Ok(())
}

/// Carries out what the user wants, and shows it.
async fn perform_user_action(world: &mut World, picture: &mut ScreenState, action: Action) {
    let state = world.service.instance().view().state.newest();
    let cluster = state.as_ref().and_then(|state| state.cluster.as_ref());
    let nodes = cluster.into_iter().flat_map(|cluster| &cluster.value.nodes);
    let parts = nodes.map(|node| (node.address.clone(), node.control_plane)).collect();
    let (line, actor) = world.actions.act(action, &parts, world.service.instance()).await;
    picture.note_action(line, actor);
}

async fn refresh(world: &World, picture: &mut ScreenState, began: Instant) {
    picture.elapsed = began.elapsed();
    let view = world.service.instance().view();
    picture.epoch = view.reign.borrow().as_ref().map(|epoch| epoch.number);
    let state = view.state.newest();
    picture.revision = picture.revision.max(state.as_ref().map_or(0, |state| state.revision));
    if let Some(state) = &state {
        picture.tally.note_repairs(state.repair.entries.values().map(|item| &item.value));
    }
    let cluster = state.as_ref().and_then(|state| state.cluster.as_ref()).map(|cluster| &*cluster.value);
    picture.show(&world.registry.list_machines(), cluster);
    picture.landscape = world.placing.current_landscape();
    // A tree that has ended shows no actors.
    let actors = world
        .service
        .instance()
        .read_status()
        .await
        .map_or_else(|_| Vec::new(), |tree| actor_lines(&tree, 0));
    picture.show_actors(actors);
}

fn actor_lines(tree: &TreeStatus, depth: usize) -> Vec<ActorLine> {
    let mut lines = Vec::new();
    for child in &tree.children {
        let state = match child.state {
            ChildState::Waiting => "waits".to_owned(),
            ChildState::Starting => "starts".to_owned(),
            ChildState::Running => "running".to_owned(),
            ChildState::Backoff(pause) => format!("back in {:.1} s", pause.as_secs_f64()),
            ChildState::Stopping => "stops".to_owned(),
        };
        lines.push(ActorLine { name: child.id.to_string(), depth, state, restarts: child.restarts });
        lines.extend(child.below.iter().flat_map(|below| actor_lines(below, depth + 1)));
    }
    lines
}

/// The command of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyCommand {
    End,
    /// Closes the help, and ends the demo where no help is shown.
    Back,
    /// The panel for which a small screen has no room.
    OtherPanel,
    Help,
    Pause,
    /// Shows older lines, or newer ones with a negative number; of the help earlier and later ones.
    Scroll(isize),
    Newest,
    Act(Action),
}

/// Indentation of the further lines of the summary.
const SUMMARY_INDENT: usize = 2;

/// Lines that PgUp and PgDn scroll.
const PAGE: isize = 10;

/// The meaning of a key; `None`: it has none.
fn command_of_key(code: KeyCode, has_control: bool) -> Option<KeyCommand> {
    Some(match code {
        KeyCode::Char('c') if has_control => KeyCommand::End,
        KeyCode::Char('q') => KeyCommand::End,
        KeyCode::Esc => KeyCommand::Back,
        KeyCode::Tab => KeyCommand::OtherPanel,
        KeyCode::Char('?' | 'h') => KeyCommand::Help,
        KeyCode::Char(' ' | 'p') => KeyCommand::Pause,
        KeyCode::Up => KeyCommand::Scroll(1),
        KeyCode::Down => KeyCommand::Scroll(-1),
        KeyCode::PageUp => KeyCommand::Scroll(PAGE),
        KeyCode::PageDown => KeyCommand::Scroll(-PAGE),
        KeyCode::End => KeyCommand::Newest,
        KeyCode::Char('k') => KeyCommand::Act(Action::KillRack),
        KeyCode::Char('b') => KeyCommand::Act(Action::BreakMachine),
        KeyCode::Char('l') => KeyCommand::Act(Action::StopLeader),
        KeyCode::Char('f') => KeyCommand::Act(Action::FailRepair),
        _ => return None,
    })
}

/// The commands of the keys since the last frame. A terminal in raw mode sends no signal.
fn key_commands() -> anyhow::Result<Vec<KeyCommand>> {
    let mut commands = Vec::new();
    while event::poll(Duration::ZERO)? {
        if let Input::Key(key) = event::read()?
            && !key.is_release()
        {
            commands.extend(command_of_key(key.code, key.modifiers.contains(KeyModifiers::CONTROL)));
        }
    }
    Ok(commands)
}
