//! A command that the node has started. Dropping it kills the remote process group.

use std::pin::pin;
use std::sync::Arc;

use russh::client::Msg;
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};

use super::{Answer, RemoteError, Session, broken_connection};
use crate::limits::{MAX_STDERR, MAX_STDOUT};

/// Exit codes for a command that came too late, and for one that `timeout` killed.
const LATE: [u32; 2] = [124, 137];
/// The code of extended data for standard error (RFC 4254, section 5.2).
const STDERR: u32 = 1;

pub(crate) struct RunningCommand {
    session: Arc<Session>,
    nonce: String,
    reader: ChannelReadHalf,
    /// `None` once the channel is closed on both sides.
    writer: Option<Arc<ChannelWriteHalf<Msg>>>,
    /// Process id and uptime from its first line.
    begun: Option<(u32, u64)>,
    /// The node may have got the order to begin.
    may_run: bool,
    output: CommandOutput,
}

/// The output of a command so far.
#[derive(Default)]
struct CommandOutput {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    code: Option<u32>,
}

impl CommandOutput {
    /// Takes a message. True if it is the last one.
    fn take(&mut self, message: ChannelMsg) -> Result<bool, RemoteError> {
        match message {
            ChannelMsg::Data { data } => {
                if self.stdout.len() + data.len() > MAX_STDOUT {
                    return Err(RemoteError::Malformed(format!("it has more than {MAX_STDOUT} bytes")));
                }
                self.stdout.extend_from_slice(&data);
            }
            ChannelMsg::ExtendedData { data, ext: STDERR } => {
                let room = MAX_STDERR.saturating_sub(self.stderr.len());
                self.stderr.extend_from_slice(&data[..data.len().min(room)]);
            }
            ChannelMsg::ExitStatus { exit_status } => self.code = Some(exit_status),
            ChannelMsg::ExitSignal { signal_name: Sig::TERM | Sig::KILL, .. } => self.code = Some(LATE[1]),
            ChannelMsg::ExitSignal { signal_name, .. } => {
                return Err(RemoteError::Malformed(format!("a signal ended it: {signal_name:?}")));
            }
            ChannelMsg::Failure => {
                return Err(RemoteError::Broken("the node refuses to run commands".to_owned()));
            }
            ChannelMsg::Close => return Ok(true),
            _ => {}
        }
        Ok(false)
    }

    fn take_answer(&mut self) -> Result<Answer, RemoteError> {
        match self.code {
            Some(code) if LATE.contains(&code) => Err(RemoteError::Late),
            Some(code) => Ok(Answer {
                code,
                stdout: std::mem::take(&mut self.stdout),
                stderr: String::from_utf8_lossy(&self.stderr).trim().to_owned(),
            }),
            None => Err(RemoteError::Broken("the connection broke before the end of a command".to_owned())),
        }
    }
}

impl RunningCommand {
    /// Starts a command and reads its first line; or the command ends before that.
    pub(crate) async fn begin(
        session: &Arc<Session>,
        nonce: &str,
        command: &str,
    ) -> Result<Self, RemoteError> {
        let (reader, writer) = session.open().await?.split();
        let mut running = Self {
            session: Arc::clone(session),
            nonce: nonce.to_owned(),
            reader,
            writer: Some(Arc::new(writer)),
            begun: None,
            may_run: false,
            output: CommandOutput::default(),
        };
        running.channel_writer()?.exec(true, command).await.map_err(broken_connection)?;
        while running.begun.is_none() {
            if running.take_next().await? {
                break;
            }
            running.begun = running.read_first_line()?;
        }
        Ok(running)
    }

    /// The answer of a command that ended before the order to begin: it has no shell, or no usable `/proc`.
    pub(crate) fn early_end(&mut self) -> Option<Result<Answer, RemoteError>> {
        if self.writer.is_some() {
            return None;
        }
        let answer = self.output.take_answer();
        Some(match answer {
            Ok(Answer { code: 0, .. }) => {
                Err(RemoteError::Malformed("the login shell ran no command".to_owned()))
            }
            other => other,
        })
    }

    /// Orders the command to begin, with its time in seconds, feeds it, and waits for its end.
    pub(crate) async fn finish(&mut self, seconds: u64, stdin: &[u8]) -> Result<Answer, RemoteError> {
        let (_, uptime) = self.begun.ok_or_else(|| RemoteError::Malformed("no first line".to_owned()))?;
        let mut input = format!("{}\n", uptime.saturating_add(seconds)).into_bytes();
        input.extend_from_slice(stdin);
        let writer = Arc::clone(self.channel_writer()?);
        let mut feeding = pin!(async move {
            writer.data_bytes(input).await?;
            writer.eof().await
        });
        self.may_run = true;
        let mut fed = false;
        loop {
            tokio::select! {
                biased;
                last = self.take_next() => if last? {
                    return self.output.take_answer();
                },
                // A command may end without reading its input; its answer says why.
                _ = &mut feeding, if !fed => fed = true,
            }
        }
    }

    fn channel_writer(&self) -> Result<&Arc<ChannelWriteHalf<Msg>>, RemoteError> {
        self.writer.as_ref().ok_or_else(|| RemoteError::Broken("the channel is closed".to_owned()))
    }

    /// Takes the next message. True if the channel is closed.
    async fn take_next(&mut self) -> Result<bool, RemoteError> {
        let last = match self.reader.wait().await {
            Some(message) => self.output.take(message)?,
            None => true,
        };
        if last {
            self.writer = None;
        }
        Ok(last)
    }

    /// Reads the line with the nonce, and removes it with all that a login shell printed before it.
    fn read_first_line(&mut self) -> Result<Option<(u32, u64)>, RemoteError> {
        let text = &self.output.stdout;
        let start = text.windows(self.nonce.len()).position(|window| window == self.nonce.as_bytes());
        let Some(start) = start else { return Ok(None) };
        let Some(length) = text[start..].iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line = String::from_utf8_lossy(&text[start..start + length]).into_owned();
        self.output.stdout.drain(..=start + length);
        let mut words = line.split(' ').skip(1);
        let process = words.next().and_then(|word| word.parse().ok());
        let uptime = words.next().and_then(|word| word.parse().ok());
        match (process, uptime) {
            (Some(process), Some(uptime)) => Ok(Some((process, uptime))),
            _ => Err(RemoteError::Malformed("its first line has another form".to_owned())),
        }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        let process = self.begun.map(|(process, _)| process).filter(|_| self.may_run);
        let (session, nonce) = (Arc::clone(&self.session), std::mem::take(&mut self.nonce));
        self.session.runtime.spawn(async move {
            // An error means that the connection has ended, and the channel with it.
            drop(writer.close().await);
            if let Some(process) = process {
                session.kill(process, &nonce).await;
            }
        });
    }
}
