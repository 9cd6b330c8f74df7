//! A machine of the lab: commands on it, and faults.
//!
//! Guarantees: a method returns after its effect. Commands run as root with Debian's programs.
//!
//! Assumes: one caller at a time changes a machine.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::images::Archive;
use crate::keeper::Keeper;
use crate::limits::{CHANGE_WITHIN, COMMAND_WITHIN, GLANCE, START_WITHIN};
use crate::tool::{LabError, PATH, run};

/// Succeeds after dockerd and sshd have opened their sockets.
const IS_READY: &str = "test -s /run/sshd.pid && docker version >/dev/null";
/// The file of sshd's configuration that names the keys that may log in.
const LOGINS: &str = "/etc/ssh/lab_key_of_operator";
/// The file with the command that sshd runs instead of each other.
const FORCED: &str = "/etc/ssh/lab_command";

/// A machine of the lab.
#[derive(Debug)]
pub struct Machine {
    keeper: Arc<Keeper>,
    /// The images that a new machine has.
    images: Arc<[Archive]>,
    /// Counted from 1.
    number: usize,
}

impl Machine {
    pub(crate) fn new(keeper: Arc<Keeper>, images: Arc<[Archive]>, number: usize) -> Self {
        Self { keeper, images, number }
    }

    /// IPv4 address: 10.78.0.11 of the first machine, and so on.
    #[must_use]
    pub fn address(&self) -> String {
        format!("10.78.0.{}", 10 + self.number)
    }

    /// Number in the host's PID namespace of the machine's first process.
    ///
    /// # Errors
    /// The machine is off.
    pub fn pid(&self) -> Result<String, LabError> {
        let off = |error| LabError::Failed { what: self.says("is it on"), said: format!("no: {error}") };
        Ok(std::fs::read_to_string(self.file("pid")).map_err(off)?.trim().to_owned())
    }

    /// A command that runs on the machine as root.
    ///
    /// # Errors
    /// The machine is off.
    pub fn command(&self, program: &str) -> Result<Command, LabError> {
        let pid = self.pid()?;
        let mut command = Command::new("nsenter");
        command.args(["--target", &pid, "--mount", "--net", "--pid", "--uts", "--ipc", "--", program]);
        command.env_clear().env("PATH", PATH).env("HOME", "/root").stdin(Stdio::null());
        Ok(command)
    }

    /// Runs a line of shell; returns its standard output.
    ///
    /// # Errors
    /// The exit status is not 0, or the time limit is exceeded.
    pub async fn sh(&self, line: &str) -> Result<String, LabError> {
        run(&self.says(line), self.command("sh")?.args(["-c", line]), COMMAND_WITHIN).await
    }

    /// Runs the docker client; returns its standard output.
    ///
    /// # Errors
    /// The exit status is not 0, or the time limit is exceeded.
    pub async fn docker(&self, words: &[&str]) -> Result<String, LabError> {
        let what = self.says(&format!("docker {}", words.join(" ")));
        run(&what, self.command("docker")?.args(words), COMMAND_WITHIN).await
    }

    /// Loads an archive of images, as `docker save` writes them.
    ///
    /// # Errors
    /// The file cannot be read, or dockerd refuses it.
    pub async fn load(&self, archive: &Path) -> Result<(), LabError> {
        self.feed("docker", &["load"], archive).await
    }

    /// Loads an archive of images of pods.
    ///
    /// # Errors
    /// The file cannot be read, or containerd refuses it.
    pub async fn import(&self, archive: &Path) -> Result<(), LabError> {
        self.feed("ctr", &["--namespace=k8s.io", "images", "import", "-"], archive).await
    }

    /// Runs a program with a file of the host as its standard input.
    async fn feed(&self, program: &str, words: &[&str], file: &Path) -> Result<(), LabError> {
        let what = self.says(&format!("{program} {} of {}", words.join(" "), file.display()));
        let file = File::open(file).map_err(|source| LabError::Start { what: what.clone(), source })?;
        run(&what, self.command(program)?.args(words).stdin(file), COMMAND_WITHIN).await.map(drop)
    }

