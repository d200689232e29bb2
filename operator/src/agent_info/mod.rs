//! Keeps one `AntreaAgentInfo` per ExternalNode: created with it, filled from reports, aged by silence, deleted with it.

pub mod naming;
pub mod plan;
