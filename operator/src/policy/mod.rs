//! From objects to what each node is told.
//!
//! ```text
//! World --compile--> policies --selectors--> groups, spans --view(node)--> View --diff--> Update
//! ```
//!
//! [`whole`] is the definition: every selector asked of every entity. [`live`] does the same one event at a time and
//! must always equal it. The `hub` hands the views to the connections.

pub mod compile;
pub mod entity;
mod index;
pub mod live;
pub mod resolved;
pub mod selector;
pub mod status;
pub mod whole;

pub use index::NodeIndex;
pub use live::{Live, Touched};
pub use resolved::Resolved;
