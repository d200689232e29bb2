//! What operator and agent say to each other: views, the frames of a stream, and reports.
//!
//! ```text
//! operator: View --diff--> Update --frames--> bytes ~~~~> agent: bytes --Frame--> Mirror's View
//! ```
//!
//! The law that the tests hold on to: `apply(a, diff(a, b)) == b`, `diff(b, b)` is empty, through real bytes.

mod bounds;
mod entry;
mod frame;
mod report;
mod view;

#[cfg(test)]
mod laws;

pub use entry::{Entry, Kind, Object, ObjectId};
pub use frame::{Frame, FrameError, Hello, Resume, Revision};
pub use report::{
    Attach, AttachStage, Facts, Full, Heartbeat, InterfaceReport, PolicyOutcome, PolicyReport, Report, ReportAnswer,
    ReportError, Role, Want,
};
pub use view::{
    Action, ApplyError, Change, Cidr, Delta, Direction, Enforcement, Group, Icmp, Interface, Member, MemberPort,
    MemberRef, Node, Peers, Policy, Port, PortRange, Protocol, Rule, Service, Transport, Update, View,
};

/// The version of the wire that this build speaks: the value of the header [`WIRE_HEADER`].
pub const WIRE: u32 = 1;

/// Names the wire version that a client speaks, and in a 505 those that the server can.
pub const WIRE_HEADER: &str = "outrider-wire";

/// The audience that a bearer token must carry.
pub const AUDIENCE: &str = "outrider";

/// The media type of a stream of frames.
pub const NDJSON: &str = "application/x-ndjson";
