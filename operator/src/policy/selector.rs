//! Label selectors, normalised: equal questions are one value, and so one group.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crds::names::GroupKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// One requirement on one label, as Kubernetes' documentation of labels and selectors defines it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Term {
    /// The label is there with one of these values. (`matchLabels` is this with one value.)
    In(Arc<str>, BTreeSet<Arc<str>>),
    /// The label is not there, or has none of these values.
    NotIn(Arc<str>, BTreeSet<Arc<str>>),
    /// The label is there.
    Exists(Arc<str>),
    /// The label is not there.
    DoesNotExist(Arc<str>),
}

impl Term {
    fn matches(&self, labels: &Labels) -> bool {
        let value = |key: &Arc<str>| labels.get(&**key);
        match self {
            Self::In(key, values) => value(key).is_some_and(|v| values.contains(v.as_str())),
            Self::NotIn(key, values) => value(key).is_none_or(|v| !values.contains(v.as_str())),
            Self::Exists(key) => value(key).is_some(),
            Self::DoesNotExist(key) => value(key).is_none(),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: &BTreeSet<Arc<str>>| values.iter().map(|v| &**v).collect::<Vec<_>>().join(",");
        match self {
            Self::In(key, values) => write!(f, "{key} in ({})", list(values)),
            Self::NotIn(key, values) => write!(f, "{key} notin ({})", list(values)),
            Self::Exists(key) => f.write_str(key),
            Self::DoesNotExist(key) => write!(f, "!{key}"),
        }
    }
}

/// All of its terms must hold; without terms it matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(BTreeSet<Term>);

impl Selector {
    /// `selector` normalised. None when a requirement is malformed; `crds::check` says how.
    pub fn new(selector: &LabelSelector) -> Option<Self> {
        let set = |values: &[String]| values.iter().map(|v| v.as_str().into()).collect::<BTreeSet<Arc<str>>>();
        let labels = selector.match_labels.iter().flatten();
        let mut terms: BTreeSet<_> =
            labels.map(|(k, v)| Term::In(k.as_str().into(), [v.as_str().into()].into())).collect();
        for requirement in selector.match_expressions.iter().flatten() {
            let key: Arc<str> = requirement.key.as_str().into();
            let values = set(requirement.values.as_deref().unwrap_or_default());
            terms.insert(match (requirement.operator.as_str(), values.is_empty()) {
                ("In", false) => Term::In(key, values),
                ("NotIn", false) => Term::NotIn(key, values),
                ("Exists", true) => Term::Exists(key),
                ("DoesNotExist", true) => Term::DoesNotExist(key),
                _ => return None,
            });
        }
        Some(Self(terms))
    }

    /// Whether an object with `labels` is meant.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|term| term.matches(labels))
    }

    /// The cheapest label that everything selected must carry.
    pub fn anchor(&self) -> Anchor {
        let pairs = |term: &Term| match term {
            Term::In(key, values) => Some(Anchor::Pairs(key.clone(), values.clone())),
            _ => None,
        };
        let key = |term: &Term| match term {
            Term::Exists(key) => Some(Anchor::Key(key.clone())),
            _ => None,
        };
        let fewest = self.0.iter().filter_map(pairs).min_by_key(|anchor| match anchor {
            Anchor::Pairs(_, values) => values.len(),
            _ => usize::MAX,
        });
        fewest.or_else(|| self.0.iter().find_map(key)).unwrap_or(Anchor::Nothing)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.0.iter().enumerate() {
            write!(f, "{}{term}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Where an index finds the objects that a selector may match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Only objects that carry the key with one of the values.
    Pairs(Arc<str>, BTreeSet<Arc<str>>),
    /// Only objects that carry the key.
    Key(Arc<str>),
    /// Any object.
    Nothing,
}

/// In which namespaces a selector looks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// In this one.
    Namespace(Arc<str>),
    /// In those whose labels match.
    Namespaces(Selector),
}

/// Entities by label, in some namespaces: what a group is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupSelector {
    /// Where.
    pub scope: Scope,
    /// Which.
    pub entities: Selector,
}

impl GroupSelector {
    /// The key of the group on the wire.
    pub fn key(&self) -> GroupKey {
        GroupKey::of(&self.to_string())
    }
}

impl fmt::Display for GroupSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scope {
            Scope::Namespace(name) => write!(f, "namespace={name}")?,
            Scope::Namespaces(selector) => write!(f, "namespaces=({selector})")?,
        }
        write!(f, " entities=({})", self.entities)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn selector(value: serde_json::Value) -> Selector {
        Selector::new(&serde_json::from_value(value).unwrap()).unwrap()
    }

    fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
        pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    }

    #[test]
    fn a_label_that_is_not_there_satisfies_not_in() {
        let not_in = selector(json!({"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["prod"]}]}));
        assert!(not_in.matches(&labels([])));
        assert!(not_in.matches(&labels([("env", "test")])));
        assert!(!not_in.matches(&labels([("env", "prod")])));
    }

    #[test]
    fn equal_questions_are_one_selector() {
        let short = selector(json!({"matchLabels": {"app": "db"}}));
        let long = selector(json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "db"]}]}));
        assert_eq!(short, long);
        assert_eq!(short.to_string(), "app in (db)");
    }

    #[test]
    fn a_malformed_requirement_is_no_selector() {
        for expression in [
            json!({"key": "a", "operator": "In", "values": []}),
            json!({"key": "a", "operator": "Exists", "values": ["x"]}),
            json!({"key": "a", "operator": "Near", "values": ["x"]}),
        ] {
            let selector = serde_json::from_value(json!({"matchExpressions": [expression]})).unwrap();
            assert_eq!(Selector::new(&selector), None);
        }
    }
}
