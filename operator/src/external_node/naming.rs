//! The names of generated objects, as users of the published kinds know them.

use crds::hash::{sha1_prefix, sha256_prefix};

/// The longest name of a Kubernetes object.
const LONGEST: usize = 253;

/// How much of a node's name all names derived from it begin with.
pub const SHARED_START: usize = 240;

/// The name of the entity for one interface of the ExternalNode `node`: the node's own name, or
/// `<node>-<first 5 hex digits of SHA-1(interface)>`. One that would be too long keeps its start and ends in 8 hex
/// digits of the SHA-256 of the whole.
pub fn entity_name(node: &str, interface: Option<&str>) -> String {
    match interface.filter(|name| !name.is_empty()) {
        None => node.to_owned(),
        Some(interface) => fit(format!("{node}-{}", sha1_prefix(interface, 5))),
    }
}

fn fit(name: String) -> String {
    if name.len() <= LONGEST { name } else { shortened(&name, &name) }
}

/// `<start of name, at most 240 characters>-<8 hex digits of sha256(whole)>`.
pub fn shortened(name: &str, whole: &str) -> String {
    let start = &name[..name.len().min(SHARED_START)];
    // what a name may not have before a hyphen, since a label ends in a letter or digit
    format!("{}-{}", start.trim_end_matches(['.', '-']), sha256_prefix(whole, 8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::names::is_dns_subdomain;

    #[test]
    fn an_interface_without_a_name_gives_the_entity_its_nodes_name() {
        assert_eq!(entity_name("vm1", None), "vm1");
        assert_eq!(entity_name("vm1", Some("")), "vm1");
    }

    #[test]
    fn a_named_interface_adds_five_digits() {
        assert_eq!(entity_name("vm1", Some("eth0")), "vm1-3e616");
        assert_eq!(entity_name("vm1.prod.example.com", Some("ens192")), "vm1.prod.example.com-e8be5");
    }

    #[test]
    fn a_long_name_stays_valid_and_its_own() {
        let a = format!("{}.a", "x".repeat(251));
        let b = format!("{}.b", "x".repeat(251));
        let names = [entity_name(&a, Some("eth0")), entity_name(&b, Some("eth0")), entity_name(&a, Some("eth1"))];
        for name in &names {
            assert!(is_dns_subdomain(name), "{name}");
        }
        assert_ne!(names[0], names[1]);
        assert_ne!(names[0], names[2]);
        assert!(is_dns_subdomain(&entity_name(&format!("{}.{}", "x".repeat(239), "y".repeat(13)), Some("eth0"))));
    }
}
