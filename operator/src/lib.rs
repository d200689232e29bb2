//! The Outrider operator: objects in, one machine's view out.
//!
//! ```text
//! Kubernetes API --Event--> World --resolve--> Resolved --view(node)--> View --diff--> frames --> agent
//!        ^                    |                                                                    |
//!        +------ writes ------+-- plan (entities, AgentInfos, tiers, statuses) <---- reports ------+
//! ```

pub mod agent_info;
pub mod binding;
pub mod change;
pub mod client;
pub mod context;
pub mod external_node;
pub mod health;
pub mod http;
pub mod jitter;
pub mod lease;
pub mod limit;
pub mod log;
pub mod policy;
pub mod reports;
pub mod runtime;
pub mod serve;
#[cfg(test)]
mod testing;
pub mod tier;
pub mod tls;
pub mod work;
