//! Turns each `ExternalNode` into one `ExternalEntity` per interface, and says on its status what became of it.

pub mod addresses;
pub mod entity;
pub mod naming;
pub mod status;
