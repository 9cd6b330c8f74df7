//! Runs one command on a node, from its start to its end or its kill.

mod running;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use russh::client::{Handle, Msg};
use russh::{Channel, ChannelMsg};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::{self, Instant};

use self::running::RunningCommand;
use crate::driver::SshOptions;
use crate::host_key::Verifier;
use crate::limits::{END_MARGIN, MAX_COMMAND};
use crate::script::{Script, quote};
use crate::stream::StreamOwner;

/// Runs in the login shell's place. `$0` is the nonce, `$1` the script. It begins only with an order that names the
/// uptime of its end: the end of the input, as after a lost connection, ends it. SIGKILL reaches the whole process group;
/// after SIGTERM, `timeout` would not wait for the shell's children.
pub(crate) const PRELUDE: &str = "read -r up rest </proc/uptime || exit 1; echo \"$0 $$ ${up%%.*}\"; read -r end || exit 1; \
     read -r up rest </proc/uptime || exit 1; left=$((end - ${up%%.*})); [ \"$left\" -gt 0 ] || exit 124; \
     exec timeout -s KILL \"$left\" sh -c \"$1\" \"$0\"";

/// Kills the process group `$1` if its leader is the command with the nonce `$2`.
const KILL: &str = "if tr \"\\0\" \" \" </proc/\"$1\"/cmdline 2>/dev/null | grep -Fq -e \"$2\"; \
     then kill -s KILL -- \"-$1\" 2>/dev/null || kill -s KILL \"$1\"; fi";

/// Names of commands, which no other process on a node has.
pub(crate) struct Nonces {
    pub(crate) seed: u64,
    pub(crate) next: AtomicU64,
}

impl Nonces {
    pub(crate) fn next(&self) -> String {
        format!("madako-{:016x}-{:016x}", self.seed, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

/// An open connection with a login.
pub(crate) struct Session {
    handle: Handle<Verifier>,
    _owner: StreamOwner,
    runtime: runtime::Handle,
    step: Duration,
    begin: Duration,
}

pub(crate) struct RemoteCommand<'a> {
    pub(crate) script: &'a Script,
    pub(crate) nonce: String,
    /// The command may not begin later.
    pub(crate) begin_by: Instant,
    /// The command has ended by then.
    pub(crate) end_by: Instant,
}

/// The end of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) code: u32,
    pub(crate) stdout: Vec<u8>,
    /// Its beginning, without white space around it.
    pub(crate) stderr: String,
}

/// A command without a usable end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RemoteError {
    /// The connection is of no use.
    Broken(String),
    /// The answer is too long or has another form.
    Malformed(String),
    /// The command took too long and was killed.
    Late,
}

impl Session {
    pub(crate) fn new(handle: Handle<Verifier>, owner: StreamOwner, options: &SshOptions) -> Self {
        let SshOptions { step, begin, .. } = *options;
        Self { handle, _owner: owner, runtime: runtime::Handle::current(), step, begin }
    }

    /// Opens a channel. A caller that is dropped meanwhile leaves no open channel.
    async fn open(self: &Arc<Self>) -> Result<Channel<Msg>, RemoteError> {
        let (sender, receiver) = oneshot::channel();
        let session = Arc::clone(self);
        self.runtime.spawn(async move {
            let opened = time::timeout(session.step, session.handle.channel_open_session()).await;
            if let Err(Ok(Ok(channel))) = sender.send(opened) {
                // An error means that the connection has ended, and the channel with it.
                drop(channel.close().await);
            }
        });
        match receiver.await {
            Ok(Ok(Ok(channel))) => Ok(channel),
            Ok(Ok(Err(error))) => Err(RemoteError::Broken(format!("no session: {error}"))),
            Ok(Err(_)) => Err(RemoteError::Broken(format!("no session in {:?}", self.step))),
            Err(_) => Err(RemoteError::Broken("no session: the runtime ends".to_owned())),
        }
    }

    /// Kills a command by a second one. Without a connection the command ends at its deadline.
    async fn kill(self: &Arc<Self>, process: u32, nonce: &str) {
        let killed = async {
            let mut channel = self.open().await?;
            let command = format!("exec sh -c {} madako-kill {process} {nonce}", quote(KILL));
            channel.exec(false, command).await.map_err(broken_connection)?;
            while let Some(message) = channel.wait().await {
                if let ChannelMsg::Close = message {
                    break;
                }
            }
            Ok::<(), RemoteError>(())
        };
        if !matches!(time::timeout(self.step, killed).await, Ok(Ok(()))) {
            tracing::debug!(nonce, "a command cannot be killed; it ends at its deadline");
        }
    }
}

fn broken_connection(error: russh::Error) -> RemoteError {
    RemoteError::Broken(format!("the connection broke: {error}"))
}

/// Runs a command to its end.
pub(crate) async fn run_command(
    session: &Arc<Session>,
    command: RemoteCommand<'_>,
) -> Result<Answer, RemoteError> {
    let line = command_line(&command)?;
    let begin_by = command.begin_by.min(command.end_by);
    let patience_ends = Instant::now() + session.begin;
    let begun = RunningCommand::begin(session, &command.nonce, &line);
    let mut running = match time::timeout_at(patience_ends.min(begin_by), begun).await {
        Ok(begun) => begun?,
        Err(_) if patience_ends < begin_by => {
            return Err(RemoteError::Broken(format!("no command began in {:?}", session.begin)));
        }
        Err(_) => return Err(RemoteError::Late),
    };
    if let Some(end) = running.early_end() {
        return end;
    }
    let left = command.end_by.saturating_duration_since(Instant::now()).as_secs().saturating_sub(END_MARGIN);
    if left == 0 {
        return Err(RemoteError::Late);
    }
    let finish = running.finish(left, &command.script.stdin);
    time::timeout_at(command.end_by, finish).await.map_err(|_| RemoteError::Late)?
}

fn command_line(command: &RemoteCommand<'_>) -> Result<String, RemoteError> {
    let line = format!("exec sh -c {} {} {}", quote(PRELUDE), command.nonce, quote(&command.script.text));
    if line.len() > MAX_COMMAND {
        let why = format!("the command has {} bytes, and a node takes {MAX_COMMAND}", line.len());
        return Err(RemoteError::Malformed(why));
    }
    Ok(line)
}
