//! Which AgentInfo is whose: by annotation and uid, never by name alone.

use crds::names::{Key, Uid};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::external_node::naming::shortened;

/// Names the ExternalNode that an AgentInfo is about, as `<namespace>/<name>`.
pub const NODE: &str = "outrider.io/external-node";

/// The uid of that ExternalNode.
pub const NODE_UID: &str = "outrider.io/external-node-uid";

/// The ExternalNode that an AgentInfo is about; none when it isn't ours.
pub fn node_of(meta: &ObjectMeta) -> Option<(Key, Uid)> {
    let annotations = meta.annotations.as_ref()?;
    Some((annotations.get(NODE)?.parse().ok()?, annotations.get(NODE_UID)?.as_str().into()))
}

/// The names that the AgentInfo of `node` may have, the first free one first.
pub fn candidates(node: &Key) -> [String; 3] {
    let full = format!("{}--{}", node.namespace, node.name);
    let short = shortened(&full, &node.to_string());
    // one that is too long was never free
    let full = if full.len() <= 253 { full } else { short.clone() };
    [node.name.to_string(), full, short]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::names::is_dns_subdomain;

    #[test]
    fn all_names_are_valid_however_long_the_node_s_is() {
        for length in [1, 63, 64, 240, 253] {
            for name in candidates(&Key::new("vms", "x".repeat(length))) {
                assert!(is_dns_subdomain(&name), "{name}");
            }
        }
        assert_eq!(candidates(&Key::new("vms", "vm1"))[..2], ["vm1", "vms--vm1"]);
    }
}
