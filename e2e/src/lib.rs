//! The laboratory of the end-to-end tests: a control plane of real parts, started by the test that needs it.
//!
//! ```text
//! test --Cluster--> etcd <- kube-apiserver <- kube-controller-manager      (lab.rs, plane.rs)
//!          |              ^
//!          |              +-- objects, tokens, kubectl                     (objects.rs, access.rs)
//!          +-- Program: one of ours, with its log                          (process.rs)
//!          +-- until: waits on states, tells what it saw instead           (until.rs)
//!          +-- Outrider, Machine: our operator, and who talks to it         (outrider.rs)
//!          +-- audit: who asked the API server for what                    (audit.rs)
//! ```
//!
//! Nothing here outlives the test process, however it ends.

mod access;
pub mod audit;
pub mod binaries;
mod cluster;
mod home;
mod lab;
mod objects;
pub mod outrider;
pub mod pki;
mod plane;
mod ports;
mod process;
mod report;
pub mod until;

pub use cluster::Cluster;
pub use lab::Options;
pub use outrider::{Machine, Outrider};
pub use process::{Launch, Program};
pub use until::Look;

/// A line of progress, past the test harness's capture: a cluster takes seconds, and whoever waits wants to know for what.
pub(crate) fn say(line: &str) {
    use std::io::Write;
    // Without a stderr there is nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "lab: {line}");
}
