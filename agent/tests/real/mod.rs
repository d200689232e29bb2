//! A real Open vSwitch for one test: its own files, sockets and processes, and the datapath that needs no privilege.

// Each test file uses a part of it. Helpers of tests fail as tests do.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::fs::{File, read_to_string};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// How long a daemon may take to listen, and a state to come about.
const PATIENCE: Duration = Duration::from_secs(20);

/// An ovsdb-server, and an ovs-vswitchd when the test wants one; both end with the value.
pub struct Ovs {
    files: tempfile::TempDir,
    database: Option<Child>,
    switch: Option<Child>,
}

impl Ovs {
    /// A database that no switch reads.
    pub fn database() -> Self {
        let files = tempfile::Builder::new().prefix("ovs").tempdir().unwrap();
        let mut ovs = Self { files, database: None, switch: None };
        let file = ovs.path("conf.db");
        ok(Command::new("ovsdb-tool").arg("create").arg(&file).arg("/usr/share/openvswitch/vswitch.ovsschema"));
        ovs.start_database();
        ovs.vsctl(&["--no-wait", "init"]);
        ovs
    }

    /// A database and a switch with the dummy datapath.
    pub fn dummy() -> Self {
        let mut ovs = Self::database();
        ovs.start_switch();
        ovs
    }

    /// A file of this Open vSwitch, such as `db.sock`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Where the database listens.
    pub fn socket(&self) -> PathBuf {
        self.path("db.sock")
    }

    /// The management socket of a bridge.
    pub fn management(&self, bridge: &str) -> PathBuf {
        self.path(&format!("{bridge}.mgmt"))
    }

    /// A bridge on the dummy datapath that fails secure and speaks OpenFlow 1.5.
    pub fn add_bridge(&self, bridge: &str) {
        let versions = "protocols=OpenFlow10,OpenFlow13,OpenFlow15";
        self.vsctl(&["add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=dummy", "fail_mode=secure", versions]);
        listens(&self.management(bridge));
    }

    /// `ovs-vsctl` with `arguments`; what it printed.
    pub fn vsctl(&self, arguments: &[&str]) -> String {
        let database = format!("--db=unix:{}", self.socket().display());
        ok(Command::new("ovs-vsctl").arg(database).args(["--timeout=20"]).args(arguments))
    }

    /// `ovs-ofctl -O OpenFlow15 <verb> unix:<bridge's socket> <arguments>`; what it printed.
    pub fn ofctl(&self, verb: &[&str], bridge: &str, arguments: &[&str]) -> String {
        let switch = format!("unix:{}", self.management(bridge).display());
        ok(Command::new("ovs-ofctl").args(["-O", "OpenFlow15"]).args(verb).arg(switch).args(arguments))
    }

    /// `ovs-appctl` of the switch; what it printed.
    pub fn appctl(&self, arguments: &[&str]) -> String {
        ok(Command::new("ovs-appctl").arg("-t").arg(self.path("switch.ctl")).args(arguments))
    }

    /// Starts ovsdb-server on the files that are there.
    pub fn start_database(&mut self) {
        let mut command = self.daemon("ovsdb-server");
        command.arg(self.path("conf.db")).arg(format!("--remote=punix:{}", self.socket().display()));
        command.arg(format!("--unixctl={}", self.path("database.ctl").display()));
        self.database = Some(command.spawn().unwrap());
        listens(&self.socket());
    }

    /// Ends ovsdb-server as a crash would.
    pub fn kill_database(&mut self) {
        end(self.database.take());
        let _ = std::fs::remove_file(self.socket());
    }

    /// Starts ovs-vswitchd with dummy datapaths only.
    pub fn start_switch(&mut self) {
        let mut command = self.daemon("ovs-vswitchd");
        command.args(["--enable-dummy=override", "--disable-system"]);
        command.arg(format!("--unixctl={}", self.path("switch.ctl").display()));
        command.arg(format!("unix:{}", self.socket().display()));
        self.switch = Some(command.spawn().unwrap());
        listens(&self.path("switch.ctl"));
    }

    /// Ends ovs-vswitchd as a crash would.
    pub fn kill_switch(&mut self) {
        end(self.switch.take());
        let _ = std::fs::remove_file(self.path("switch.ctl"));
    }

    fn daemon(&self, name: &str) -> Command {
        let log = self.path(&format!("{name}.log"));
        let mut command = Command::new(name);
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, self.files.path());
        }
        command.arg(format!("--log-file={}", log.display())).arg("-vconsole:off");
        command.stdout(File::create(self.path("out")).unwrap()).stderr(File::create(self.path("err")).unwrap());
        command
    }
}

impl Drop for Ovs {
    fn drop(&mut self) {
        end(self.switch.take());
        end(self.database.take());
        if std::thread::panicking() {
            for daemon in ["ovsdb-server", "ovs-vswitchd"] {
                let log = read_to_string(self.path(&format!("{daemon}.log"))).unwrap_or_default();
                let tail = log.lines().rev().take(15).collect::<Vec<_>>();
                eprintln!("last lines of {daemon}:\n{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
            }
        }
    }
}

/// Waits until `state` holds; `what` is said when it doesn't come about.
pub fn eventually(what: &str, mut state: impl FnMut() -> bool) {
    let since = Instant::now();
    while !state() {
        assert!(since.elapsed() < PATIENCE, "after {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn listens(socket: &Path) {
    eventually(&format!("nobody listens on {}", socket.display()), || UnixStream::connect(socket).is_ok());
}

fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn ok(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}
