//! What may have to be written.

use std::fmt;

use crds::names::Key;

/// Something to look at: what should be there is computed anew, and only a difference is written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// What stands at an entity name.
    Entity(Key),
    /// The AgentInfo and the status of an ExternalNode.
    Node(Key),
    /// An AgentInfo that may be nobody's.
    AgentInfo(Key),
    /// The status of a policy.
    Policy(Key),
    /// The status of an ExternalNodeBinding.
    Binding(Key),
    /// The built-in Tiers.
    Tiers,
}

impl Work {
    /// Whether each change of it may only be made after those before it. Changes of other work don't need each other.
    pub fn is_in_order(&self) -> bool {
        // a node's new entity stands before its old one goes
        matches!(self, Self::Entity(_))
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entity(key) => write!(f, "ExternalEntity {key}"),
            Self::Node(key) => write!(f, "ExternalNode {key}"),
            Self::AgentInfo(key) => write!(f, "AntreaAgentInfo {key}"),
            Self::Policy(key) => write!(f, "NetworkPolicy {key}"),
            Self::Binding(key) => write!(f, "ExternalNodeBinding {key}"),
            Self::Tiers => f.write_str("built-in Tiers"),
        }
    }
}
