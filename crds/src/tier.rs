//! `Tier`: the first key of the order in which policies are looked at.

#![allow(unreachable_pub, reason = "KubeSchema repeats each public struct inside a function")]
#![allow(
    clippy::duplicated_attributes,
    reason = "each printcolumn has a type of its own, which the lint takes for one"
)]

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// Where a tier stands.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "crd.antrea.io",
    version = "v1beta1",
    kind = "Tier",
    plural = "tiers",
    singular = "tier",
    shortname = "tr",
    derive = "PartialEq",
    derive = "Default",
    doc = "A rank among policies: those of a lower priority number are looked at first.",
    printcolumn(
        name = "Priority",
        type_ = "integer",
        json_path = ".spec.priority",
        description = "The lower, the earlier."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct TierSpec {
    /// The lower, the earlier. Can't be changed later.
    #[schemars(range(min = 0, max = 255))]
    pub priority: i32,
    /// What the tier is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// A tier that is always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    /// Its name, which nobody else may take.
    pub name: &'static str,
    /// Its priority, which nobody else may take.
    pub priority: i32,
    /// What it is for.
    pub description: &'static str,
}

/// The tier of a policy that names none.
pub const DEFAULT: &str = "application";

/// The tier that is looked at last, behind everything else that may decide.
pub const BASELINE: &str = "baseline";

/// How many tiers there may be, the built-in ones among them.
pub const MOST: usize = 20;

/// The tiers that are always there, in the order in which they are looked at.
pub const BUILT_IN: [BuiltIn; 6] = [
    BuiltIn {
        name: "emergency",
        priority: 50,
        description: "Incidents: what must hold at once, whatever else is said",
    },
    BuiltIn { name: "securityops", priority: 100, description: "Rules of the security team" },
    BuiltIn { name: "networkops", priority: 150, description: "Rules of the network team" },
    BuiltIn { name: "platform", priority: 200, description: "Rules of the platform team" },
    BuiltIn { name: DEFAULT, priority: 250, description: "Rules of those who own an application; the default" },
    BuiltIn { name: BASELINE, priority: 253, description: "What holds when nothing else decided" },
];

/// The built-in tier `name`.
pub fn built_in(name: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|tier| tier.name == name)
}