    /// Writes a file, with missing parents.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn write(&self, path: &str, content: &str) -> Result<(), LabError> {
        let mut write = self.command("sh")?;
        write.args(["-c", "mkdir -p \"${0%/*}\" && printf %s \"$1\" >\"$0\"", path, content]);
        run(&self.says(&format!("write {path}")), &mut write, COMMAND_WITHIN).await.map(drop)
    }

    // --- Faults ---

    /// Disconnects the machine from the network: packets to and from it are lost.
    ///
    /// # Errors
    /// The device cannot be changed.
    pub async fn cut(&self) -> Result<(), LabError> {
        self.change("port", &["down"]).await
    }

    /// Connects the machine to the network again.
    ///
    /// # Errors
    /// The device cannot be changed.
    pub async fn heal(&self) -> Result<(), LabError> {
        self.change("port", &["up"]).await
    }

    /// Stops dockerd, which stops its containers.
    ///
    /// # Errors
    /// dockerd does not run or does not end.
    pub async fn stop_docker(&self) -> Result<(), LabError> {
        self.end_docker("TERM").await
    }

    /// Kills dockerd. Its containers run until it starts again.
    ///
    /// # Errors
    /// dockerd does not run.
    pub async fn kill_docker(&self) -> Result<(), LabError> {
        self.end_docker("KILL").await
    }

    async fn end_docker(&self, signal: &str) -> Result<(), LabError> {
        self.sh(&format!("pkill -{signal} -x dockerd")).await?;
        self.until("dockerd has ended", "! pgrep -x dockerd", COMMAND_WITHIN).await
    }

    /// Freezes dockerd: its clients wait, and its containers run.
    ///
    /// # Errors
    /// dockerd does not run.
    pub async fn hang_docker(&self) -> Result<(), LabError> {
        self.sh("pkill -STOP -x dockerd").await.map(drop)
    }

    /// Lets dockerd go on after [`hang_docker`](Self::hang_docker).
    ///
    /// # Errors
    /// dockerd does not run.
    pub async fn resume_docker(&self) -> Result<(), LabError> {
        self.sh("pkill -CONT -x dockerd").await.map(drop)
    }

    /// Starts dockerd again.
    ///
    /// # Errors
    /// It does not answer in time.
    pub async fn start_docker(&self) -> Result<(), LabError> {
        self.inside("dockerd", &[&self.keeper.name()]).await?;
        self.ready().await
    }

    /// Kills sshd and its sessions: connections are refused.
    ///
    /// # Errors
    /// sshd does not run.
    pub async fn stop_sshd(&self) -> Result<(), LabError> {
        self.sh("pkill -KILL -x sshd; rm -f /run/sshd.pid").await?;
        self.until("sshd has ended", "! pgrep -x sshd", COMMAND_WITHIN).await
    }

    /// Starts sshd again.
    ///
    /// # Errors
    /// It does not open its port in time.
    pub async fn start_sshd(&self) -> Result<(), LabError> {
        self.inside("sshd", &[]).await?;
        self.until("sshd runs", "test -s /run/sshd.pid", START_WITHIN).await
    }

    /// Freezes sshd and its sessions: connections open, and nothing answers.
    ///
    /// # Errors
    /// sshd does not run.
    pub async fn hang_sshd(&self) -> Result<(), LabError> {
        self.sh("pkill -STOP -x sshd").await.map(drop)
    }

    /// Lets sshd go on after [`hang_sshd`](Self::hang_sshd).
    ///
    /// # Errors
    /// sshd does not run.
    pub async fn resume_sshd(&self) -> Result<(), LabError> {
        self.sh("pkill -CONT -x sshd").await.map(drop)
    }

    /// Leaves no free byte on the disk of the machine. /run has a file system of its own.
    ///
    /// # Errors
    /// The file system cannot be changed.
    pub async fn fill_disk(&self) -> Result<(), LabError> {
        self.change("disk", &["full"]).await
    }

    /// Gives the machine its free disk space back.
    ///
    /// # Errors
    /// The file system cannot be changed.
    pub async fn free_disk(&self) -> Result<(), LabError> {
        self.change("disk", &["free"]).await
    }

    /// Ends all processes of the machine at once, like a loss of power. Its disk stays, without a restart of containers.
    ///
    /// # Errors
    /// The machine is off already.
    pub async fn power_off(&self) -> Result<(), LabError> {
        self.change("power-off", &[]).await
    }

    /// Starts the machine.
    ///
    /// # Errors
    /// dockerd and sshd do not answer in time.
    pub async fn power_on(&self) -> Result<(), LabError> {
        self.change("power-on", &[]).await?;
        self.ready().await
    }

    /// Installs the machine anew: an empty disk with the lab's images, and new host keys at the same address.
    ///
    /// # Errors
    /// The machine is off, or does not start in time.
    pub async fn reimage(&self) -> Result<(), LabError> {
        self.power_off().await?;
        self.change("erase", &[]).await?;
        self.install().await
    }

    /// Replaces the host keys.
    ///
    /// # Errors
    /// sshd does not run or does not start again.
    pub async fn new_host_key(&self) -> Result<(), LabError> {
        self.sh("rm /etc/ssh/lab_host_*").await?;
        self.stop_sshd().await?;
        self.start_sshd().await
    }

    /// Removes the key of the operator from the accounts: logins are refused.
    ///
    /// # Errors
    /// The file cannot be changed.
    pub async fn change_login(&self) -> Result<(), LabError> {
        self.sh(&format!("cp {LOGINS} {LOGINS}.before && : >{LOGINS}")).await.map(drop)
    }

    /// Accepts the key of the operator again.
    ///
    /// # Errors
    /// [`change_login`](Self::change_login) was not called.
    pub async fn restore_login(&self) -> Result<(), LabError> {
        self.sh(&format!("mv {LOGINS}.before {LOGINS}")).await.map(drop)
    }

    /// Runs this line of shell instead of each command that comes by SSH. `yes` floods; `kill -KILL $PPID` ends the
    /// connection in the middle of a command. Present connections end.
    ///
    /// # Errors
    /// sshd does not start again.
    pub async fn force_command(&self, line: &str) -> Result<(), LabError> {
        let mut write = self.command("sh")?;
        write.args(["-c", &format!("echo \"$0\" >{FORCED}"), line]);
        run(&self.says("force a command"), &mut write, COMMAND_WITHIN).await?;
        self.stop_sshd().await?;
        self.start_sshd().await
    }

    /// Runs the commands that come by SSH again.
    ///
    /// # Errors
    /// sshd does not start again.
    pub async fn free_command(&self) -> Result<(), LabError> {
        self.sh(&format!("rm {FORCED}")).await?;
        self.stop_sshd().await?;
        self.start_sshd().await
    }

    // --- Parts of these ---

    /// Starts a machine with an empty disk and loads the images.
    pub(crate) async fn install(&self) -> Result<(), LabError> {
        self.power_on().await?;
        for archive in self.images.iter() {
            match archive {
                Archive::Docker(file) => self.load(file).await?,
                Archive::Containerd(file) => self.import(file).await?,
            }
        }
        Ok(())
    }

    async fn ready(&self) -> Result<(), LabError> {
        self.until("dockerd and sshd run", IS_READY, START_WITHIN).await
    }

    /// Waits until a line of shell succeeds on the machine.
    async fn until(&self, what: &str, line: &str, within: Duration) -> Result<(), LabError> {
        let end = Instant::now() + within;
        loop {
            match self.sh(line).await {
                Ok(_) => return Ok(()),
                Err(_) if Instant::now() < end => sleep(GLANCE).await,
                Err(error) => {
                    let said = format!("{error}; {}", self.log().await);
                    return Err(LabError::Late { what: self.says(what), within, said });
                }
            }
        }
    }

    /// The last lines of the machine's logs.
    async fn log(&self) -> String {
        let own = std::fs::read_to_string(self.file("log")).unwrap_or_default();
        let logs = self.sh("tail -n 5 /run/dockerd.log /run/sshd.log").await;
        format!("{own}{}", logs.unwrap_or_else(|error| error.to_string()))
    }

    /// Runs a verb of the script on the host, about this machine.
    async fn change(&self, verb: &str, words: &[&str]) -> Result<(), LabError> {
        let mut command = self.keeper.script(verb);
        command.arg(self.keeper.directory()).arg(self.number.to_string()).args(words);
        run(&self.says(verb), &mut command, CHANGE_WITHIN).await.map(drop)
    }

    /// Runs a verb of the script on the machine.
    async fn inside(&self, verb: &str, words: &[&str]) -> Result<(), LabError> {
        let mut command = self.command("bash")?;
        command.args(["/run/lab.sh", verb, &self.number.to_string()]).args(words);
        run(&self.says(verb), &mut command, CHANGE_WITHIN).await.map(drop)
    }

    fn says(&self, what: &str) -> String {
        format!("machine {}: {what}", self.address())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.keeper.directory().join(self.number.to_string()).join(name)
    }
}
