//! The agents' API.
pub mod authorize;
