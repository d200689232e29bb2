//! The schemas that a derive can't say: texts with a grammar, selectors, conditions, and one rule type seen from two sides.
//!
//! What the API server refuses by these, `check` refuses too, with better words; `check` also sees what they can't.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::policy::Rule;

/// An address of a machine: parsable, and none that every machine has or that names many.
pub(crate) fn host_ip(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 45,
        "x-kubernetes-validations": [
            {
                "rule": "isIP(self)",
                "message": "must be an IPv4 or IPv6 address, without prefix length, zone or leading zeros"
            },
            {
                "rule": "!isIP(self) || ip(self).isGlobalUnicast()",
                "message": "must be an address of this machine alone: not unspecified, loopback, link-local, multicast or broadcast"
            }
        ]
    })
}

/// Addresses of a machine; at least one when the list is given.
pub(crate) fn host_ips(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "minItems": 1, "maxItems": 1024, "items": host_ip(generator)})
}

/// Networks that a machine's addresses may come from; at least one when the list is given.
pub(crate) fn host_cidrs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 64,
        "items": {
            "type": "string",
            "maxLength": 49,
            "x-kubernetes-validations": [
                {
                    "rule": "isCIDR(self)",
                    "message": "must be a network such as 10.0.0.0/16 or 2001:db8::/64"
                },
                {
                    "rule": "!isCIDR(self) || cidr(self).ip().isUnspecified() || cidr(self).ip().isGlobalUnicast()",
                    "message": "must be a network of unicast addresses: not loopback, link-local or multicast"
                }
            ]
        }
    })
}

/// An address of either family, as the published kinds say it.
pub(crate) fn ip(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "oneOf": [{"format": "ipv4"}, {"format": "ipv6"}]})
}

/// A network.
pub(crate) fn cidr(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "cidr"})
}

/// Networks.
pub(crate) fn cidrs(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": cidr(generator)})
}

/// A protocol with ports.
pub(crate) fn protocol(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["TCP", "UDP", "SCTP"]})
}

/// A port by number or by name. The bounds are the numbers'.
pub(crate) fn int_or_string(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true, "minimum": 0, "maximum": 65535})
}

/// Whether a rule acts or only counts.
pub(crate) fn enforcement(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["Enforce", "Audit"]})
}

/// A label selector.
pub(crate) fn selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "matchLabels": {
                "description": "Labels that an object must have, with these values.",
                "type": "object",
                "additionalProperties": {"type": "string"}
            },
            "matchExpressions": {
                "description": "Further requirements; all must hold.",
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "key": {"description": "The key of the label.", "type": "string"},
                        "operator": {
                            "description": "How the label is compared with the values.",
                            "type": "string",
                            "enum": ["In", "NotIn", "Exists", "DoesNotExist"]
                        },
                        "values": {
                            "description": "The values for In and NotIn; none for the others.",
                            "type": "array",
                            "items": {
                                "type": "string",
                                "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
                            }
                        }
                    }
                }
            }
        }
    })
}

/// A reference to an object anywhere in the cluster.
pub(crate) fn object_reference(_: &mut SchemaGenerator) -> Schema {
    let text = |what: &str| json!({"description": what, "type": "string"});
    json_schema!({
        "type": "object",
        "properties": {
            "kind": text("Its kind."),
            "namespace": text("Its namespace."),
            "name": text("Its name."),
            "uid": text("Its uid."),
            "apiVersion": text("Its API version."),
            "resourceVersion": text("The version of the object that was meant."),
            "fieldPath": text("The part of the object that was meant.")
        }
    })
}

/// A moment.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}

/// Conditions as Kubernetes means them: one per type.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    let mut items = condition();
    items["required"] = json!(["lastTransitionTime", "message", "reason", "status", "type"]);
    items["properties"]["lastTransitionTime"]["format"] = json!("date-time");
    items["properties"]["status"]["enum"] = json!(["True", "False", "Unknown"]);
    json_schema!({
        "type": "array",
        "items": items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"]
    })
}

/// Conditions of the published kinds, which ask nothing of them.
pub(crate) fn plain_conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": condition()})
}

fn condition() -> Value {
    json!({
        "type": "object",
        "properties": {
            "type": {"description": "What is judged.", "type": "string"},
            "status": {"description": "True, False or Unknown.", "type": "string"},
            "reason": {"description": "Why, in one word.", "type": "string"},
            "message": {"description": "Why, in a sentence.", "type": "string"},
            "lastTransitionTime": {"description": "When the status last changed.", "type": "string"},
            "observedGeneration": {
                "description": "The generation of the object that was judged.",
                "type": "integer",
                "format": "int64"
            }
        }
    })
}

/// The rules for what comes in: no `to`, no `toServices`, no `fqdn`; the only IGMP message is a query.
pub(crate) fn ingress_rules(generator: &mut SchemaGenerator) -> Schema {
    let mut rule = rule(generator, &json!([17]));
    forget(&mut rule, &["to", "toServices"]);
    forget(&mut rule["properties"]["from"]["items"], &["fqdn"]);
    json_schema!({"type": "array", "items": rule})
}

/// The rules for what goes out: no `from`, no `scope` of a peer; IGMP messages are reports.
pub(crate) fn egress_rules(generator: &mut SchemaGenerator) -> Schema {
    let mut rule = rule(generator, &json!([18, 22, 34]));
    forget(&mut rule, &["from"]);
    forget(&mut rule["properties"]["to"]["items"], &["scope"]);
    let alone = json!({
        "rule": "!has(self.toServices) || !(has(self.to) || has(self.ports) || has(self.protocols))",
        "message": "toServices stands alone: the Services say which peers and ports are meant; \
                    move to, ports and protocols to a rule of their own"
    });
    if let Some(validations) = rule["x-kubernetes-validations"].as_array_mut() {
        validations.push(alone);
    }
    json_schema!({"type": "array", "items": rule})
}

fn rule(generator: &mut SchemaGenerator, igmp: &Value) -> Value {
    let mut rule = <Rule as schemars::JsonSchema>::json_schema(generator).to_value();
    rule["properties"]["protocols"]["items"]["properties"]["igmp"]["properties"]["igmpType"]["enum"] = igmp.clone();
    rule
}

fn forget(object: &mut Value, fields: &[&str]) {
    if let Some(properties) = object["properties"].as_object_mut() {
        properties.retain(|name, _| !fields.contains(&name.as_str()));
    }
}

/// The elements that can be read: one odd condition in a status must not hide the object.
pub(crate) fn readable<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let all = Vec::<Value>::deserialize(deserializer)?;
    Ok(all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect())
}

/// The value if it can be read.
pub(crate) fn readable_or_none<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).ok())
}
