//! What is wrong with an `ExternalEntity`.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Found, Violation, parse_ip};
use crate::external_entity::ExternalEntity;

/// All that is wrong with `entity`: addresses that are none, and ports that no policy can name. The rest of it counts.
pub fn external_entity(entity: &ExternalEntity) -> Vec<Violation> {
    let mut found = Found::default();
    for (i, endpoint) in entity.spec.endpoints.iter().enumerate() {
        if let Some(ip) = &endpoint.ip
            && let Err(reason) = parse_ip(ip)
        {
            found.add(format!("spec.endpoints[{i}].ip"), ip, reason);
        }
    }
    for (i, port) in entity.spec.ports.iter().enumerate() {
        let path = format!("spec.ports[{i}].port");
        match &port.port {
            None => found.whole(path, "is missing; give the number"),
            Some(IntOrString::String(text)) => {
                found.add(path, text, "must be a number; name says what policies call it");
            }
            Some(IntOrString::Int(number)) => found.number(&path, Some(*number), 1..=65535),
        }
    }
    found.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::paths;
    use super::*;

    fn wrong(spec: &serde_json::Value) -> Vec<Violation> {
        external_entity(&serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap())
    }

    #[test]
    fn an_entity_with_addresses_and_numbers_is_right() {
        let spec = json!({"endpoints": [{"ip": "10.0.0.5"}, {"ip": "2001:DB8::5", "name": "eth0"}, {"name": "eth1"}],
            "ports": [{"port": 80, "name": "web"}, {"protocol": "UDP", "port": 65535}]});
        assert_eq!(wrong(&spec), []);
    }

    #[test]
    fn what_names_no_address_or_port_is_named_by_its_path() {
        let spec = json!({"endpoints": [{"ip": "10.0.0.5"}, {"ip": "10.0.0.300"}],
            "ports": [{"port": "ssh"}, {"port": 0}, {"name": "web"}]});
        let wrong = wrong(&spec);
        assert_eq!(
            paths(&wrong),
            ["spec.endpoints[1].ip", "spec.ports[0].port", "spec.ports[1].port", "spec.ports[2].port"]
        );
    }
}
