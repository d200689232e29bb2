//! The Outrider operator: objects in, one machine's view out.
//!
//! ```text
//! Kubernetes API --Event--> World --resolve--> Resolved --view(node)--> View --diff--> frames --> agent
//!        ^                    |                                                                    |
//!        +------ writes ------+-- plan (entities, AgentInfos, tiers, statuses) <---- reports ------+
//! ```

pub mod agent_info;
pub mod args;
pub mod binding;
pub mod change;
pub mod client;
pub mod context;
pub mod event;
pub mod external_node;
pub mod files;
pub mod foreign;
pub mod health;
pub mod http;
pub mod hub;
pub mod jitter;
pub mod lease;
pub mod limit;
pub mod log;
pub mod metrics;
pub mod policy;
pub mod queue;
pub mod reports;
pub mod run;
pub mod runtime;
pub mod serve;
#[cfg(test)]
mod testing;
pub mod tier;
pub mod tls;
pub mod unreadable;
pub mod work;
pub mod writer;
