//! Child processes that never outlive the test process, each with its output in a file.
//!
//! ```text
//! Launch --start--> Program --(exits, is killed)--> end: seen by every waiter
//!                      |
//!                      +-- log file: what it wrote
//! ```

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, mpsc};
use std::time::Duration;
use std::{io, thread};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::sync::watch;

/// How long a program may take to end once it was asked to; then it is killed.
const GRACE: Duration = Duration::from_secs(3);

/// What to run: a name for people, a program, its arguments and environment.
#[derive(Clone, Debug)]
pub struct Launch {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
}

impl Launch {
    /// `name` is also the name of the log file.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), program: program.into(), args: Vec::new(), env: Vec::new() }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Starts the program; its output is appended to `<logs>/<name>.log`.
    pub fn start(&self, logs: &Path) -> anyhow::Result<Program> {
        Program::start(self.clone(), logs)
    }

    /// The command, wrapped so that the kernel kills it when the thread that starts it is gone.
    fn command(&self, log: &File) -> io::Result<Command> {
        // A parent that was gone before the kernel was told to watch it is not noticed, hence the look at the parent.
        let run = format!("[ $PPID = {} ] && exec \"$@\"", std::process::id());
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "sh", "-c", &run, "sh"]).arg(&self.program).args(&self.args);
        // Programs of a lab talk to each other, and the machine's proxy does not lead there.
        for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(proxy);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        // A group of its own: Ctrl-C reaches the test process alone, which then ends its programs in order.
        command.process_group(0);
        Ok(command)
    }
}

/// A started program. Dropping it kills it.
#[derive(Debug)]
pub struct Program {
    launch: Launch,
    pid: Pid,
    log: PathBuf,
    /// Where in the log file this run begins.
    log_start: u64,
    end: watch::Receiver<Option<ExitStatus>>,
    /// Held while the pid is signalled or given back, so that a signal never reaches a stranger with the same pid.
    reaping: Arc<Mutex<()>>,
    /// We ended it ourselves, so nobody needs to be alarmed.
    asked: AtomicBool,
}

impl Program {
    fn start(launch: Launch, logs: &Path) -> anyhow::Result<Self> {
        let path = logs.join(format!("{}.log", launch.name));
        let log = File::options().create(true).append(true).open(&path);
        let log = log.with_context(|| format!("failed to open {}", path.display()))?;
        let log_start = log.metadata()?.len();
        let child = spawn(launch.command(&log)?);
        let child = child.with_context(|| format!("failed to start {} through setpriv", launch.name))?;
        let pid = Pid::from_raw(child.id().try_into().expect("a pid fits pid_t"));
        let reaping = Arc::new(Mutex::new(()));
        let (ended, end) = watch::channel(None);
        let lock = reaping.clone();
        thread::spawn(move || reap(child, pid, &lock, &ended));
        Ok(Self { launch, pid, log: path, log_start, end, reaping, asked: AtomicBool::new(false) })
    }

    /// Starts the same program again, once it has ended.
    pub async fn again(&self) -> anyhow::Result<Self> {
        self.term();
        self.wait_exit(GRACE).await?;
        let logs = self.log.parent().expect("a log file is in a folder");
        self.launch.start(logs)
    }

    /// The name it was launched by.
    pub fn name(&self) -> &str {
        &self.launch.name
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Kills it as a crash or an out-of-memory kill would: nothing of it runs any more.
    pub fn kill9(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// Asks it to end.
    pub fn term(&self) {
        self.signal(Signal::SIGTERM);
    }

    fn signal(&self, signal: Signal) {
        self.asked.store(true, Ordering::Relaxed);
        let _held = self.reaping.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ended().is_none() {
            // It can only have ended by itself a moment ago.
            let _ = kill(self.pid, signal);
        }
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        *self.end.borrow()
    }

    /// How it ended, if nobody asked it to: a sentence for the failure that follows from it.
    pub fn surprise(&self) -> Option<String> {
        let status = self.ended().filter(|_| !self.asked.load(Ordering::Relaxed))?;
        Some(format!("{} ended by itself ({status}); it last said:\n{}", self.name(), self.last_lines(10)))
    }

    /// Waits until it has ended.
    pub async fn wait_exit(&self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let mut end = self.end.clone();
        let ended = tokio::time::timeout(limit, end.wait_for(Option::is_some)).await;
        let ended = ended.with_context(|| format!("{} still runs after {limit:?}", self.name()))?;
        let status = *ended.context("the thread that waits for it is gone")?;
        status.context("an ended program has a status")
    }

    /// Waits until `look` says that it is ready; fails at once when it ends instead.
    pub async fn ready<A: crate::Look>(
        &self,
        what: &str,
        limit: Duration,
        look: impl AsyncFnMut() -> A,
    ) -> anyhow::Result<A::Value> {
        crate::until::until(what, limit, || self.surprise(), look).await
    }

    /// The file that its output goes to.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// What this run wrote to its standard output and error.
    pub fn log(&self) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(&self.log)?;
            file.seek(SeekFrom::Start(self.log_start))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_else(|error| format!("(its log cannot be read: {error})"))
    }

    /// The end of its log.
    pub fn last_lines(&self, count: usize) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// Ends programs: all are asked at once, and what still runs after a while is killed.
pub(crate) async fn stop(programs: &[Arc<Program>]) {
    for program in programs {
        program.term();
    }
    let waits = programs.iter().map(|program| program.wait_exit(GRACE));
    for (program, ended) in programs.iter().zip(futures::future::join_all(waits).await) {
        if ended.is_err() {
            program.kill9();
            // Nothing survives SIGKILL; the wait is for its files to be at rest.
            let _ = program.wait_exit(GRACE).await;
        }
    }
}

/// Waits for the end of a child, makes it known, and only then gives its pid back.
fn reap(mut child: Child, pid: Pid, reaping: &Mutex<()>, ended: &watch::Sender<Option<ExitStatus>>) {
    // WNOWAIT leaves the dead process in the table, so that its pid stays taken until the lock is ours.
    while let Err(nix::errno::Errno::EINTR) = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {}
    let _held = reaping.lock().unwrap_or_else(PoisonError::into_inner);
    ended.send_replace(child.wait().ok());
}

/// An order to the launching thread.
struct Order {
    command: Command,
    reply: mpsc::Sender<io::Result<Child>>,
}

/// Starts a child from the one thread that lives as long as this process.
///
/// The kernel sends a child's death signal when the *thread* that started it ends, and the threads of tests come and go.
fn spawn(command: Command) -> io::Result<Child> {
    static LAUNCHER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for Order { mut command, reply } in inbox {
                // Nobody waits for the reply of a test that was given up.
                let _ = reply.send(command.spawn());
            }
        });
        orders
    });
    let (reply, answer) = mpsc::channel();
    LAUNCHER.send(Order { command, reply }).map_err(io::Error::other)?;
    answer.recv().map_err(io::Error::other)?
}
