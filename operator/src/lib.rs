//! The Outrider operator: objects in, one machine's view out.
//!
//! ```text
//! Kubernetes API --Event--> World --resolve--> Resolved --view(node)--> View --diff--> frames --> agent
//!        ^                    |                                                                    |
//!        +------ writes ------+-- plan (entities, AgentInfos, tiers, statuses) <---- reports ------+
//! ```

pub mod external_node;
pub mod jitter;
pub mod lease;
pub mod log;
pub mod policy;
