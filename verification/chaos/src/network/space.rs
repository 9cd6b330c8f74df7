//! A network namespace of a chaos run.
//!
//! Guarantees: it has no name. It exists as long as this value or a process in it: when the run is gone, however it
//! ended, the kernel removes it with all its devices.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::tool::{self, ToolError, WITHIN};

#[derive(Debug)]
pub(super) struct NetworkNamespace {
    name: String,
    file: File,
}

impl NetworkNamespace {
    /// A new namespace with only a loopback device, which is down. The name is for messages.
    pub(super) async fn create(name: String) -> Result<Self, ToolError> {
        let what = format!("the namespace of {name}");
        // `cat` echoes the first line once it is in its namespace, and ends with its input.
        let words = ["unshare", "--net", "cat"];
        let start = |source| ToolError::Start { what: what.clone(), program: words.join(" "), source };
        let mut child = tool::tool_command(&words).spawn().map_err(start)?;
        let made = async {
            let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
            let mut heard = [0];
            if let Some((mut stdin, mut stdout)) = stdin.zip(stdout) {
                // A process that has ended does not answer.
                let _ = stdin.write_all(&heard).await;
                if stdout.read_exact(&mut heard).await.is_ok() {
                    let file = File::open(format!("/proc/{}/ns/net", child.id().unwrap_or(0)));
                    drop(stdin);
                    child.wait().await.map_err(start)?;
                    return file.map_err(start);
                }
            }
            let output = tool::shorten_errors(&tool::read_output(child.stderr.take()).await);
            Err(ToolError::Failed { what: what.clone(), program: words.join(" "), output })
        };
        let late = |_| ToolError::Late { what: what.clone(), program: words.join(" ") };
        let file = timeout(WITHIN, made).await.map_err(late)??;
        Ok(Self { name, file })
    }

    /// The path that opens the namespace while this value exists.
    pub(super) fn file_path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// The words before a command that runs inside: they become the command and change nothing else of it.
    pub(super) fn entering_words(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net={}", self.file_path())]
    }

    /// Runs a program inside. `what` is for messages.
    pub(super) async fn run(&self, what: &str, words: &[&str], input: &str) -> Result<String, ToolError> {
        let what = format!("{what} in the namespace of {}", self.name);
        let enter = self.entering_words();
        let all: Vec<&str> = enter.iter().map(String::as_str).chain(words.iter().copied()).collect();
        tool::run(&what, &all, input).await
    }

    /// Runs a function on a thread inside the namespace; a socket that it makes stays there. It must be short, as
    /// nothing cancels it.
    ///
    /// # Errors
    /// The namespace cannot be entered, or the function failed.
    #[allow(
        clippy::disallowed_methods,
        reason = "a thread enters a namespace for good, so it must be one that ends; nothing is repeated by a seed here"
    )]
    pub(super) async fn run_inside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let file = self.file.try_clone()?;
        let (tell, answer) = oneshot::channel();
        std::thread::spawn(move || {
            let entered = move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network));
            // The receiver is gone if the run has ended.
            let _ = tell.send(entered.map_err(io::Error::from).and_then(|()| work()));
        });
        answer.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }
}
