//! What Outrider is made of: the Kubernetes kinds, their checks, the watched world, and the words on the wire.
//!
//! ```text
//! NetworkPolicy --appliedTo, from, to--> ExternalEntity <--one per interface-- ExternalNode
//!      |                                                                          ^
//!      +--tier--> Tier                                     ExternalNodeBinding ---+--- ServiceAccount, User, Group
//! ```
//!
//! Everything here is a value or a function on values; only `world::watch` (feature `watch`) talks to anybody.

pub mod agent_info;
pub mod binding;
pub mod chain;
pub mod check;
pub mod controller_info;
pub mod definitions;
pub mod external_entity;
pub mod external_node;
pub mod hash;
pub mod names;
pub mod policy;
mod schema;
pub mod tier;
pub mod wire;
pub mod world;
