//! The machine: what stands on it, and how it is changed.
//!
//! Only this folder knows Open vSwitch, netlink and nftables.

pub mod driver;
